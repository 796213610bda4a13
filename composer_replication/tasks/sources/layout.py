"""Layout of a project: its packages and its tests."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from composer_replication.languages.layout import NoTestsError, RepositoryLayout
from composer_replication.sandbox.grading.test_files import TEST_FOLDERS, around_tests, below, is_test_file
from composer_replication.tasks.files import tree_files
from composer_replication.types.errors import SourceError

_SOURCE_FOLDERS = ("src", "lib", "python")
_NOT_TESTED = frozenset(
    {"doc", "docs", "example", "examples", "sample", "samples", "demo", "demos", "bench", "benchmark", "benchmarks"}
)
_NOT_PACKAGES = _NOT_TESTED | {"test", "tests", "testing", "script", "scripts", "tools", "ci"}
_NOT_MODULES = frozenset(
    {"setup", "conftest", "noxfile", "tasks", "fabfile", "versioneer", "dodo", "pavement", "ez_setup", "hatch_build", "manage"}
)


def guess_layout(tree: Path, *, packages: Sequence[str] = (), tests: Sequence[str] = ()) -> RepositoryLayout:
    """Find packages and tests below `tree`; what is given is taken as it is.

    Packages are looked for in `src`, `lib` and `python`, then at the root (single modules only where there is no package);
    tests are files named `test_*.py` or `*_test.py`, with the whole `test` or `tests` folder around them, and `test.py` or
    `tests.py` at the root.

    Raises:
        NoTestsError: no tests were found.
        SourceError: no packages were found, or a path that was given is not there.
    """
    files = tree_files(tree)
    python = [path for path in files if path.endswith(".py")]
    for given in (*packages, *tests):
        if not (tree / given).exists() or given.startswith(("/", "..")):
            raise SourceError(f"the project has no {given}", fix="name a path relative to its root")
    packages = tuple(sorted(package.rstrip("/") for package in packages)) or tuple(_find_packages(python))
    tests = tuple(sorted(test.rstrip("/") for test in tests)) or tuple(_find_tests(python))
    if not packages:
        raise SourceError("no Python package was found in the project", fix="name it: --package PATH")
    if not tests:
        raise NoTestsError("the project has no tests (no test_*.py and no *_test.py)", fix="name them: --tests PATH")
    sources = tuple(path for path in python if below(path, packages) and not is_among_tests(path, tests))
    if not sources:
        raise SourceError(f"{', '.join(packages)} holds no Python file but tests", fix="name another: --package PATH")
    roots = {package: _root_of(package, python) for package in packages}
    inside = (package if root == "." else package.removeprefix(root + "/") for package, root in roots.items())
    return RepositoryLayout(
        packages=packages,
        tests=tests,
        python_path=(*dict.fromkeys(root for root in roots.values() if root != "."), "."),
        sources=sources,
        imports=tuple(sorted({path.removesuffix(".py").replace("/", ".") for path in inside})),
        editable=_patterns(sources, python),
    )


def _find_packages(python: Sequence[str]) -> Iterator[str]:
    for folder in _SOURCE_FOLDERS:
        inside = [path for path in python if path.startswith(f"{folder}/")]
        if f"{folder}/__init__.py" in inside or not inside:
            continue
        initialised = {path.removesuffix("/__init__.py") for path in inside if path.endswith("/__init__.py")}
        tops = {package for package in initialised if package.rpartition("/")[0] not in initialised}
        modules = {path for path in inside if path.count("/") == 1 and not is_among_tests(path, ())}
        yield from sorted(tops | modules)
        return
    at_root = [path.removesuffix("/__init__.py") for path in python if path.count("/") == 1 and path.endswith("/__init__.py")]
    packages = sorted(package for package in at_root if package not in _NOT_PACKAGES)
    modules = {path for path in python if "/" not in path and path[:-3] not in _NOT_MODULES and not is_among_tests(path, ())}
    yield from packages or sorted(modules)


def _find_tests(python: Sequence[str]) -> list[str]:
    return around_tests(path for path in python if is_test_file(path) and not _NOT_TESTED.intersection(path.split("/")[:-1]))


def is_among_tests(path: str, tests: Iterable[str]) -> bool:
    """Return whether `path` is a test, lies among tests or configures them."""
    *folders, name = path.split("/")
    return name == "conftest.py" or is_test_file(path) or bool(TEST_FOLDERS.intersection(folders)) or below(path, tests)


def is_example(path: str, tests: Sequence[str]) -> bool:
    """Return whether `path` is not production code: a test, or among tests, tools, documentation or examples."""
    return is_among_tests(path, tests) or bool(_NOT_PACKAGES.intersection(path.split("/")[:-1])) or path.endswith((".md", ".rst"))


def _root_of(package: str, python: Sequence[str]) -> str:
    """Return the folder to put on `sys.path`: a known source folder above the package, or the one that contains it."""
    top = package.partition("/")[0]
    if top in _SOURCE_FOLDERS and f"{top}/__init__.py" not in python:
        return top
    folder = package.rpartition("/")[0]
    while f"{folder}/__init__.py" in python:
        folder = folder.rpartition("/")[0]
    return folder or "."


def _patterns(sources: Sequence[str], python: Sequence[str]) -> tuple[str, ...]:
    """Return patterns for the sources: whole folders that contain only sources, single files elsewhere and at the root."""
    mixed = {path.rpartition("/")[0] for path in set(python) - set(sources)} | {""}
    found = dict.fromkeys(
        glob.escape(path) if (folder := path.rpartition("/")[0]) in mixed else f"{glob.escape(folder)}/*.py" for path in sources
    )
    return tuple(found)
