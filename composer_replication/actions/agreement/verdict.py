"""The result of comparing two actions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SameAction(StrEnum):
    """True when two actions are the same."""

    SAME = "same"
    """They do the same and show the same: which of the two is taken makes no difference."""
    DIFF = "diff"
    """They do not."""
    UNDECIDED = "undecided"
    """Not decidable. No vote or pair may be built on it."""


@dataclass(frozen=True, slots=True)
class ActionComparison:
    """An answer, and what it rests on."""

    answer: SameAction
    method: str
    """`identical`, `canonical`, `edits`, `state`, `validity`, `intent`, `judge`, or `none` where no method applied."""
    why: str
    """The reason in a few words; the same whichever action comes first."""
    confidence: float = 1.0
    """In (0, 1]: below 1 only for the judge's verdicts."""

    @property
    def same(self) -> bool:
        return self.answer is SameAction.SAME

    @property
    def diff(self) -> bool:
        return self.answer is SameAction.DIFF
