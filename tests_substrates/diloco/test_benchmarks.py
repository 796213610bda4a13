"""The benchmarks of replicas, at their smallest: they run, count and go on where they were."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def ran(name, *arguments):
    """Output and last line."""
    done = subprocess.run([sys.executable, BENCHMARKS / name, *map(str, arguments)], capture_output=True, text=True)
    assert done.stdout.endswith("}\n"), done.stdout + done.stderr
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


def test_loss_and_traffic_of_replicas_beside_data_parallel(tmp_path):
    size = ["--steps", 30, "--batch", 4, "--seeds", 2, "--replicas", 2, "--inner", "adamw", "--rates", 4e-3, "--workers", 1]
    files = ["--cells", tmp_path / "cells.jsonl", "--write", tmp_path / "found.json"]
    _, last = ran("diloco_loss.py", *size, *files, "--methods", "fp32", "int8", "int8 streamed")
    rows = {row["method"]: row for row in json.loads((tmp_path / "found.json").read_text())["rows"]}
    assert list(rows) == ["data parallel", "fp32", "int8", "int8 streamed"]
    assert 2.0 < rows["data parallel"]["loss"] < 4.6  # a guess among 128 bytes costs 4.85
    assert abs(rows["int8"]["to_fp32"]) < 0.05
    assert rows["fp32"]["times_less"] == pytest.approx(7.5, rel=0.02)
    assert rows["int8"]["times_less"] == pytest.approx(29.77, rel=0.03) == last["int8_times_less"]
    done = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert len(done) == 2 + 3 * 2
    output, again = ran("diloco_loss.py", *size, *files, "--methods", "fp32", "int8", "int4")
    assert "1/2 after" in output
    assert again["int8_gap_to_fp32"] == last["int8_gap_to_fp32"]


def test_what_replicas_wait_for_with_overlap_and_without(tmp_path):
    size = ["--replicas", 2, "--steps", 45, "--sequences", 2, "--width", 32, "--repeats", 1]
    _, last = ran("diloco_stall.py", *size, "--write", tmp_path / "found.json")
    rows = {row["mode"]: row for row in json.loads((tmp_path / "found.json").read_text())["rows"]}
    assert rows["no exchange"]["stall_s"] == rows["no exchange"]["round_s"] == 0
    for mode in ("plain", "streaming"):
        assert 0 < rows[mode]["stall_s"] < rows[mode]["outer_share"] * rows[mode]["wall_s"] + 0.05
        assert rows[mode]["round_s"] > 0
    assert last["streaming_stall_share"] == rows["streaming"]["stall_share"]
