"""Layout of a Go module: its packages and its tests."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from composer_replication.languages.layout import NoTestsError, RepositoryLayout
from composer_replication.sandbox.grading.test_files import below
from composer_replication.types.errors import SourceError

_NOT_TAKEN = frozenset({"vendor", "testdata", "examples", "example", "cmd", "tools", "internal_test", "docs"})


def go_layout(tree: Path, packages: Sequence[str], tests: Sequence[str]) -> RepositoryLayout:
    """Find the packages and tests of the module at `tree`; what is given is taken as it is.

    A folder below `vendor`, `testdata`, `examples`, `cmd` or `tools`, or whose name begins with a dot or an underscore, is not
    looked at.

    Raises:
        NoTestsError: there is no `*_test.go`.
        SourceError: there is no other Go file, or a path that was given is not there.
    """
    for given in (*packages, *tests):
        if not (tree / given).exists() or given.startswith(("/", "..")):
            raise SourceError(f"the project has no {given}", fix="name a path relative to its root")
    files = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*.go") if path.is_file() and not path.is_symlink())
    files = [path for path in files if not any(map(_is_aside, path.split("/")[:-1])) and not _is_ignored(tree / path)]
    sources = [path for path in files if not path.endswith("_test.go") and (not packages or below(path, packages))]
    found = [path for path in files if path.endswith("_test.go") and (not tests or below(path, tests))]
    if not sources:
        raise SourceError("the module has no Go file but tests", fix="name another: --package PATH")
    if not found:
        raise NoTestsError("the module has no tests (no *_test.go)", fix="name them: --tests PATH")
    folders = sorted({path.rpartition("/")[0] or "." for path in sources})
    return RepositoryLayout(
        packages=tuple(folders),
        tests=tuple(test.rstrip("/") for test in tests) or (".",),
        python_path=(".",),
        sources=tuple(sources),
        imports=(),
        editable=tuple("*.go" if folder == "." else f"{glob.escape(folder)}/*.go" for folder in folders),
    )


def _is_ignored(file: Path) -> bool:
    """Return whether a file says that it belongs to no build."""
    with file.open("rb") as opened:
        return re.search(rb"^//(go:build|\s*\+build) ignore\b", opened.read(4096), re.MULTILINE) is not None


def _is_aside(name: str) -> bool:
    return name in _NOT_TAKEN or name.startswith((".", "_"))
