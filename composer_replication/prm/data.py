"""Traces as examples of token classification: what a model reads, and at which token each step is judged.

A step is one turn of the agent, judged at its last token: after everything the agent had seen and what it did, before the reply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from composer_replication.observe import files
from composer_replication.tokens import ChatRenderer, assistant_message
from composer_replication.traces.recorder import INCOMPLETE
from composer_replication.traces.segments import reply_between
from composer_replication.traces.store import trace_from_json
from composer_replication.types import Trajectory, from_json
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Trace, Transcript

IGNORED = -100.0
"""Label of a position that is not a judged step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTurn:
    """One judged turn."""

    turn: int
    """0-based turn of the trace."""
    end: int
    """Position of its last token in the example's `input_ids`."""
    label: float | None
    """Probability in [0, 1] that the step is good; None when it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A conversation up to the end of its last step."""

    trajectory_id: str
    task_id: str
    input_ids: tuple[int, ...]
    steps: tuple[JudgedTurn, ...]
    """Judged turns in the order of their ends."""

    def labels(self) -> list[float]:
        """Return one label per token [T]: a known step's at its last token, `IGNORED` everywhere else."""
        labels = [IGNORED] * len(self.input_ids)
        for step in self.steps:
            if step.label is not None:
                labels[step.end] = step.label
        return labels


def encode(transcript: Trajectory | Trace, renderer: ChatRenderer, labels: Mapping[int, float] | None = None) -> list[Example]:
    """Encode a trace as examples: one, or several where a foreign agent's context was rewritten between two turns.

    A trajectory's ids are taken as they are: what the policy sampled is never encoded again. A foreign trace, which has no ids,
    is written by the renderer's chat template.

    Args:
        labels: by turn (0-based); turns without one get None.

    Raises:
        ConfigError: the trajectory's prompt is not what the renderer makes of its messages, so its ids are another tokenizer's;
            or a label is for a turn that does not exist, sampled nothing or is incomplete, or it is outside of [0, 1].
    """
    known = labels or {}
    if isinstance(transcript, Trajectory):
        examples = _of_trajectory(transcript, renderer, known)
    else:
        examples = [e for e in _of_trace(transcript, renderer, known) if e.steps]
    judged = step_turns(transcript)
    for turn, label in known.items():
        if turn not in judged:
            raise ConfigError(
                f"{transcript.trajectory_id}: there is a label for turn {turn}, which does not exist or is not a step",
                fix="count turns from 0, and label those the agent wrote something in",
            )
        if not 0.0 <= label <= 1.0:
            raise ConfigError(
                f"{transcript.trajectory_id}: the label of turn {turn} is {label}",
                fix="give a probability from 0 (bad) to 1 (good)",
            )
    return examples


def step_turns(transcript: Trajectory | Trace) -> set[int]:
    """Return the turns that can be judged: those that sampled something, and whose context is complete in the log."""
    if isinstance(transcript, Trajectory):
        return {i for i, turn in enumerate(transcript.turns) if turn.action_ids}
    return {i for i, turn in enumerate(transcript.turns) if INCOMPLETE not in turn.details}


def _of_trajectory(trajectory: Trajectory, renderer: ChatRenderer, labels: Mapping[int, float]) -> list[Example]:
    if renderer.prompt_ids(trajectory.messages, trajectory.tools) != trajectory.prompt_ids:
        raise ConfigError(
            f"{trajectory.trajectory_id}: its token ids are those of another tokenizer or chat template",
            fix="take a model with the tokenizer of the policy that sampled it",
        )
    ids = list(trajectory.prompt_ids)
    steps: list[JudgedTurn] = []
    for index, turn in enumerate(trajectory.turns):
        ids += turn.action_ids
        if turn.action_ids:
            steps.append(JudgedTurn(turn=index, end=len(ids) - 1, label=labels.get(index)))
        ids += turn.observation_ids
    return _example(trajectory, ids, steps)


