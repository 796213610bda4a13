"""Traces: frozen trajectories as the states that teachers re-answer."""

from __future__ import annotations

from composer_replication.traces.own import state_id, states_from_trajectories
from composer_replication.traces.states import TraceState

__all__ = ["TraceState", "state_id", "states_from_trajectories"]
