"""Import of SWE-bench-style instances, turned into tasks by reverting their gold patch.

A row says which commit of a repository a patch solved an issue in, and which tests tell (`patch`, `test_patch`, `FAIL_TO_PASS`,
`PASS_TO_PASS`; 2310.06770, section 2). Its tree with both patches is the solved one; the task's is the same without the gold
patch, its tests in place. That is a reversion, not a feature deletion, and `provenance` says so. What a row claims about its
tests is believed only as far as real runs confirm it here.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from composer_replication.languages.python.functions import Skipped
from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.sandbox.grading.pytest_run import require_modules
from composer_replication.sandbox.opening import remote_python
from composer_replication.sandbox.protocol import Sandbox
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.tasks.exchange.foreign_files import DAMAGED, damage
from composer_replication.tasks.files import storage_errors, write_whole
from composer_replication.tasks.index import write_index
from composer_replication.tasks.proofs.reversion import editable_of, write_reversion
from composer_replication.tasks.report import BUILD_REPORT, BuildEvent, BuildOptions, Progress
from composer_replication.tasks.sources.credentials import Credential, find_credentials, refuse_credentials
from composer_replication.tasks.sources.layout import guess_layout
from composer_replication.tasks.sources.source import PristineTree, digest_of, fetch_source
from composer_replication.tasks.spec import is_inside
from composer_replication.tasks.store import Task, load_task, publish_task
from composer_replication.types import TaskSpec
from composer_replication.types.errors import SandboxError, SourceError, StorageError, TaskError, one_of

_COLUMNS = ("instance_id", "base_commit", "patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS", "problem_statement")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One row."""

    instance_id: str
    repo: str
    base_commit: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    problem_statement: str


def read_instances(file: Path) -> Iterator[Instance | Skipped]:
    """Read the rows of a JSONL file as SWE-bench publishes it; lists of tests may be lists or JSON in a string.

    A row that is no instance is yielded as `Skipped`, by the number of its line.

    Raises:
        SourceError: the file cannot be read.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{file} cannot be read: {error}", fix="name a JSONL file with the columns of SWE-bench") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _instance(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                columns = f"each row needs the columns {', '.join(_COLUMNS)}"
                yield Skipped(f"line {number}", f"it is not an instance ({type(error).__name__}: {error}); {columns}")


def _instance(row: Any) -> Instance:
    """Read one row. Raises ValueError, KeyError, TypeError, AttributeError or RecursionError on one that is no instance."""
    json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is a ValueError
    values = {name.lower(): row[name] for name in _COLUMNS}
    for name in ("fail_to_pass", "pass_to_pass"):
        tests = json.loads(values[name]) if isinstance(values[name], str) else values[name]
        values[name] = tuple(map(str, tests))
        outside = [test_id for test_id in values[name] if not is_inside(test_id.partition("::")[0])]
        if outside:
            raise ValueError(f"{outside[0][:80]} lies outside of the repository")
    wrong = [name for name, value in values.items() if not isinstance(value, str | tuple)]
    if wrong:
        raise TypeError(f"{wrong[0]} is not a text")
    return Instance(repo=str(row.get("repo", "")), **values)


def build_instances(
    file: Path, out: Path, *, only: str = "", checkout: str = "", options: BuildOptions, progress: Progress
) -> tuple[list[Task], list[Skipped]]:
    """Build the tasks of a file's instances below `out`, and give the reasons for the others; existing ones are not built again.

    No row ends the others: also one that is no instance, or on which the sandbox breaks, is given with its reason.

    Args:
        only: the id of one instance; empty for all.
        checkout: as in `revert`; the row's `repo` when empty.
        options: of these, `max_tasks`, `python`, `sandbox`, `task_timeout_s` and `allow_credentials` count.

    Raises:
        SourceError: there is no such file or instance.
        TaskError: the interpreter has no pytest.
        SandboxError: no sandbox is available, or the sandbox broke before the first instance.
        StorageError: `out` cannot be written.
    """
    rows = list(read_instances(file))
    known = [row for row in rows if isinstance(row, Instance)]
    instances = [instance for instance in known if only in ("", instance.instance_id)]
    if not rows:
        raise SourceError(f"{file} has no instance", fix="name a JSONL file with the columns of SWE-bench")
    if not instances and only:
        raise SourceError(f"{file} has no instance {only}", fix=one_of(only, (instance.instance_id for instance in known)))
    sandbox = open_sandbox(options.sandbox)
    python = (options.python or remote_python(options.sandbox) or Path(sys.executable)).absolute()
    require_modules(sandbox, python, "pytest")
    tasks: list[Task] = []
    dropped = [row for row in rows if isinstance(row, Skipped) and not only]
    for instance in instances:
        progress(BuildEvent("validating", len(tasks) + len(dropped), len(instances), len(tasks), options.max_tasks, len(dropped)))
        if len(tasks) == options.max_tasks:
            break
        try:
            tasks.append(
                _built(out / task_id_of(instance))
                or revert(instance, checkout or instance.repo, out, sandbox=sandbox, python=python, options=options)
            )
        except StorageError:
            raise
        except (TaskError, SandboxError) as error:
            dropped.append(Skipped(instance.instance_id, error.message))
        except DAMAGED as error:
            dropped.append(Skipped(instance.instance_id, damage(error)))
    record = {
        "source": file.name,
        "python": str(python),
        "tasks": [task.spec.task_id for task in tasks],
        "dropped": [asdict(entry) for entry in dropped],
    }
    write_index(out)
    write_whole(out / BUILD_REPORT, json.dumps(record, indent=1).encode() + b"\n")
    return tasks, dropped


def _built(root: Path) -> Task | None:
    """Return the intact task at `root`, from an earlier call."""
    try:
        return load_task(root)
    except TaskError:
        return None


def revert(instance: Instance, checkout: str, out: Path, *, sandbox: Sandbox, python: Path, options: BuildOptions) -> Task:
    """Write the task of one instance below `out`, proven with the grader: gold code 1 and untouched tree 0, twice each.

    Pass-to-pass tests that do not pass every time are left out, and what remains is proven again, with its hidden checks.

    Args:
        checkout: a git URL, or the path of a repository that has the commit.

    Raises:
        SourceError: the commit cannot be fetched, a patch does not apply, removes a file or changes no source, the patch or the
            code around it holds credentials, or a fail-to-pass test or hidden check does not hold every time.
        SandboxError: the sandbox broke.
        StorageError: the task cannot be written.
    """
    with scratch_folder() as scratch:
        url = Path(checkout).resolve().as_uri() if Path(checkout).is_dir() else checkout
        source = fetch_source(f"{url}@{instance.base_commit}", scratch / "solved")
        _apply(source.tree, instance.test_patch, f"the test patch of {instance.instance_id}")
        paths = _paths(instance)
        before = {path: file.read_bytes() if (file := source.tree / path).is_file() else None for path in paths}
        _apply(source.tree, instance.patch, f"the patch of {instance.instance_id}")
        gone = [path for path in paths if not (source.tree / path).is_file()]
        if gone or not paths:
            what = f"removes {gone[0]}" if gone else "changes no file"
            raise SourceError(f"the patch of {instance.instance_id} {what}", fix="leave the instance out: it cannot be reverted")
        spec = _spec(instance, source, paths, options.task_timeout_s)
        _refuse_credentials(instance, source.tree, options.allow_credentials)
        staged = out / ".build" / "staged" / spec.task_id
        facts = {
            "kind": "reversion of a gold patch",
            "instance_id": instance.instance_id,
            "base_commit": instance.base_commit,
            "fail_to_pass_claimed": len(instance.fail_to_pass),
            "pass_to_pass_claimed": len(instance.pass_to_pass),
        }
        name = f"instance {spec.task_id}"
        write_reversion(spec, staged, name=name, pristine=source.tree, before=before, facts=facts, sandbox=sandbox, python=python)
        publish_task(staged, out / spec.task_id)
    return load_task(out / spec.task_id)


def _refuse_credentials(instance: Instance, tree: Path, allowed: tuple[str, ...]) -> None:
    """Raise SourceError when a line of the patch holds what looks like a credential, or the code beside it a certain one."""
    found, added = find_credentials(tree, allowed), set(instance.patch.split("\n"))
    for credential in found:
        if f"+{_line(tree, credential)}" in added:
            raise SourceError(
                f"the patch of {instance.instance_id} holds a credential: {credential}",
                fix=f"leave the instance out; if it is made up: --allow-credentials {credential.path}",
            )
    refuse_credentials(found, guess_layout(tree).tests, f"the tree of {instance.instance_id}")


def _line(tree: Path, credential: Credential) -> str:
    return (tree / credential.path).read_bytes().decode(errors="replace").split("\n")[credential.line - 1]


def task_id_of(instance: Instance) -> str:
    """Return the instance's id as a valid folder name. Raises SourceError when nothing of it is left."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", instance.instance_id).lstrip(".")
    if not name.strip(".-"):
        raise SourceError(f"{instance.instance_id!r} is not a name for a task", fix="give the instance another id")
    return name


