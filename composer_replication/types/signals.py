"""The data that the hint and replay channels train on: findings, hints, aligned turns and preference pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A detector's claim that one turn went wrong."""

    kind: str
    """`unknown_tool`, `malformed_call`, `invalid_arguments`, `edit_not_applied`, `tests_failed`, ..."""
    turn: int
    """0-based index of the turn that went wrong (for failing tests: the edit, not the test run that revealed it)."""
    span: tuple[int, int] | None = None
    """Characters of the call's argument that `evidence["argument"]` names, else of the turn's text; None for the whole turn."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    confidence: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A text for the self-teacher just before an error turn or, with the reason in `dropped`, one that is not used."""

    trajectory_id: str
    turn: int
    kind: str
    """The finding's kind."""
    text: str
    source: str
    """The generator that wrote it: `template`, `environment`, `documentation`, ..."""
    dropped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HintedTurn:
    """A turn aligned under two contexts: the student's true one and the self-teacher's, which has the hint in it.

    A turn that is held has no hint: both contexts are the same, and the self-teacher keeps the student where it was.

    The compared tokens are `action_ids`; they stand at `student_start` in the trajectory's own sequence and at `teacher_start`
    in `teacher_ids`. Position p is predicted by the logits at p - 1 in both.
    """

    trajectory_id: str
    turn: int
    student_start: int
    teacher_ids: tuple[int, ...]
    """The self-teacher's context followed by the turn's action ids."""
    teacher_start: int
    action_ids: tuple[int, ...]

    @property
    def held(self) -> bool:
        """True when the self-teacher reads no hint."""
        return self.teacher_start == self.student_start


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTargets:
    """What a teacher says of each token of an answer, given those before it: its likeliest tokens, and how likely they are."""

    ids: tuple[tuple[int, ...], ...]
    """By place, the likeliest first."""
    logprobs: tuple[tuple[float, ...], ...]
    """The same places, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A preference pair in token ids: two continuations of one exact context.

    A pair without a rejected answer is a turn to hold: its chosen answer is what the starting policy itself did there.
    """

    pair_id: str
    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]
    confidence: float = 1.0
    """Weight of the pair in the loss, in (0, 1]."""
    ref_chosen_logprob: float | None = None
    """Sum of log-probs of `chosen_ids` under the reference policy; None until computed."""
    ref_rejected_logprob: float | None = None
    unmatched_ids: tuple[int, ...] = ()
    """The answer of another pair, to another prompt, by which KTO estimates how far the policy is from its reference; empty where
    the loss on pairs reads none."""
    ref_unmatched_logprob: float | None = None
    chosen_targets: tuple[TokenTargets, ...] = ()
    """What teachers say of the tokens of the chosen answer, one entry for each teacher; empty where none was asked."""
