"""Conversion of another author's Harbor task: a tree, a solution as files, and tests sorted by a run."""

from __future__ import annotations

import glob
import posixpath
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.sandbox import Command, Ending, Limits, Sandbox, Tree
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.submission import is_editable
from composer_replication.tasks.exchange.foreign_files import NotExpressibleError
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.sources.source import digest_of
from composer_replication.types import Deletion, Outcome, TaskSpec

_TESTS = "harbor_tests"
_SCRATCH = ".harbor"
_BESIDE = {_SCRATCH, ".git", "__pycache__"}
"""Folders in which a solution may leave what it likes."""
_TIME_S = 300.0
_MOST_BYTES = 256 << 20
"""Of all files that the image copies, each as often as it is copied."""
_HARMLESS_RUN = re.compile(
    r"(python3? -m )?(uv )?pip3? install|apt-get |apt |mkdir |rm -rf /var/lib/apt|git (init|config|add|commit)|export |:$|true$"
)
"""Commands of a Dockerfile that add no file to the working directory which a task would need."""
_IGNORED = ("FROM", "ENV", "LABEL", "ARG", "USER", "EXPOSE", "CMD", "ENTRYPOINT", "SHELL", "HEALTHCHECK", "STOPSIGNAL", "VOLUME")


@dataclass(frozen=True, slots=True)
class Expressed:
    """A task that is still to be proven."""

    spec: TaskSpec
    repo: Path
    """The tree without the feature, its tests inside."""
    gold: Mapping[str, bytes]


def express(source: Path, config: Mapping[str, Any], work: Path, *, sandbox: Sandbox, python: Path) -> Expressed:
    """Convert the task at `source`, a copy that `copy_foreign` made, with its tree below `work`.

    Raises:
        NotExpressibleError: with the reason.
        SandboxError: the sandbox broke.
    """
    workdir, copies = _image(source, config)
    verifier = (source / "tests" / "test.sh").read_text("utf-8") if (source / "tests" / "test.sh").is_file() else ""
    tests = [path for path in tree_files(source / "tests") if path.endswith(".py")] if verifier else []
    if "pytest" not in verifier or not tests:
        raise NotExpressibleError("its verifier is not pytest over files in tests/")
    if not (source / "solution" / "solve.sh").is_file():
        raise NotExpressibleError("it has no solution/solve.sh to prove it with")
    repo = _tree(source, copies, work / "repo")
    for path in tests:
        text = (source / "tests" / path).read_text("utf-8")
        if workdir in text or "/tests" in text:
            raise NotExpressibleError(f"tests/{path} names absolute paths, which differ here")
        (repo / _TESTS / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / _TESTS / path).write_text(text, "utf-8")
    gold = _solution(source, repo, workdir, sandbox, python)
    name = str(config.get("task", {}).get("name") or source.name).replace("/", "__")
    spec = _sorted_tests(source, name, repo, gold, sandbox, python)
    refused = sorted(path for path in gold if not is_editable(spec, path))
    if refused:
        raise NotExpressibleError(f"its solution changes {', '.join(refused[:3])}, which no submission may")
    return Expressed(spec, repo, gold)


# --- the image -------------------------------------------------------------------------------------------------------


