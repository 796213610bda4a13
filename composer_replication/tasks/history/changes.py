"""What a commit changes in a project's code, and what with it: its tests and the notes about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from composer_replication.languages.functions import Function, body_of, split_lines
from composer_replication.languages.layout import RepositoryLayout
from composer_replication.languages.python.changes import changed_functions
from composer_replication.languages.python.functions import find_functions
from composer_replication.sandbox.grading.test_files import below, is_test_file
from composer_replication.tasks.proofs.proof import NoTaskError
from composer_replication.tasks.sources.layout import is_among_tests, is_example

_NEWS = re.compile(r"(?:.*/)?(?:change(?:s|log)?|history|news|release[-_]?notes|whats[-_]?new)(?:[-_.][^/]*)?", re.IGNORECASE)
"""Files of news for a project's users."""
_NEWS_FOLDERS = frozenset({"newsfragments", "news", "changelog.d", "changelog", "changes"})
_TEXTS = ("", ".md", ".rst", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChange:
    """Files of a project's packages that a commit adds or changes, and what belongs to them."""

    before: Mapping[str, bytes | None]
    """By POSIX path: their contents before; None for a file that the commit adds."""
    after: Mapping[str, bytes]
    tests: tuple[str, ...]
    """Files of tests that it adds or changes."""
    helpers: bool
    """It also changes what lies among tests and is no file of tests, such as data or fixtures."""
    news: tuple[str, ...]
    """Lines that it adds to the project's changelog."""

    @property
    def functions(self) -> list[Function]:
        """The functions that it adds or changes."""
        found = (changed_functions(path, self.before[path] or b"", content) for path, content in self._python())
        return [function for functions in found for function in functions]

    def new_code(self) -> list[bytes]:
        """Return the lines that it adds, those of each function together; of a file in which no function differs, all of them."""
        return [code for path, content in self._python() for code in self._new_code(path, content)]

    def new_code_of_files(self) -> list[bytes]:
        """Return the lines of `new_code`, those of each file together."""
        return [b"".join(self._new_code(path, content)) for path, content in self._python()]

    def _new_code(self, path: str, content: bytes) -> list[bytes]:
        old = self.before[path] or b""
        known = {function.qualname: body_of(old, function) for function in find_functions(path, old)[0]}
        changed = changed_functions(path, old, content)
        code = [_added(known.get(function.qualname, b""), body_of(content, function)) for function in changed]
        return code or [_added(old, content)]

    def added_at(self, path: str, line: int) -> bool:
        """Return whether it adds a line (1-based) of one of its files."""
        if path not in self.after:
            return False
        lines = split_lines(self.after[path])
        return 0 < line <= len(lines) and lines[line - 1] not in split_lines(self.before[path] or b"")

    def _python(self) -> list[tuple[str, bytes]]:
        return [(path, content) for path, content in self.after.items() if path.endswith(".py")]


def change_of(paths: Iterable[str], parent: Path, tree: Path, layout: RepositoryLayout) -> CodeChange:
    """Compare files of the trees before and after a commit.

    Args:
        paths: POSIX paths that the commit touches.
        layout: of the tree after it.

    Raises:
        NoTaskError: it removes or moves code, or changes no code or no tests.
    """
    before: dict[str, bytes | None] = {}
    after: dict[str, bytes] = {}
    tests: list[str] = []
    news: list[str] = []
    for path in sorted(paths):
        old, new = _content(parent / path), _content(tree / path)
        if old == new:
            continue
        code = below(path, layout.packages)
        if is_among_tests(path, layout.tests):
            tests += [path] if new is not None else []
        elif new is None:
            if code or (path.endswith(".py") and not is_example(path, layout.tests)):
                raise NoTaskError("it removes or moves code, which a task cannot ask for", path)
        elif code:
            before[path], after[path] = old, new
        elif _is_news(path):
            news += _added(old or b"", new).decode(errors="replace").splitlines()
    if not any(path.endswith(".py") for path in after):
        raise NoTaskError("it changes no Python file of the project's packages")
    if not tests:
        raise NoTaskError("it adds and changes no tests")
    files = tuple(path for path in tests if is_test_file(path))
    return CodeChange(before=before, after=after, tests=files, helpers=len(files) < len(tests), news=tuple(news))


def _is_news(path: str) -> bool:
    *folders, name = path.split("/")
    stem, dot, ending = name.rpartition(".")
    text = f"{dot}{ending}".lower() in _TEXTS if stem else True
    return text and (_NEWS.fullmatch(path) is not None or bool(_NEWS_FOLDERS.intersection(folder.lower() for folder in folders)))


def _added(old: bytes, new: bytes) -> bytes:
    """Return the lines of `new` that `old` does not have anywhere."""
    known = frozenset(split_lines(old))
    return b"".join(line for line in split_lines(new) if line not in known)


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None
