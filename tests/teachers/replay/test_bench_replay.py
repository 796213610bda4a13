"""The sections of `make bench-replay` that need no quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "benchmarks" / "replay.py"


@pytest.mark.slow
def test_the_last_line_has_the_gates_curve_and_the_agreement():
    done = subprocess.run([sys.executable, str(BENCH), "gate", "agreement"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    gate, agreement = found["gate"], found["agreement"]
    assert found["bench"] == "replay"
    assert gate["saved_at_90_kept"]["entropy alone"] < gate["saved_at_90_kept"]["cascade"] < gate["saved_at_90_kept"]["oracle"]
    costs, kept = zip(*gate["curves"]["cascade"], strict=True)
    assert list(costs) == sorted(costs)
    assert 0.0 < kept[0] < kept[-1] <= 1.0
    assert (agreement["states"], agreement["false_same"], agreement["false_diff"]) == (500, 0, 0)
    for mistakes in agreement["votes"].values():
        assert mistakes["cascade"]["precision"] > mistakes["exact"]["precision"]
