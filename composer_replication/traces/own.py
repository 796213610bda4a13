"""Trajectories that this framework rolled out itself: their states, and the same as traces, token ids and log-probs included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer_replication.tokens import parse_tool_calls
from composer_replication.traces.reader import Item
from composer_replication.traces.recorder import INCOMPLETE, ConversationRecorder, assistant
from composer_replication.traces.schema import TrajectoryShape, check
from composer_replication.traces.source import Problem, UnreadableError, holds, objects
from composer_replication.traces.states import SAMPLED, TraceState, states_from_traces
from composer_replication.traces.store import trace_from_json
from composer_replication.types import Trajectory, Turn, from_json, to_json
from composer_replication.types.transcript import Trace


def states_from_trajectories(trajectories: Sequence[Trajectory]) -> list[TraceState]:
    """Return one state per turn that sampled anything, in order: opening messages, earlier turns with results, the next action.

    A turn with a call that could not be parsed appears with its raw text.
    """
    return states_from_traces(trace_from_trajectory(t) for t in trajectories)


def trace_from_trajectory(trajectory: Trajectory) -> Trace:
    """Return the trajectory as a trace; what the policy sampled is in its turns' details: `token_ids`, `logprobs`,
    `sampled_text`."""
    recorder = ConversationRecorder(trajectory.messages)
    for index, turn in enumerate(trajectory.turns):
        content, _ = parse_tool_calls(turn.text, turn=index)
        understood = any(call.error is None for call in turn.tool_calls)
        text = content if understood or not turn.tool_calls else turn.text.strip()
        shown = tuple(call for call in turn.tool_calls if call.error is None)
        calls, spoken = [(call, None) for call in turn.tool_calls], assistant(text, shown, {})
        recorder.answer(text, calls, details=_ids(turn), message=spoken, whole=True)  # we know what we sent
        for result in turn.results:
            recorder.result(result)
    return Trace(
        trajectory_id=trajectory.trajectory_id,
        format=READER.name,
        turns=recorder.turns(),
        messages=trajectory.messages,
        tools=trajectory.tools,
        task_id=trajectory.task_id,
        agent="composer-replication",
        reward=trajectory.reward,
        details=_whole(trajectory),
    )


def _ids(turn: Turn) -> dict[str, Any]:
    ids = {
        "token_ids": list(turn.action_ids),
        "logprobs": list(turn.logprobs),
        "observation_ids": list(turn.observation_ids),
        SAMPLED: turn.text,
    }
    return ids if turn.action_ids else {**ids, INCOMPLETE: "nothing was sampled"}


def _whole(trajectory: Trajectory) -> dict[str, Any]:
    kept = ("arm", "policy_version", "prompt_ids", "stop_reason", "temperature", "grade")
    return {name: to_json(getattr(trajectory, name)) for name in kept}


class OwnReader:
    """A run directory, its files of trajectories, and the `traces.jsonl` of an earlier import."""

    name = "composer"

    def sniff(self, path: Path) -> bool:
        if path.is_dir():
            return (path / "trajectories").is_dir() and (path / "metrics.jsonl").is_file()
        return holds(path, lambda record: {"trajectory_id", "turns"} <= record.keys())

    def read(self, path: Path) -> Iterator[Item]:
        """Yield the traces of a run, called `ARM/FILE/ID`, e.g. `full/step_00003/3/shop-total/0`."""
        if not path.is_dir():
            yield from _file(path, "")
            return
        for file in sorted((path / "trajectories").glob("*/*.jsonl")):
            if not file.name.endswith((".hints.jsonl", ".reattempts.jsonl")) and file.name != "pairs.jsonl":
                yield from _file(file, f"{file.parent.name}/{file.stem}/")


def _file(path: Path, prefix: str) -> Iterator[Item]:
    for item in objects(path):
        if isinstance(item, Problem):
            yield item
            continue
        number, record = item
        try:
            trace = trace_from_json(record) if "format" in record else _trace(record)
        except UnreadableError as error:
            yield Problem(path, f"not a trajectory of this release: {error}", number)
            continue
        yield replace(trace, trajectory_id=prefix + trace.trajectory_id)


def _trace(record: dict[str, Any]) -> Trace:
    check(TrajectoryShape, record)
    try:
        return trace_from_trajectory(from_json(Trajectory, record))
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # its grade, its reason to stop, more fields
        raise UnreadableError(f"{type(error).__name__}: {error}"[:200]) from error


READER = OwnReader()
