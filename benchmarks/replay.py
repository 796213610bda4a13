"""What trace replay costs and what it finds, a section at a time.

Usage: `python benchmarks/replay.py [SECTION ...]`, all sections by default. A section prints what it sees and gives its figures;
the last line is one JSON object with those of every section.

    overhead    what the pool adds to a call, and what its ledger saves as a cache
    gate        what a gate saves and keeps, in one seed of the world as assumed (`gate.py`: three seeds, 25 worlds)
    agreement   how often agreement is found and right, on 500 states (`agreement.py`: 2,000)
"""

from __future__ import annotations

import sys
from functools import partial

import agreement
import gate
import replay_overhead
from measuring import emit

SECTIONS = {"overhead": replay_overhead.measure, "gate": gate.section, "agreement": partial(agreement.measure, 500)}


def main(names: list[str]) -> None:
    """Measure and print."""
    figures = {}
    for name in names or SECTIONS:
        print(f"== {name}", flush=True)
        figures[name] = SECTIONS[name]()
    emit("replay", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
