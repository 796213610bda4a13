"""Which files of this package grade a task: the sandbox, and what it imports. Standard library only, so they work anywhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PACKAGE", "grader_files"]

PACKAGE = Path(__file__).resolve().parents[2]
_WHOLE = "sandbox"
_LEFT_OUT = frozenset({"sandbox/remote.py", "sandbox/remote_server.py"})
"""Needs a library, and is imported only where a box on another machine is asked for."""


def grader_files() -> tuple[str, ...]:
    """Paths relative to `PACKAGE`, sorted."""
    found = {"__init__.py"}
    pending = [path.relative_to(PACKAGE).as_posix() for path in (PACKAGE / _WHOLE).rglob("*.py")]
    while pending:
        path = pending.pop()
        if path not in found | _LEFT_OUT:
            found.add(path)
            pending += _imported_by(PACKAGE / path)
    return tuple(sorted(found))


def _imported_by(file: Path) -> Iterator[str]:
    """The package's own files that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_bytes())):
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
