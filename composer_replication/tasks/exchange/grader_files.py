"""The part of this package that grades tasks: copied out, so that there is only one grader, also where nothing is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

from composer_replication.sandbox.transfer.import_closure import PACKAGE, import_closure
from composer_replication.types.errors import TaskError

_NEVER = frozenset({"sandbox/remote/client.py", "sandbox/remote/server.py", "sandbox/program.py"})
"""Files that grading does not import: they need a library for a remote sandbox, or run programs of other rooms."""
_STREAMS = "types/guarded_streams.py"
_LANGUAGES = PACKAGE / "languages"


def copy_grader(language: str, folder: Path) -> None:
    """Copy what grades tasks in a language into `folder`, as the package `composer_replication`.

    Raises:
        TaskError: the language comes from another package.
        OSError: `folder` cannot be written.
    """
    for path in grader_files(language):
        target = folder / PACKAGE.name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / path, target)


def grader_files(language: str) -> tuple[str, ...]:
    """Return the paths of what `copy_grader` copies, relative to the package: the sandbox, the guard of the output, the language
    with all files of its room, and what they import. Raises TaskError as `copy_grader`."""
    roots = [*_modules(PACKAGE / "sandbox"), _STREAMS]
    others: list[str] = []
    if language != "python":  # which is graded by the sandbox's own modules
        room = _LANGUAGES / language
        if not room.is_dir():
            raise TaskError(f"{language} comes from another package, which cannot be copied", fix="leave its tasks out")
        roots += [*_modules(room), *(_relative(path) for path in _LANGUAGES.glob("*.py"))]
        others = [_relative(path) for path in room.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    return tuple(sorted({*import_closure(roots, packages=True, left_out=_NEVER), *others}))


def _modules(folder: Path) -> list[str]:
    return [_relative(path) for path in folder.rglob("*.py")]


def _relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()
