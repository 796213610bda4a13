"""Layout of a Java project: its sources and its tests."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from pathlib import Path

from composer_replication.languages.java.settings import has_tests, java_paths, place_of
from composer_replication.languages.layout import NoTestsError, RepositoryLayout
from composer_replication.sandbox.grading.test_files import below
from composer_replication.types.errors import SourceError


def java_layout(tree: Path, packages: Sequence[str], tests: Sequence[str]) -> RepositoryLayout:
    """Find the sources and tests of the project at `tree`; what is given is taken as it is.

    Sources are what lies in `src/main/java`, of the project or of a module, or else outside of folders of tests, documentation,
    examples, benchmarks and built files.

    Raises:
        NoTestsError: there is no file with tests of JUnit.
        SourceError: there is no other Java file, or a path that was given is not there.
    """
    for given in (*packages, *tests):
        if not (tree / given).exists() or given.startswith(("/", "..")):
            raise SourceError(f"the project has no {given}", fix="name a path relative to its root")
    paths = list(java_paths(str(tree)))
    around = [path for path in paths if (below(path, tests) if tests else place_of(path) == "test")]
    found = [path for path in around if has_tests(path, (tree / path).read_text("utf-8", errors="replace"))]
    sources = [path for path in paths if path not in around and (below(path, packages) if packages else place_of(path) == "main")]
    if not sources:
        raise SourceError("the project has no Java file but tests", fix="name another: --package PATH")
    if not found:
        raise NoTestsError("the project has no tests of JUnit", fix="name them: --tests PATH")
    folders = sorted({path.rpartition("/")[0] or "." for path in sources})
    return RepositoryLayout(
        packages=tuple(folders),
        tests=tuple(test.rstrip("/") for test in tests) or _folders_of_tests(found),
        python_path=(".",),
        sources=tuple(sources),
        imports=(),
        editable=tuple(_patterns(sources, paths)),
    )


def _folders_of_tests(tests: Iterable[str]) -> tuple[str, ...]:
    """Return `src/test/java` folders and the like, and files of tests that lie elsewhere."""
    found = set()
    for path in tests:
        head, mark, _ = path.partition("src/test/java/")
        found.add(f"{head}src/test/java" if mark else path)
    return tuple(sorted(found))


def _patterns(sources: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Return a pattern for each folder in which all Java files are sources, single files elsewhere."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(path.rpartition("/")[0], []).append(path)
    known = set(sources)
    found: list[str] = []
    for folder, here in sorted(folders.items()):
        ours = [path for path in here if path in known]
        others = [path for path in here if path not in known and not path.endswith(("package-info.java", "module-info.java"))]
        if ours and not others:
            found.append(f"{glob.escape(folder)}/*.java".removeprefix("/"))
        else:
            found += [glob.escape(path) for path in ours]
    return found
