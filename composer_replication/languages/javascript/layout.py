"""Layout of a project of JavaScript or TypeScript: its sources and its tests."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence, Set
from pathlib import Path, PurePosixPath

from composer_replication.languages.javascript.settings import framework_of, manifest_of
from composer_replication.languages.javascript.syntax import ENDINGS
from composer_replication.languages.layout import NoTestsError, RepositoryLayout
from composer_replication.sandbox.grading.test_files import below
from composer_replication.types.errors import SourceError

TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "spec", "specs"})
_ASIDE = frozenset(
    {
        *("node_modules", "dist", "build", "out", "coverage", "docs", "doc", "example", "examples", "bench", "benchmark"),
        *(
            "benchmarks",
            "scripts",
            "script",
            "tools",
            "vendor",
            "fixtures",
            "__fixtures__",
            "__mocks__",
            "__snapshots__",
            "types",
        ),
        *("demo", "demos", "website", "site", "perf", "e2e"),
    }
)
_TEST = re.compile(r"(.+[.\-_](test|spec|tests)|test|tests|test[-_].+)\.[cm]?[jt]sx?")
"""Names of test files, as node:test, vitest and jest take them."""
_NO_SOURCE = re.compile(
    r".+\.(d\.[cm]?ts|min\.[cm]?js|config\.[cm]?[jt]s|conf\.[cm]?js|stories\.[jt]sx?|bench\.[cm]?[jt]s)|\..+rc\.[cm]?js"
)


def is_test(path: str) -> bool:
    """Return whether a file of this path holds tests, by the conventions of the frameworks."""
    *folders, name = path.split("/")
    inside = bool(TEST_FOLDERS.intersection(folders)) and not _ASIDE.intersection(folders)
    return path.endswith(ENDINGS) and not name.endswith((".d.ts", ".d.mts", ".d.cts")) and (bool(_TEST.fullmatch(name)) or inside)


def is_source(path: str) -> bool:
    """Return whether a file of this path is code of the project, and no test, configuration, declaration or built file."""
    *folders, name = path.split("/")
    aside = any(folder in _ASIDE or folder in TEST_FOLDERS or folder.startswith(".") for folder in folders)
    return path.endswith(ENDINGS) and not aside and not _TEST.fullmatch(name) and not _NO_SOURCE.fullmatch(name)


def javascript_layout(tree: Path, packages: Sequence[str], tests: Sequence[str]) -> RepositoryLayout:
    """Find the sources and tests of the project at `tree`; what is given is taken as it is.

    Folders of built files, documentation, examples, benchmarks and tools are not looked at.

    Raises:
        NoTestsError: there are no test files.
        SourceError: there is no other code, or a path that was given is not there.
    """
    for given in (*packages, *tests):
        if not (tree / given).exists() or given.startswith(("/", "..")):
            raise SourceError(f"the project has no {given}", fix="name a path relative to its root")
    files = sorted(
        path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.name.endswith(ENDINGS) and _is_plain(path)
    )
    found = [path for path in files if (below(path, tests) if tests else is_test(path))]
    sources = [path for path in files if path not in found and (below(path, packages) if packages else is_source(path))]
    if not sources:
        raise SourceError("the project has no JavaScript or TypeScript but tests", fix="name another: --package PATH")
    if not found:
        raise NoTestsError("the project has no tests that node:test, vitest, jest or mocha find", fix="name them: --tests PATH")
    folders = sorted({str(PurePosixPath(path).parent) for path in sources})
    return RepositoryLayout(
        packages=tuple(folders),
        tests=tuple(tests) or tuple(around(found)),
        python_path=(".",),
        sources=tuple(sources),
        imports=(),
        editable=tuple(_patterns(sources, files)),
    )


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and "node_modules" not in path.parts


def is_minified(path: str) -> bool:
    """Return whether a file has the name of one from which a tool took names and lines: code that somebody wrote elsewhere."""
    return re.search(r"[.-]min\.[cm]?js(\.map)?$", path) is not None


def built_folders(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the folders at the root that builds write: `dist` and `build`, and any in which most files have names of files in
    `src`."""
    folders: dict[str, set[str]] = {}
    for path in paths:
        folder, _, rest = path.partition("/")
        if rest.endswith(ENDINGS):
            folders.setdefault(folder, set()).add(re.sub(r"(\.d)?\.[cm]?[jt]sx?$", "", rest.rpartition("/")[2]))
    sources = folders.get("src", set())
    twins = [folder for folder, names in folders.items() if folder not in ("src", *TEST_FOLDERS) and _mostly(names, sources)]
    return tuple(sorted({"dist", "build", *twins}))


def _mostly(names: Set[str], sources: Set[str]) -> bool:
    return 2 * len(names & sources - {"index"}) > len(names - {"index"})


def around(tests: Iterable[str]) -> list[str]:
    """Return where test files lie: the outermost folder of tests around each, or the file itself."""
    found = set()
    for path in tests:
        folders = path.split("/")[:-1]
        depth = next((n for n, folder in enumerate(folders) if folder in TEST_FOLDERS), None)
        found.add(path if depth is None else "/".join(folders[: depth + 1]))
    return sorted(found)


def _patterns(sources: Sequence[str], files: Sequence[str]) -> list[str]:
    """Return a pattern for each folder and ending in which all files are sources, single files elsewhere."""
    found: list[str] = []
    groups: dict[tuple[str, str], list[str]] = {}
    for path in sources:
        pure = PurePosixPath(path)
        groups.setdefault((str(pure.parent), pure.suffix), []).append(path)
    for (folder, suffix), here in sorted(groups.items()):
        others = [path for path in files if PurePosixPath(path).parent == PurePosixPath(folder) and path.endswith(suffix)]
        if len(others) == len(here) and not any(map(is_test, others)):
            found.append(f"*{suffix}" if folder == "." else f"{glob.escape(folder)}/*{suffix}")
        else:
            found += [glob.escape(path) for path in here]
    return found


def framework_in(tree: Path, tests: Iterable[str]) -> str:
    """Return what runs the project's tests (`settings.framework_of`)."""
    texts = (path.read_text("utf-8", errors="replace") for path in map(tree.joinpath, tests) if path.is_file())
    return framework_of(manifest_of(str(tree)), texts)
