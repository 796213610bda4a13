"""The package `atif`, a validator of that format by others: it accepts what is written here."""

from __future__ import annotations

import atif
from hypothesis import given
from made_traces import traces
from oracle import FIXTURES

from composer_replication.traces import atif_from_trace, reader_for
from composer_replication.types.transcript import Trace


@given(traces())
def test_any_trace_is_valid(trace):
    atif.Trajectory.model_validate(atif_from_trace(trace))


def test_every_recorded_session_is_valid():
    valid = 0
    for name, pattern in (
        ("codex", "codex/*.jsonl"),
        ("mini-swe-agent", "mini_swe_agent/*.traj.json"),
        ("swe-agent", "swe_agent/*"),
    ):
        for path in FIXTURES.glob(pattern):
            for trace in reader_for(name).read(path):
                if isinstance(trace, Trace):
                    atif.Trajectory.model_validate(atif_from_trace(trace))
                    valid += 1
    assert valid >= 10
