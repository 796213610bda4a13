"""Layout of a Rust project: the files of its crates, and its tests."""

from __future__ import annotations

import glob
import posixpath
from collections.abc import Sequence
from pathlib import Path

from composer_replication.languages.layout import NoTestsError, RepositoryLayout
from composer_replication.languages.rust.crates import Crate, RustModule, crates_of, modules_of
from composer_replication.languages.rust.inline_tests import has_tests
from composer_replication.sandbox.grading.test_files import below
from composer_replication.types.errors import SourceError


def rust_layout(tree: Path, packages: Sequence[str], tests: Sequence[str]) -> RepositoryLayout:
    """Find the sources and tests of the crates at `tree`; what is given is taken as it is.

    Sources are the files of libraries and programs that are not compiled for tests alone; tests may lie in them. Examples and
    benchmarks are not looked at.

    Raises:
        NoTestsError: no file has a test.
        SourceError: there is no library and no program, or a path that was given is not there.
    """
    for given in (*packages, *tests):
        if not (tree / given).exists() or given.startswith(("/", "..")):
            raise SourceError(f"the project has no {given}", fix="name a path relative to its root")
    paths = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file() and not path.is_symlink())

    def read(path: str) -> bytes:
        return (tree / path).read_bytes()

    modules = [(crate, module) for crate in crates_of(paths, read) for module in modules_of(crate, paths, read).values()]
    sources = sorted({module.path for crate, module in modules if is_code(crate, module)})
    sources = [path for path in sources if not packages or below(path, packages)]
    found = {module.path for _, module in modules if not tests or below(module.path, tests)}
    if not sources:
        raise SourceError("the project has no crate with code", fix="name another: --package PATH")
    if not any(has_tests(read(path)) for path in sorted(found)):
        raise NoTestsError("the project has no tests (no #[test])", fix="name them: --tests PATH")
    folders = sorted({posixpath.dirname(path) for path in sources})
    return RepositoryLayout(
        packages=tuple(folder or "." for folder in folders),
        tests=tuple(test.rstrip("/") for test in tests) or (".",),
        python_path=(".",),
        sources=tuple(sources),
        imports=(),
        editable=tuple(f"{glob.escape(folder)}/*.rs" if folder else "*.rs" for folder in folders),
    )


def is_code(crate: Crate, module: RustModule) -> bool:
    """Return whether a module is more than tests."""
    return crate.kind != "test" and not module.is_test