def _image(source: Path, config: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return the working directory, and what is copied into it from the build context: (path there, path in the tree)."""
    environment = source / "environment"
    if config.get("steps"):
        raise NotExpressibleError("it has several steps")
    if list(environment.glob("docker-compose.y*ml")):
        raise NotExpressibleError("it needs several containers (docker-compose)")
    if not (environment / "Dockerfile").is_file():
        image = config.get("environment", {}).get("docker_image")
        raise NotExpressibleError(f"its files are in the image {image}" if image else "it has no environment/Dockerfile")
    workdir, copies = "/", list[tuple[str, str]]()
    for keyword, rest in _instructions((environment / "Dockerfile").read_text("utf-8")):
        if keyword == "WORKDIR":
            workdir = posixpath.normpath(posixpath.join(workdir, rest))
        elif keyword in ("COPY", "ADD"):
            *origins, target = [word for word in shlex.split(rest) if not word.startswith("--chown")]
            if not origins or any(word.startswith("--") or "://" in word or "*" in word for word in origins):
                raise NotExpressibleError(f"its image takes files from elsewhere ({keyword} {rest})")
            there = posixpath.normpath(posixpath.join(workdir, target))
            copies += [(_origin(origin, keyword), there) for origin in origins]
        elif keyword == "RUN":
            unknown = [part for part in re.split(r"&&|;|\n", rest) if not _HARMLESS_RUN.match(part.strip())]
            if unknown:
                raise NotExpressibleError(f"its image is built by commands (RUN {unknown[0].strip()[:60]})")
        elif keyword not in _IGNORED:
            raise NotExpressibleError(f"its Dockerfile has {keyword}")
    if workdir == "/" or not all(f"{target}/".startswith(f"{workdir}/") for _, target in copies):
        raise NotExpressibleError("its files are not all below one working directory")
    return workdir, [(origin, posixpath.relpath(target, workdir)) for origin, target in copies]


def _origin(given: str, keyword: str) -> str:
    """Return the path of what is copied, relative to the build context."""
    if given.startswith("/") or ".." in given.split("/"):
        raise NotExpressibleError(f"{keyword} {given} leads out of environment/; name files below it")
    return posixpath.normpath(given)


def _instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Yield each instruction's keyword and the rest, continued lines joined, comments left out."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        keyword, _, rest = line.strip().partition(" ")
        if keyword:
            yield keyword.upper(), rest.strip()


def _tree(source: Path, copies: list[tuple[str, str]], repo: Path) -> Path:
    """Make the working directory as the image would contain it."""
    context = source / "environment"
    repo.mkdir()
    room = _MOST_BYTES
    for origin, target in copies:
        given = context / origin
        if given.is_dir():
            files = {f"{target}/{path}": given / path for path in tree_files(given) if path.rpartition("/")[2] != "Dockerfile"}
        elif given.is_file():
            into_folder = target == "." or (repo / target).is_dir()
            files = {f"{target}/{given.name}" if into_folder else target: given}
        else:
            raise NotExpressibleError(f"environment/{origin}, which the image copies, is missing")
        room -= sum(file.stat().st_size for file in files.values())
        if room < 0:
            raise NotExpressibleError(f"its image copies more than {_MOST_BYTES >> 20} MiB")
        for path, file in files.items():
            (repo / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, repo / path)
    if not tree_files(repo):
        raise NotExpressibleError("its working directory starts empty")
    return repo


# --- the solution and the tests --------------------------------------------------------------------------------------


def _solution(source: Path, repo: Path, workdir: str, sandbox: Sandbox, python: Path) -> dict[str, bytes]:
    """Return the files that `solve.sh` changes when it runs in a sandbox over the tree, where its absolute paths are relative
    ones."""
    changes: dict[str, bytes | None] = {}
    for path in tree_files(source / "solution"):
        content = (source / "solution" / path).read_bytes()
        if path == "solve.sh":
            script = content.decode().replace("/solution", f"./{_SCRATCH}")
            content = re.sub(rf"{re.escape(workdir)}(?=[/\s\"';)]|$)", ".", script).encode()
        changes[f"{_SCRATCH}/{path}"] = content
    command = Command(
        argv=("/usr/bin/env", "bash", "-c", f"exec bash {_SCRATCH}/solve.sh 2>&1"),
        python=python,
        limits=Limits(wall_s=_TIME_S, cpu_s=_TIME_S, changed_mb=64),
        read_back=True,
    )
    result = sandbox.run(Tree(base=repo, changes=changes), command)
    if result.ending is not Ending.EXITED:
        raise NotExpressibleError(f"its solve.sh does not run here ({result.ending})")
    if result.returncode != 0:
        said = result.stdout.decode(errors="replace").strip().rpartition("\n")[2]
        raise NotExpressibleError(f"its solve.sh fails without network and outside its image ({said[-300:]})")
    left = {path: content for path, content in (result.changes or {}).items() if not _BESIDE & set(path.split("/")[:-1])}
    changed = {path: content for path, content in left.items() if content is not None}
    if len(changed) < len(left) or not changed:
        raise NotExpressibleError("its solution deletes files" if left else "its solution changes no file of the tree")
    return changed


def _sorted_tests(source: Path, name: str, repo: Path, gold: Mapping[str, bytes], sandbox: Sandbox, python: Path) -> TaskSpec:
    """Return the task, its tests sorted by their results without and with the solution."""
    files = [f"{_TESTS}/{path}" for path in tree_files(repo / _TESTS)]
    runner = CodeRunner(sandbox=sandbox, python=python, limits=Limits(wall_s=_TIME_S, cpu_s=_TIME_S))
    after = runner.run(Tree(base=repo, changes=dict(gold)), files).outcomes
    before = runner.run(Tree(base=repo), files).outcomes
    empty = {path for path in files if after.get(path) is Outcome.MISSING}  # helpers that define no test
    bad = [test_id for test_id, outcome in after.items() if outcome is not Outcome.PASSED and test_id not in empty]
    passing = [test_id for test_id, outcome in after.items() if outcome is Outcome.PASSED]
    if bad or not passing:
        raise NotExpressibleError(f"its tests do not pass with its solution here ({(bad or ['none ran'])[0]})")
    instruction = (source / "instruction.md").read_text("utf-8").strip()
    deleted = []
    for path, content in gold.items():
        had = (repo / path).read_bytes() if (repo / path).is_file() else b""
        deleted.append(Deletion(path=path, qualname="", lines=max(0, content.count(b"\n") - had.count(b"\n"))))
    return TaskSpec(
        task_id=name,
        source=f"harbor:{name}",
        source_digest=digest_of(repo),
        instruction=instruction,
        deleted=tuple(deleted),
        fail_to_pass=tuple(i for i in passing if before.get(i) is not Outcome.PASSED),
        pass_to_pass=tuple(i for i in passing if before.get(i) is Outcome.PASSED),
        editable=_editable(repo, gold),
        test_timeout_s=_TIME_S,
    )


def _editable(repo: Path, gold: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return every Python file except the tests and their helpers, plus what the solution changes."""
    python = [path for path in (*tree_files(repo), *gold) if path.endswith(".py")]
    folders = sorted({path.partition("/")[0] for path in python if "/" in path} - {_TESTS})
    patterns = ["*.py", *(f"{glob.escape(folder)}/**/*.py" for folder in folders)]
    return (*patterns, *sorted(path for path in gold if not path.endswith(".py")))
