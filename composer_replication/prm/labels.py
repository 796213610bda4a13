"""Labels of steps: from the outcome of siblings, teachers' votes, or a file.

Labels are probabilities that a step is good, by trajectory id and turn (0-based).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from composer_replication.actions.calls import Call, canonical_action, render_action
from composer_replication.observe import files
from composer_replication.prm.data import step_turns, task_of
from composer_replication.teachers import TeacherAnswer, Vote, cast_vote
from composer_replication.teachers.mining.pair_mining import scene_of, student_action
from composer_replication.teachers.rewards import weighted_reward
from composer_replication.traces import TraceState, state_id, states_from_traces, states_from_trajectories
from composer_replication.traces.recorder import RAW
from composer_replication.types import Trajectory, Unscored, from_json
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Trace, TraceTurn, Transcript, TranscriptTurn

StepLabels: TypeAlias = dict[str, dict[int, float]]
"""Trajectory id -> turn -> label."""

_WRITE = 'write {"trajectory_id": "...", "turn": 0, "label": 1}, or name the answers.jsonl of `composer replay`'


def outcome_labels(transcripts: Sequence[Trajectory | Trace]) -> StepLabels:
    """Label steps by the outcomes of the trajectories that begin with the same actions: the share of them with reward 1, which is
    Math-Shepherd's soft estimate of a step's quality (arXiv 2312.08935, section 3.3).

    Its completions are sampled from the step; here they are the siblings, all transcripts of a task, whose canonical actions
    up to and including the step are the same, the transcript itself among them. Without a reward they say nothing.
    """
    outcomes: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for transcript in transcripts:
        if isinstance(transcript.reward, int | float):
            for prefix in _prefixes(transcript):
                outcomes[prefix].append(float(transcript.reward == 1.0))
    labels: StepLabels = {}
    for transcript in transcripts:
        steps = step_turns(transcript)
        for turn, prefix in enumerate(_prefixes(transcript)):
            seen = outcomes.get(prefix, [])
            if turn in steps and seen:
                labels.setdefault(transcript.trajectory_id, {})[turn] = sum(seen) / len(seen)
    return labels


def _prefixes(transcript: Transcript) -> Iterator[tuple[str, ...]]:
    """Yield task and canonical actions up to and including each turn."""
    prefix: tuple[str, ...] = (task_of(transcript),)
    for turn in transcript.turns:
        prefix = (*prefix, canonical_turn(turn))
        yield prefix


def canonical_turn(turn: TranscriptTurn) -> str:
    """Return a turn's action in canonical form; with a call that could not be parsed it is the turn's text and calls as they
    are."""
    if any(call.error is not None for call in turn.tool_calls):
        raw = turn.details.get(RAW, {}) if isinstance(turn, TraceTurn) else {}
        calls = [[call.name, dict(call.arguments), raw.get(call.call_id)] for call in turn.tool_calls]
        return json.dumps([turn.text.strip(), calls], sort_keys=True)
    return canonical_action(turn.text, [Call(c.name, c.arguments) for c in turn.tool_calls])


def vote_labels(
    transcripts: Sequence[Transcript],
    votes: Mapping[tuple[str, int], Sequence[Vote]],
    *,
    weights: Mapping[str, float] | None = None,
) -> StepLabels:
    """Label steps by teachers' votes: the share for the action the student took (`teachers.rewards.weighted_reward`).

    Where the step's context shows files, or its actions are written in text, actions are compared as for pairs; elsewhere by
    their canonical strings.

    Args:
        votes: by trajectory id and turn. A step without votes, or where too much is undecided, gets no label.
        weights: by teacher, 1 for those not named.

    Raises:
        ConfigError: there are votes on a turn that does not exist, or a weight is negative.
    """
    known = {t.trajectory_id: t for t in transcripts}
    named = known.keys() & {name for name, _ in votes}
    states = {state["state_id"]: state for name in named for state in _states(known[name])}
    labels: StepLabels = {}
    for (name, turn), cast in votes.items():
        if name not in known or not 0 <= turn < len(known[name].turns):
            raise ConfigError(
                f"there are votes on turn {turn} of {name!r}, which no trace has", fix="give the traces they are about"
            )
        state = states.get(state_id(name, turn))
        own = _action(known[name].turns[turn]) if state is None else student_action(state)
        scene = None if state is None else scene_of(state)
        tells = scene is not None and (scene.files or scene.text_actions)
        reward = weighted_reward(cast, own, weights=weights or {}, scene=scene if tells else None)
        if not isinstance(reward, Unscored):
            labels.setdefault(name, {})[turn] = reward
    return labels


def _states(transcript: Transcript) -> list[TraceState]:
    """Return its turns whose context is known."""
    if isinstance(transcript, Trajectory):
        return states_from_trajectories([transcript])
    return states_from_traces([transcript]) if isinstance(transcript, Trace) else []


def _action(turn: TranscriptTurn) -> str:
    """Return a turn's action as text; with a call that could not be parsed it is the turn's text."""
    if any(call.error is not None for call in turn.tool_calls):
        return turn.text
    return render_action(turn.text, [Call(c.name, c.arguments) for c in turn.tool_calls])


def read_labels(path: Path, transcripts: Sequence[Transcript]) -> StepLabels:
    """Read labels from a JSONL file. A line is either `{"trajectory_id", "turn", "label"}`, or a teacher's answer to the state
    before a turn, as in the `answers.jsonl` of `composer replay`; those of one turn are its votes (`vote_labels`).

    Raises:
        ConfigError: there is no such file, it labels no step, a line is neither, a step is labelled twice, or a line is about no
            trace.
        StorageError: the file is damaged.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", fix='name a JSONL file of labels or answers, or say "outcome"')
    number = 0
    states = {state_id(t.trajectory_id, i): (t, i) for t in transcripts for i in range(len(t.turns))}
    labels: StepLabels = {}
    votes: defaultdict[tuple[str, int], list[Vote]] = defaultdict(list)
    for number, line in enumerate(files.read_lines(path), start=1):
        try:
            state, known = _read(line)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path}, line {number}: no label ({type(error).__name__}: {error})", fix=_WRITE) from error
        if state not in states:
            raise ConfigError(
                f"{path}, line {number}: no trace has the state {state!r}", fix="give the traces the lines are about"
            )
        transcript, turn = states[state]
        step = (transcript.trajectory_id, turn)
        if turn in labels.get(step[0], {}) or (isinstance(known, float) and step in votes):
            raise ConfigError(f"{path}, line {number}: {state!r} is labelled already", fix="leave one of the two")
        if isinstance(known, float):
            labels.setdefault(step[0], {})[turn] = known
            continue
        vote = cast_vote(known, transcript.tools)
        votes[step] += [vote] if isinstance(vote, Vote) else []
    for name, found in vote_labels(transcripts, votes).items():
        labels.setdefault(name, {}).update(found)
    if not labels:
        what = f"none of its {number} lines is a vote on a step" if number else "it is empty"
        raise ConfigError(f"{path} labels no step: {what}", fix=_WRITE)
    return labels


def _read(line: Any) -> tuple[str, float | TeacherAnswer]:
    """Return a line's state, and its label or answer. Raises LookupError, TypeError or ValueError."""
    if "question_id" in line:
        answer = from_json(TeacherAnswer, line)
        return answer.question_id, answer
    name, turn = line["trajectory_id"], line["turn"]
    if not isinstance(name, str) or isinstance(turn, bool) or not isinstance(turn, int):
        raise TypeError("trajectory_id is a text and turn a whole number")
    return state_id(name, turn), float(line["label"])