def _paths(instance: Instance) -> list[str]:
    """Return the paths the gold patch touches, including those it moves files from."""
    names = re.findall(r"^(?:\+\+\+ b|--- a)/(.+?)\t?$", instance.patch, flags=re.MULTILINE)
    return sorted(set(names))


def _apply(tree: Path, patch: str, what: str) -> None:
    """Apply a patch to a tree of regular files. Raises SourceError when it does not apply or leaves anything else behind."""
    if not patch.strip():
        return
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    with storage_errors(tree):
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"], cwd=tree, input=patch.encode(), capture_output=True, env=environment
        )
    if done.returncode != 0:
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["git gave no reason"])[0]
        raise SourceError(f"{what} does not apply: {said}", fix="check base_commit and the checkout")
    with OpenFolder(tree) as folder:
        entries = folder.listing().entries
    for path, entry in entries.items():
        if not (stat.S_ISREG(entry.info.st_mode) or stat.S_ISDIR(entry.info.st_mode)):
            raise SourceError(f"{what} makes a link: {path} is a link to {entry.target}", fix="leave the instance out")


def _spec(instance: Instance, source: PristineTree, paths: list[str], timeout_s: float) -> TaskSpec:
    layout = guess_layout(source.tree)
    return TaskSpec(
        task_id=task_id_of(instance),
        source=f"{instance.repo or source.name}@{instance.base_commit}",
        source_digest=digest_of(source.tree),
        instruction=instance.problem_statement.strip(),
        deleted=(),
        fail_to_pass=tuple(sorted(instance.fail_to_pass)),
        pass_to_pass=tuple(sorted(instance.pass_to_pass)),
        editable=editable_of(layout, paths, (*instance.fail_to_pass, *instance.pass_to_pass)),
        python_path=layout.python_path,
        test_timeout_s=timeout_s,
    )
