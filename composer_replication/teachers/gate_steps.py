"""The view that a gate and a plan have of trace states: sizes, which prompts continue which, and the evidence for asking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from composer_replication.teachers import ReplayStep
from composer_replication.teachers.teacher import prompt_bytes
from composer_replication.traces import TraceState
from composer_replication.types import Finding


def steps_of(states: Sequence[TraceState]) -> list[ReplayStep]:
    """Return one step for every state, in the same order. A state without a `trajectory_id` is a separate trace."""
    steps: list[ReplayStep] = []
    latest: dict[str, TraceState] = {}
    for state in states:
        trace = state.get("trajectory_id", "") or state["state_id"]
        steps.append(
            ReplayStep(
                state_id=state["state_id"],
                trace_id=trace,
                prompt_bytes=prompt_bytes(state["messages"], state.get("tools", ())),
                extends=_continues(latest.get(trace), state),
                entropy=state.get("student_entropy"),
                findings=tuple(state.get("findings", ())),
                score=state.get("student_score"),
            )
        )
        latest[trace] = state
    return steps


def with_evidence(
    states: Sequence[TraceState],
    *,
    findings: Mapping[str, Sequence[Finding]] | None = None,
    entropies: Mapping[str, Sequence[float | None]] | None = None,
    scores: Mapping[str, Sequence[float | None]] | None = None,
) -> list[TraceState]:
    """Return copies of the states with the evidence for asking about them.

    Args:
        findings: by trajectory id, as `composer_replication.hints.detect` gives them for each transcript.
        entropies: by trajectory id, as `composer_replication.loss.forward.action_entropies` gives them.
        scores: by trajectory id, one per turn: the probability that it is good.
    """
    marked: list[TraceState] = []
    for state in states:
        copy = state.copy()
        trajectory = state.get("trajectory_id", "")
        if findings is not None and trajectory in findings:
            copy["findings"] = [f.kind for f in findings[trajectory] if f.turn == state["turn"]]
        entropy = entropies[trajectory][state["turn"]] if entropies is not None and trajectory in entropies else None
        if entropy is not None:
            copy["student_entropy"] = entropy
        score = scores[trajectory][state["turn"]] if scores is not None and trajectory in scores else None
        if score is not None:
            copy["student_score"] = score
        marked.append(copy)
    return marked


def _continues(before: TraceState | None, state: TraceState) -> bool:
    if before is None or before.get("tools", []) != state.get("tools", []):
        return False
    return state["messages"][: len(before["messages"])] == before["messages"]
