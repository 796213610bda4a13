"""A task on disk: a folder of plain, readable files, sealed by a manifest.

task.toml          the TaskSpec, the schema version and how the task was made
instruction.md     what the agent is asked
repo/              the tree without the feature, its tests intact: the agent's and the grader's base
solution/          gold.patch (repo/ -> gold) and files/ (the edited files as they were); never shown to an agent
hidden.json        what grading asks besides the tests: held-out programs and the gold code's answers, anti-tests; never shown
MANIFEST.sha256    every other file's digest, in the form `sha256sum --check` reads; written last

Files of `repo/` that a task leaves as they are share their bytes, as hard links, with the tree that they come from, where the
file system allows. Nothing writes to a file of a task: a new version of a task is a new folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import tomli_w

from composer_replication.languages.functions import body_of
from composer_replication.languages.protocol import Language
from composer_replication.languages.registry import build_language
from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.tasks.files import link_tree, solved_tree, storage_errors, tree_files, unified_diff, write_files
from composer_replication.tasks.spec import spec_of
from composer_replication.types import TaskSpec, to_json
from composer_replication.types.errors import TaskError

_SCHEMA = 5
MANIFEST = "MANIFEST.sha256"
"""The file that seals a task's folder."""
_HIDDEN = "hidden.json"
ASIDE = ".old"
"""Ending of the hidden folder that a task waits in while another takes its place."""
_DOC_ENDINGS = (".md", ".rst", ".txt")
_NO_DOCS = ("license", "licence", "copying", "notice", "authors", "requirements", "constraints", "manifest")
_DOC_BYTES = 64 << 10
_ALL_DOCS_BYTES = 512 << 10
_MOST_BYTES = 64 << 20
"""Limit on the manifest, `task.toml` and `hidden.json`, which are read whole."""
_ONE = "name a task's own folder: one below a folder that `composer tasks build` wrote"


@dataclass(frozen=True, slots=True)
class Task:
    """A task folder. Its files were found intact when it was loaded or, of an `indexed` one, are before the first is used."""

    spec: TaskSpec
    root: Path
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """How the task was made: numbers of covering tests, of flaky ones and of pass-to-pass tests found (among the covering ones
    and as many others as the cap allows), the cap on the latter, the seed."""
    indexed: tuple[TaskSpec, Mapping[str, Any]] | None = field(default=None, compare=False)
    """Spec and provenance as an index gave them; compare the task's files with its manifest, and these with the files, at the
    first use. None where the files were compared when the task was loaded."""

    @property
    def language(self) -> Language:
        """Return the language of its code. Raises TaskError where it is not installed."""
        return build_language(self.spec.language)

    @property
    def repo(self) -> Path:
        """The task's tree: the feature deleted, the tests intact. Raises TaskError as `check`."""
        self.check()
        return self.root / "repo"

    def check(self) -> None:
        """Compare every file of an indexed task with its manifest, and what the index said of it with them, once in this process.

        Raises TaskError: it names the file.
        """
        if self.indexed is not None and check_once(self.root) != record_digest(*self.indexed):
            raise TaskError(
                f"task {self.root} is not what the index of its folder says", fix=f"delete {self.root.parent}/.build/index.jsonl"
            )

    def gold_files(self) -> dict[str, bytes]:
        """Return the edited files as they were before the deletion, by POSIX path. Raises TaskError when they cannot be read."""
        self.check()
        folder = self.root / "solution" / "files"
        try:
            return {path: (folder / path).read_bytes() for path in tree_files(folder)}
        except OSError as error:
            raise _damaged(self.root, f"solution/files cannot be read ({error.strerror})") from error

    def deleted_code(self) -> tuple[str, ...]:
        """Return the deleted bodies, one text each; a whole file where its functions are not found again.

        Signatures are not among them, nor docstrings that the task's tree still has. Undecodable bytes are replaced. Raises
        TaskError like `gold_files`.
        """
        bodies: list[bytes] = []
        keep = bool(self.provenance.get("keep_docstring", True))
        for path, source in self.gold_files().items():
            wanted = {d.qualname for d in self.spec.deleted if d.path == path}
            if self.spec.deleted and not wanted:
                continue  # only imports went
            found = [f for f in self.language.find_functions(path, source, keep)[0] if f.qualname in wanted]
            bodies += [body_of(source, f) for f in found] if found and len(found) == len(wanted) else [source]
        return tuple(body.decode(errors="replace") for body in bodies)

    def gold_patch(self) -> str:
        """Return the solution as a unified diff against `repo`; undecodable bytes are replaced, for reading only."""
        return (self.root / "solution" / "gold.patch").read_text(errors="replace")

    def digest(self) -> bytes:
        """Return the task's manifest, which has the checksum of each of its files."""
        return (self.root / MANIFEST).read_bytes()

    def docs(self) -> dict[str, str]:
        """Return the documentation in `repo` (`docs_of`)."""
        return docs_of(self.repo)


