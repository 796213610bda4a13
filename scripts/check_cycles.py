"""Find import cycles between files of the package, also inside rooms and behind TYPE_CHECKING. Exits with 1 and names them.

python scripts/check_cycles.py [PACKAGE FOLDER]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ("quickstart/projects",)
"""Folders of Python files that are data."""


def modules(package: Path) -> dict[str, Path]:
    """Return the package's modules by dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        if not any(inside.is_relative_to(folder) for folder in DATA):
            parts = [package.name, *inside.with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a file names in its imports, wherever they stand."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def first_cycle(package: Path) -> list[str]:
    """Return the modules of one cycle, the first named again at the end; empty when there is none."""
    known = modules(package)
    graph = {name: {other for other in imported(path, known) if other in known and other != name} for name, path in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def main(arguments: list[str]) -> int:
    """Check one package; the repository's own by default."""
    package = Path(arguments[0]) if arguments else ROOT / "composer_replication"
    cycle = first_cycle(package)
    if cycle:
        print("these files import each other: " + " -> ".join(reversed(cycle)))
        return 1
    print(f"no import cycles between {len(modules(package))} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
