"""A project's parts, the same for every language."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from composer_replication.types.errors import SourceError


class NoTestsError(SourceError):
    """A project has no tests that its language would find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryLayout:
    """A project's parts, as POSIX paths relative to the root."""

    packages: tuple[str, ...]
    """Package folders and single modules whose functions may be deleted."""
    tests: tuple[str, ...]
    """Folders and files that the runner of tests is given."""
    python_path: tuple[str, ...]
    """Folders put on `sys.path` for the tests; of no meaning outside Python."""
    sources: tuple[str, ...]
    """Every source file of the packages that is not a test."""

    imports: tuple[str, ...]
    """The packages' names as tests import them."""
    editable: tuple[str, ...]
    """Patterns for `TaskSpec.editable`: `FOLDER/*.py` where all its files are sources, single files elsewhere."""


def below(paths: Iterable[str], folders: Sequence[str]) -> set[str]:
    """Return the paths that lie in any of the folders."""
    return {path for path in paths if path.startswith(tuple(f"{folder}/" for folder in folders))}