def docs_of(tree: Path) -> dict[str, str]:
    """Return a project's documentation: `.md`, `.rst` and `.txt` files outside tests, by path.

    Licences and lists of requirements are left out. A file is cut at 64 KiB, and no file is begun after 512 KiB.
    """
    found: dict[str, str] = {}
    room = _ALL_DOCS_BYTES
    for path in sorted(tree_files(tree), key=lambda p: (p.count("/"), p)):
        pure = PurePosixPath(path)
        tested = any(part in ("test", "tests") for part in pure.parts[:-1])
        if tested or pure.suffix.lower() not in _DOC_ENDINGS or pure.name.lower().startswith(_NO_DOCS) or room <= 0:
            continue
        with (tree / path).open("rb") as file:
            content = file.read(_DOC_BYTES)
        room -= len(content)
        found[path] = content.decode(errors="replace")
    return found


def write_task(
    spec: TaskSpec,
    root: Path,
    *,
    pristine: Path,
    deleted: Mapping[str, bytes | None],
    tests: Mapping[str, bytes] | None = None,
    provenance: Mapping[str, Any] | None = None,
    digests: Mapping[str, str] | None = None,
) -> Task:
    """Write a task folder at `root`, whole or not at all, replacing one of that name.

    Args:
        pristine: the tree with the feature.
        deleted: the edited files without it, by POSIX path; None for one that the feature brings with it.
        tests: test files that differ from those of `pristine`, which the solution leaves as they are.
        digests: `digests_of(pristine)`, where many tasks are written from one tree.

    Raises:
        StorageError: it could not be written.
    """
    provenance = dict(provenance or {})
    temporary = root.with_name(f".{root.name}.tmp")
    gold = {path: (pristine / path).read_bytes() for path in deleted}
    task = to_json(spec)
    hidden = json.dumps(task.pop("hidden"), indent=1) + "\n"
    record = {"schema_version": _SCHEMA, "provenance": provenance, "task": task}
    written = {
        **{f"repo/{path}": content for path, content in {**deleted, **(tests or {})}.items() if content is not None},
        **{f"solution/files/{path}": content for path, content in gold.items()},
        "solution/gold.patch": unified_diff(deleted, gold),
        "instruction.md": f"{spec.instruction}\n".encode(),
        _HIDDEN: hidden.encode(),
        "task.toml": tomli_w.dumps(record).encode(),
    }
    kept = {path: digest for path, digest in (digests or digests_of(pristine)).items() if path not in deleted}
    copied = {f"repo/{path}": digest for path, digest in kept.items()}
    sealed = copied | {name: hashlib.sha256(content).hexdigest() for name, content in written.items()}
    with storage_errors(root.parent):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        link_tree(pristine, temporary / "repo", without={*deleted, *(tests or {})})
        write_files(temporary, written)
        lines = (f"{digest}  {name}\n" for name, digest in sorted(sealed.items()))
        (temporary / MANIFEST).write_text("".join(lines), encoding="utf-8")
    publish_task(temporary, root)
    return Task(spec, root, provenance)


def reworded(task: Task, instruction: str, *, by: str) -> Task:
    """Write the same task with another instruction, in the same place; `provenance` says who wrote it. Raises StorageError."""
    spec = replace(task.spec, instruction=instruction)
    provenance = {**task.provenance, "instruction_by": by}
    gold, repo = task.gold_files(), task.repo
    deleted = {path: (repo / path).read_bytes() if (repo / path).exists() else None for path in gold}
    with solved_tree(repo, gold) as solved:
        return write_task(spec, task.root, pristine=solved, deleted=deleted, provenance=provenance)