def _of_trace(trace: Trace, renderer: ChatRenderer, labels: Mapping[int, float]) -> Iterator[Example]:
    """Yield examples of a trace. Contexts that continue each other share one. A turn that saw more than its log has is read, and
    not judged."""
    ids: list[int] = []
    steps: list[JudgedTurn] = []
    judged = step_turns(trace)
    for index, turn in enumerate(trace.turns):
        reply = reply_between(trace.turns[index - 1], turn) if index else None
        if reply is None:
            yield from _example(trace, ids, steps)
            ids, steps = list(renderer.prompt_ids(turn.context, trace.tools)), []
        else:
            ids += renderer.delta_ids(reply, ended=True)
        ids += renderer.assistant_ids(assistant_message(turn.text, turn.tool_calls))
        if index in judged:
            steps.append(JudgedTurn(turn=index, end=len(ids) - 1, label=labels.get(index)))
    yield from _example(trace, ids, steps)


def _example(transcript: Trajectory | Trace, ids: Sequence[int], steps: Sequence[JudgedTurn]) -> list[Example]:
    """Make an example, None without a step. Nothing is read after the last one."""
    if not steps:
        return []
    kept = tuple(ids[: steps[-1].end + 1])
    return [Example(trajectory_id=transcript.trajectory_id, task_id=task_of(transcript), input_ids=kept, steps=tuple(steps))]


def task_of(transcript: Transcript) -> str:
    """Return its task. A transcript that names none, such as another agent's log, is a separate task: what it shares one with is
    unknown."""
    return transcript.task_id or transcript.trajectory_id


@dataclass(frozen=True, slots=True)
class Limit:
    """The position in a trace up to which steps are judged."""

    tokens: int
    whose: str
    """The setting it comes from."""

    def __str__(self) -> str:
        return f"{self.tokens} tokens ({self.whose})"

    def left_out(self, dropped: int, examples: Sequence[Example]) -> str:
        """Describe the steps that `fit` dropped of `examples`."""
        return f"{dropped} of {sum(len(e.steps) for e in examples)} steps end beyond {self} and are left out"


def fit(examples: Sequence[Example], max_tokens: int) -> tuple[list[Example], int]:
    """Return the examples cut after their last step that ends within `max_tokens`, and how many steps that left out.

    A causal model judges the steps that stay as before: it reads nothing after them.
    """
    kept: list[Example] = []
    dropped = 0
    for example in examples:
        steps = tuple(s for s in example.steps if s.end < max_tokens)
        dropped += len(example.steps) - len(steps)
        if steps:
            kept.append(replace(example, input_ids=example.input_ids[: steps[-1].end + 1], steps=steps))
    return kept, dropped


def held_out_tasks(task_ids: Sequence[str], share: float, *, seed: int = 0) -> frozenset[str]:
    """Choose a share of the tasks, at least one, by their ids: all traces of a task are on one side.

    Raises:
        ConfigError: fewer than two tasks, or a share outside of (0, 1).
    """
    tasks = sorted(set(task_ids), key=lambda task: hashlib.sha256(f"{seed}/{task}".encode()).digest())
    if len(tasks) < 2:
        raise ConfigError(
            f"the labelled traces are of {len(tasks)} task(s)", fix="give traces of at least two: one is held out to measure on"
        )
    if not 0.0 < share < 1.0:
        raise ConfigError(f"held_out is {share}", fix="give a share of the tasks between 0 and 1")
    return frozenset(tasks[: min(len(tasks) - 1, max(1, round(share * len(tasks))))])


def read_transcripts(path: Path) -> list[Trajectory | Trace]:
    """Read the trajectories and traces of a JSONL file, as `composer rollout --out` and training runs write the former, and
    `composer traces import --out` the latter.

    Raises:
        ConfigError: there is no such file, it holds none, a line is neither, or two have the same id.
        StorageError: the file is damaged.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", fix="name a JSONL file, such as RUN/trajectories/ARM/step_00001.jsonl")
    found: dict[str, Trajectory | Trace] = {}
    for number, line in enumerate(files.read_lines(path), start=1):
        try:
            transcript = trace_from_json(line) if "format" in line else from_json(Trajectory, line)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{path}, line {number}: no trajectory or trace ({type(error).__name__}: {error})",
                fix="give one per line, as `composer rollout --out` and `composer traces import --out` write them",
            ) from error
        if transcript.trajectory_id in found:
            raise ConfigError(
                f"{path}, line {number}: {transcript.trajectory_id!r} is there already",
                fix="put trajectories of different steps or arms with the same ids in separate files",
            )
        found[transcript.trajectory_id] = transcript
    if not found:
        raise ConfigError(f"{path} holds no trajectory", fix="name a file with one per line")
    return list(found.values())
