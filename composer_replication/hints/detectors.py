"""Which turn of a trajectory went wrong, told from what the environment answered.

A finding names the turn whose ACTION was wrong, which is not always the turn where it showed: failing tests blame the last
change of the workspace before them, not the call that ran them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from composer_replication.actions import canonical_call
from composer_replication.types import Finding, ToolCall, ToolResult, Trajectory

__all__ = ["BUILTIN_DETECTORS", "Detector", "FailedGrade", "FailedRun", "FailedStatus", "RepeatedAction", "detect", "first_error"]

_WRITES = frozenset({"apply_patch", "edit_file", "write_file"})
_RUNS = frozenset({"run_tests"})


class Detector(Protocol):
    """Finds one or more kinds of error in a finished trajectory."""

    @property
    def kinds(self) -> tuple[str, ...]: ...

    def detect(self, trajectory: Trajectory) -> Iterable[Finding]: ...


@dataclass(frozen=True, slots=True)
class _Step:
    """One tool result in the order the environment gave them, with the call it answers."""

    turn: int
    call: ToolCall | None
    result: ToolResult

    @property
    def changed_workspace(self) -> bool:
        by_shell = self.result.name == "bash" and bool(self.result.details.get("changed"))
        return by_shell or (self.result.status == "ok" and self.result.name in _WRITES)


def _steps(trajectory: Trajectory) -> Iterator[_Step]:
    for index, turn in enumerate(trajectory.turns):
        calls = {call.call_id: call for call in turn.tool_calls}
        for result in turn.results:
            yield _Step(index, calls.get(result.call_id), result)


def _evidence(step: _Step) -> dict[str, Any]:
    """What a hint generator may need: the tool, its arguments, what the environment said and its structured details."""
    call = step.call
    return {
        **step.result.details,
        "tool": step.result.name,
        "arguments": dict(call.arguments) if call is not None else {},
        "error": call.error if call is not None else None,
        "observation": step.result.content,
        "revealed_by": step.turn,
    }


@dataclass(frozen=True, slots=True)
class FailedStatus:
    """The environment refused the call, and said so in the result's status. The call's own turn went wrong."""

    kinds: tuple[str, ...] = (
        "unknown_tool",
        "malformed_call",
        "invalid_arguments",
        "edit_not_applied",
        "path_not_found",
        "path_not_editable",
    )

    def detect(self, trajectory: Trajectory) -> Iterator[Finding]:
        for step in _steps(trajectory):
            if step.result.status in self.kinds:
                yield Finding(kind=step.result.status, turn=step.turn, evidence=_evidence(step))


@dataclass(frozen=True, slots=True)
class FailedRun:
    """Code that was run failed: the last change of the workspace before it went wrong.

    A failing run before any change says how the task began and is nobody's error; a call that timed out or ran out of memory
    before any change, or without running code, is its own turn's error.
    """

    kinds: tuple[str, ...] = ("tests_failed", "timeout", "out_of_memory")

    def detect(self, trajectory: Trajectory) -> Iterator[Finding]:
        changed: int | None = None
        found: set[tuple[str, int]] = set()
        for step in _steps(trajectory):
            if step.changed_workspace:
                changed = step.turn
            status = step.result.status
            if status not in self.kinds or (changed is None and status == "tests_failed"):
                continue
            turn = step.turn if changed is None or step.result.name not in _RUNS else changed
            if (status, turn) not in found:
                found.add((status, turn))
                yield Finding(kind=status, turn=turn, evidence=_evidence(step))


@dataclass(frozen=True, slots=True)
class FailedGrade:
    """The grader gave 0 and the agent never saw its last change fail: that change went wrong.

    The evidence holds nothing the grader knows beyond the zero; the agent could not have seen it.
    """

    kinds: tuple[str, ...] = ("tests_failed",)

    def detect(self, trajectory: Trajectory) -> Iterator[Finding]:
        if trajectory.reward != 0.0:
            return
        changed: int | None = None
        seen_failing = False
        for step in _steps(trajectory):
            if step.changed_workspace:
                changed, seen_failing = step.turn, False
            elif step.result.name in _RUNS and step.result.status != "ok":
                seen_failing = True
        if changed is not None and not seen_failing:
            yield Finding(kind="tests_failed", turn=changed, evidence={"revealed_by": len(trajectory.turns) - 1})


@dataclass(frozen=True, slots=True)
class RepeatedAction:
    """The same canonical call twice or more in a row. One finding per run of repeats, at its first repeat."""

    kinds: tuple[str, ...] = ("repeated_action",)

    def detect(self, trajectory: Trajectory) -> Iterator[Finding]:
        previous = ""
        repeats = 0
        for step in _steps(trajectory):
            call = step.call
            if call is None or call.error is not None:
                previous, repeats = "", 0
                continue
            current = canonical_call(call.name, call.arguments)
            repeats = repeats + 1 if current == previous else 0
            previous = current
            if repeats == 1:
                yield Finding(kind="repeated_action", turn=step.turn, evidence=_evidence(step))


BUILTIN_DETECTORS: tuple[Detector, ...] = (FailedStatus(), FailedRun(), FailedGrade(), RepeatedAction())


def detect(trajectory: Trajectory, detectors: Sequence[Detector] = BUILTIN_DETECTORS) -> list[Finding]:
    """All findings, earliest turn first; findings of one turn keep the order of `detectors`."""
    findings = [finding for detector in detectors for finding in detector.detect(trajectory)]
    return sorted(findings, key=lambda finding: finding.turn)


def first_error(findings: Sequence[Finding], *, limit: int = 1) -> list[Finding]:
    """The first finding of each of the `limit` earliest error turns.

    Later errors are often consequences of the first, and a teacher's signal after a wrong turn is unreliable (SOD, arXiv
    2605.07725).
    """
    chosen: dict[int, Finding] = {}
    for finding in sorted(findings, key=lambda f: f.turn):
        if len(chosen) < limit or finding.turn in chosen:
            chosen.setdefault(finding.turn, finding)
    return list(chosen.values())
