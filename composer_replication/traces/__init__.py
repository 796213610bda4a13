"""Traces: logs of any agent, and our own trajectories, as the states that teachers re-answer."""

from __future__ import annotations

from composer_replication.traces.atif_write import atif_from_trace, write_atif
from composer_replication.traces.importing import Import, import_traces
from composer_replication.traces.own import states_from_trajectories, trace_from_trajectory
from composer_replication.traces.reader import Reader, reader_for, readers
from composer_replication.traces.redact import Redactor
from composer_replication.traces.source import Dropped, Problem
from composer_replication.traces.states import TraceState, state_id, states_from_traces
from composer_replication.traces.store import read_traces, write_traces

__all__ = [
    "Dropped",
    "Import",
    "Problem",
    "Reader",
    "Redactor",
    "TraceState",
    "atif_from_trace",
    "import_traces",
    "read_traces",
    "reader_for",
    "readers",
    "state_id",
    "states_from_traces",
    "states_from_trajectories",
    "trace_from_trajectory",
    "write_atif",
    "write_traces",
]