def digests_of(tree: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below `tree`, by POSIX path."""
    return {path: _sha256(tree / path) for path in tree_files(tree)}


def publish_task(staged: Path, root: Path) -> None:
    """Move a complete task folder to `root`, where it appears at once. Raises StorageError.

    Killed at any moment, it leaves the old task or the new one: the old one is set aside, and the next reader restores it when
    there is no new one.
    """
    with storage_errors(root.parent):
        root.parent.mkdir(parents=True, exist_ok=True)
        bring_back(root)
        if root.exists():
            root.rename(_aside(root))
        staged.rename(root)
        bring_back(root)


def _aside(root: Path) -> Path:
    return root.with_name(f".{root.name}{ASIDE}")


def bring_back(root: Path) -> None:
    """Undo or finish what a killed `publish_task` began. Raises OSError."""
    aside = _aside(root)
    if aside.is_dir() and root.exists():
        shutil.rmtree(aside, ignore_errors=True)  # a reader may be at it too
    elif aside.is_dir():
        aside.rename(root)


def load_task(path: str | os.PathLike[str]) -> Task:
    """Read a task folder and check every file against its manifest.

    Raises:
        TaskError: there is no task, it is incomplete, or a file is missing, changed or unexpected; names the file and the fix.
    """
    root = Path(path)
    try:
        if not root.exists():
            bring_back(root)
        with OpenFolder(root.resolve()) as folder:
            expected = _sealed(folder)
            _check_files(root, folder, expected)
            record = tomllib.loads(folder.read("task.toml", _MOST_BYTES).decode("utf-8"))
            hidden = json.loads(folder.read(_HIDDEN, _MOST_BYTES)) if _HIDDEN in expected else None
    except (FileNotFoundError, NotADirectoryError) as error:
        if not root.is_dir():
            what, fix = "is a file, and a task is a folder" if root.exists() else "does not exist", _ONE
        else:
            inside = next(root.glob(f"*/{MANIFEST}"), None)
            what = "holds no complete task (it has no MANIFEST.sha256)" if inside is None else "is a folder of tasks, not a task"
            fix = _ONE if inside is None else f"name one of them, such as {inside.parent}"
        raise TaskError(f"{root} {what}", fix=fix) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise _damaged(root, f"it cannot be read ({error})") from error
    if record.get("schema_version") != _SCHEMA:
        raise TaskError(
            f"task {root} has schema version {record.get('schema_version')}; this release reads {_SCHEMA}", fix="build it again"
        )
    try:
        return Task(spec_of({**record["task"], "hidden": hidden}), root, record["provenance"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(root, f"task.toml is not a task ({error})") from error


@cache
def _checked_at(root: Path, _inode: int, _time: int) -> str:
    task = load_task(root)
    return record_digest(task.spec, task.provenance)


def check_once(root: Path) -> str:
    """Compare every file of a task's folder with its manifest, unless this process did so for the same manifest; return the
    `record_digest` of the task.

    Raises:
        TaskError: a file is missing, changed or unexpected, or cannot be read; names it and the fix.
    """
    return _checked_at(root, *version_of(root))


def version_of(root: Path) -> tuple[int, int]:
    """Return the inode and the time of a task's manifest, which another version of the task does not share. Raises TaskError."""
    try:
        manifest = (root / MANIFEST).stat()
    except OSError as error:
        raise _damaged(root, f"it cannot be read ({error})") from error
    return manifest.st_ino, manifest.st_mtime_ns


def indexed_record(spec: TaskSpec, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that an index tells of a task, plain JSON: its record without the held-out checks, but for their weakness."""
    record = {field.name: to_json(getattr(spec, field.name)) for field in fields(spec) if field.name != "hidden"}
    return {"weakness": spec.hidden.weakness, "provenance": dict(provenance), "task": record}


def record_digest(spec: TaskSpec, provenance: Mapping[str, Any]) -> str:
    """Return a digest of `indexed_record`."""
    return hashlib.sha256(json.dumps(indexed_record(spec, provenance), sort_keys=True, default=str).encode()).hexdigest()


def _sealed(folder: OpenFolder) -> dict[str, str]:
    """Return the digests in a task's manifest, by path. Raises OSError and UnicodeDecodeError."""
    lines = folder.read(MANIFEST, _MOST_BYTES).decode("utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _check_files(root: Path, folder: OpenFolder, expected: Mapping[str, str]) -> None:
    """Raise TaskError unless a task's folder holds these regular files and no others, with these digests."""
    present = set(tree_files(root)) - {MANIFEST}
    for name in sorted(present | expected.keys()):
        if name not in present:
            raise _damaged(root, f"{name} is missing")
        if name not in expected:
            raise TaskError(f"task {root}: {name} does not belong to it", fix=f"delete {root / name}")
        if stat.S_ISREG((root / name).lstat().st_mode):
            with folder.file(name) as (file, _):
                if hashlib.file_digest(file, "sha256").hexdigest() == expected[name]:
                    continue
        raise _damaged(root, f"{name} was changed after the task was built")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(root: Path, what: str) -> TaskError:
    return TaskError(
        f"task {root}: {what}",
        fix=f"restore it, or delete {root} and run the same `composer tasks build` again: it rebuilds what is missing",
    )
