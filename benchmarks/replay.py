"""What trace replay costs and what it finds, a section at a time.

Usage: `python benchmarks/replay.py [SECTION ...]`, all sections by default. A section is a module with `measure()`, which prints
what it sees and returns its figures; the last line is one JSON object with those of every section.
"""

from __future__ import annotations

import sys

import replay_overhead
from measuring import emit

SECTIONS = {"overhead": replay_overhead.measure}


def main(names: list[str]) -> None:
    """Measure and print."""
    figures = {}
    for name in names or SECTIONS:
        print(f"== {name}", flush=True)
        figures[name] = SECTIONS[name]()
    emit("replay", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
