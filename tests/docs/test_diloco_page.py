"""docs/diloco.md and docs/outer_loop.md say what the benchmarks of replicas found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PAGE = (DOCS / "diloco.md").read_text("utf-8")
WAITING = (DOCS / "outer_loop.md").read_text("utf-8")
LOSS = json.loads((DOCS / "figures" / "diloco_loss.json").read_text("utf-8"))
STALL = json.loads((DOCS / "figures" / "diloco_stall.json").read_text("utf-8"))
RUNS = {(row["method"], row["inner"], row["replicas"]): row for row in LOSS["rows"]}
METHODS = list(dict.fromkeys(row["method"] for row in LOSS["rows"] if row["replicas"]))


@pytest.mark.parametrize("method", METHODS)
def test_the_losses_are_those_that_were_measured(method):
    found = [RUNS[method, inner, replicas] for inner in ("adamw", "muon") for replicas in (4, 8)]
    cells = [f"{one['gap']:.3f} ± {one['gap_sd']:.3f}" for one in found] + [f"{one['times_less']:.1f}" for one in found[:2]]
    assert PAGE.count(f"| {' | '.join([method, *cells])} |\n") == 1


@pytest.mark.parametrize("inner", ["adamw", "muon"])
def test_the_losses_of_data_parallel_are_those_that_were_measured(inner):
    plain = RUNS["data parallel", inner, 0]
    name = {"adamw": "AdamW", "muon": "Muon"}[inner]
    assert re.search(rf"{plain['loss']:.3f} ± {plain['loss_sd']:.3f} with\s+{name}", PAGE)
    assert f"{LOSS['lr'][inner]:g} for {name}" in PAGE


@pytest.mark.parametrize("one", STALL["rows"], ids=lambda one: f"{one['replicas']} {one['sequences']} {one['mode']}")
def test_what_is_waited_is_what_was_measured(one):
    shares = [f"{100 * one[name]:.2f} %" for name in ("stall_share", "outer_share")]
    times = [f"{1000 * one[name]:.0f}" for name in ("round_s", "step_s")]
    row = " | ".join([str(one["replicas"]), str(one["sequences"]), one["mode"], *shares, *times, f"{one['wall_s']:.1f}"])
    assert WAITING.count(f"| {row} |\n") == 1
