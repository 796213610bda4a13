"""Find the files of this package that a module needs. Standard library only, so that the result works anywhere."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from composer_replication.types.syntax import parse_module

PACKAGE = Path(__file__).resolve().parents[2]
"""The folder of `composer_replication`."""


def import_closure(roots: Collection[str], *, packages: bool, left_out: Collection[str] = ()) -> tuple[str, ...]:
    """Return the files that `roots` import, directly or not, themselves included; paths relative to `PACKAGE`, sorted.

    Imports for type checkers only do not count.

    Args:
        packages: also follow the `__init__.py` of every package on the way. Without it they are left out, for a copy in which
            these files are empty.
        left_out: files that are neither returned nor followed.
    """
    found: set[str] = set()
    pending = list(roots)
    while pending:
        path = pending.pop()
        if path in found or path in left_out:
            continue
        found.add(path)
        parents = [str(folder / "__init__.py") for folder in PurePosixPath(path).parents] if packages else []
        imported = (name for name in _imported_by(PACKAGE / path) if packages or not name.endswith("__init__.py"))
        pending += [*parents, *imported]
    return tuple(sorted(found))


def _imported_by(file: Path) -> Iterator[str]:
    """Yield the package's own files that a file imports when it runs, wherever in it."""
    for node in _running(parse_module(file.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package, _, module = name.partition(".")
            for path in (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py"):
                if package == PACKAGE.name and (PACKAGE / path).is_file():
                    yield path


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a syntax tree but those below `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield node
            yield from _running(node)
