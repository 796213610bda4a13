"""The age that a trajectory may have when it is trained on.

The staleness of a group in a step is the number of optimizer steps between the weights that sampled it and those the step starts
from: a group of policy version v that step s trains on (s = 1 is the first) has staleness s - 1 - v. It is never above
`max_staleness`: such groups are dropped and counted, and others are issued for them.

No more groups are issued than the present and the next `max_staleness` steps can train on. So where groups finish in the order
they were issued none is too old, and `max_staleness = 0` is synchronous training: the groups of a step are issued when the step
before it is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StalenessRule:
    """The limit on staleness for one arm."""

    groups: int
    """Groups per step."""
    steps: int
    """Optimizer steps of the arm."""
    max_staleness: int

    def limit(self, dropped: int, version: int) -> int:
        """Return the number below which groups may be issued while the policy has this version."""
        return min(version + 1 + self.max_staleness, self.steps) * self.groups + dropped

    def too_old(self, waiting: Mapping[int, int], step: int) -> list[int]:
        """Return the numbers of finished groups (number -> policy version) that are too old for this step and all later ones."""
        return sorted(number for number, version in waiting.items() if step - 1 - version > self.max_staleness)

    def choose(self, waiting: Mapping[int, int], step: int) -> list[int] | None:
        """Return the groups that the step trains on: oldest policy first, then in order of issue. None while they are too few."""
        old = set(self.too_old(waiting, step))
        order = sorted((version, number) for number, version in waiting.items() if number not in old)
        return sorted(number for _, number in order[: self.groups]) if len(order) >= self.groups else None
