"""Where the label of a step comes from: the outcome of siblings, teachers' votes, or a file.

Labels are probabilities that a step is good, by trajectory id and turn (0-based).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from composer_replication.actions import Call, canonical_action, canonical_text, parse_action
from composer_replication.errors import ConfigError
from composer_replication.observe import files
from composer_replication.teachers import Vote
from composer_replication.teachers.rewards import weighted_reward
from composer_replication.transcript import Transcript, TranscriptTurn
from composer_replication.types import Trajectory, Unscored

__all__ = ["StepLabels", "canonical_turn", "outcome_labels", "read_labels", "vote_labels"]

StepLabels: TypeAlias = dict[str, dict[int, float]]
"""Trajectory id -> turn -> label."""


def outcome_labels(
    trajectories: Sequence[Trajectory], *, estimate: Literal["soft", "hard"] = "soft", at_least: int = 1
) -> StepLabels:
    """Labels from what became of the trajectories that begin with the same actions, as Math-Shepherd estimates a step's quality
    (arXiv 2312.08935, section 3.3): `soft` is the share of them with reward 1, `hard` whether one has.

    Its completions are sampled from the step; here they are the siblings, all trajectories of a task, whose canonical actions
    up to and including the step are the same, the trajectory itself among them. Unscored ones say nothing.

    Args:
        at_least: fewest scored siblings that make a label.
    """
    outcomes: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for trajectory in trajectories:
        if not isinstance(trajectory.reward, Unscored):
            for prefix in _prefixes(trajectory):
                outcomes[prefix].append(float(trajectory.reward == 1.0))
    labels: StepLabels = {}
    for trajectory in trajectories:
        for turn, prefix in enumerate(_prefixes(trajectory)):
            seen = outcomes.get(prefix, [])
            if trajectory.turns[turn].action_ids and len(seen) >= max(1, at_least):
                value = max(seen) if estimate == "hard" else sum(seen) / len(seen)
                labels.setdefault(trajectory.trajectory_id, {})[turn] = value
    return labels


def _prefixes(trajectory: Trajectory) -> Iterator[tuple[str, ...]]:
    """Task and canonical actions up to and including each turn."""
    prefix: tuple[str, ...] = (trajectory.task_id,)
    for turn in trajectory.turns:
        prefix = (*prefix, canonical_turn(turn))
        yield prefix


def canonical_turn(turn: TranscriptTurn) -> str:
    """A turn's action in canonical form; with a call that could not be parsed it is the turn's text."""
    if any(call.error is not None for call in turn.tool_calls):
        return canonical_text(turn.text)
    return canonical_action(turn.text, [Call(c.name, c.arguments) for c in turn.tool_calls])


def vote_labels(
    transcripts: Sequence[Transcript],
    votes: Mapping[tuple[str, int], Sequence[Vote]],
    *,
    weights: Mapping[str, float] | None = None,
) -> StepLabels:
    """Labels from teachers: the share of their votes for the action the student took (`teachers.rewards.weighted_reward`).

    Args:
        votes: by trajectory id and turn. A step without votes gets no label.
        weights: by teacher, 1 for those not named.

    Raises:
        ConfigError: there are votes on a turn that does not exist, or a weight is negative.
    """
    turns = {(t.trajectory_id, index): turn for t in transcripts for index, turn in enumerate(t.turns)}
    labels: StepLabels = {}
    for (name, index), cast in votes.items():
        if (name, index) not in turns:
            raise ConfigError(
                f"there are votes on turn {index} of {name!r}, which no trace has", fix="give the traces they are about"
            )
        reward = weighted_reward(cast, canonical_turn(turns[name, index]), weights=weights or {})
        if not isinstance(reward, Unscored):
            labels.setdefault(name, {})[index] = reward
    return labels


def read_labels(path: Path, transcripts: Sequence[Transcript], *, weights: Mapping[str, float] | None = None) -> StepLabels:
    """Labels of a JSONL file. A line is `{"trajectory_id", "turn", "label"}`, or with `votes` in place of `label`: a list of
    `{"teacher", "action"}`, with `family` where several teachers share one, the action as `actions.render_action` writes it.

    Raises:
        ConfigError: there is no such file, a line is of another shape, a step is labelled twice, or a line is about no trace.
        StorageError: the file is damaged.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", fix='name a JSONL file of labels, or say "outcome"')
    labels: StepLabels = {}
    votes: dict[tuple[str, int], list[Vote]] = {}
    names = {t.trajectory_id for t in transcripts}
    for number, line in enumerate(files.read_lines(path), start=1):
        try:
            name, turn = _step(line)
            known = float(line["label"]) if "label" in line else [_vote(vote) for vote in line["votes"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{path}, line {number}: no label ({type(error).__name__}: {error})",
                fix='write {"trajectory_id": "...", "turn": 0, "label": 1} or "votes": [{"teacher": "...", "action": "..."}]',
            ) from error
        if name not in names:
            raise ConfigError(f"{path}, line {number}: no trace is called {name!r}", fix="give the traces the labels are about")
        if turn in labels.get(name, {}) or (name, turn) in votes:
            raise ConfigError(f"{path}, line {number}: turn {turn} of {name!r} is labelled already", fix="leave one of the two")
        if isinstance(known, float):
            labels.setdefault(name, {})[turn] = known
        else:
            votes[name, turn] = known
    for name, found in vote_labels(transcripts, votes, weights=weights).items():
        labels.setdefault(name, {}).update(found)
    return labels


def _step(line: Any) -> tuple[str, int]:
    """Trajectory and turn of a line. Raises KeyError, TypeError or ValueError."""
    name, turn = line["trajectory_id"], line["turn"]
    if not isinstance(name, str) or isinstance(turn, bool) or not isinstance(turn, int):
        raise TypeError("trajectory_id is a text and turn a whole number")
    return name, turn


def _vote(vote: Any) -> Vote:
    teacher, action = str(vote["teacher"]), str(vote["action"])
    return Vote(
        teacher=teacher,
        family=str(vote.get("family") or teacher),
        action=action,
        canonical=canonical_action(*parse_action(action)),
    )
