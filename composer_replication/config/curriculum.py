"""The choice of tasks during a run."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from composer_replication.config.section import Decay, Positive, ReadBy, Section, Share, refuse

_IF_ENABLED = ReadBy("enabled", True)


class CurriculumConfig(Section):
    """Selection of tasks by how often the policy solves them, instead of in turn."""

    enabled: bool = False
    """Draw tasks by their pass rates p in this run, with weight `4 p (1 - p)`. When false, every pass takes every task once."""
    levels: Annotated[Positive, _IF_ENABLED] = 1
    """Split the tasks, sorted by estimated difficulty, into this many levels and add them one after the other."""
    promote_at: Annotated[Share, _IF_ENABLED] = 0.7
    """Add the next level when the mean pass rate of the current tasks reaches this."""
    floor: Annotated[float, Field(gt=0.0, le=1.0), _IF_ENABLED] = 0.05
    """Give every task at least this weight, so that solved tasks are still revisited."""
    decay: Annotated[Decay, _IF_ENABLED] = 0.8
    """Multiply a task's past counts by this at each visit. Lower it to forget faster."""
    quarantine_after: Annotated[Positive, _IF_ENABLED] = 3
    """Set a task aside after this many visits in a row in which every sibling failed."""
    probe_every: Annotated[Positive, _IF_ENABLED] = 20
    """Let a task that was set aside be drawn again after this many steps."""
    visible_tests: Annotated[tuple[Annotated[float, Field(gt=0.0, le=1.0)], ...], Field(min_length=1), _IF_ENABLED] = (1.0,)
    """Show the agent these shares of a task's fail-to-pass tests, largest first; all tests are always graded. A task solved at
    `promote_at` moves to the next share; one that `quarantine_after` would set aside moves back by one."""
    prm_credit: Annotated[Share, _IF_ENABLED] = 0.0
    """Count a rollout that failed as this much of a success, times the mean probability that its turns are good (the process
    reward model of `reward.prm.path`), when tasks are drawn: of tasks that always fail, those that are nearly solved come more
    often. Levels and tests still follow the tests alone. 0 asks no such model. Set it to 0.5 or so when you have trained one and
    most groups fail."""
    join_up_to: Annotated[Positive, _IF_ENABLED] = 1
    """Make new tasks during the run by joining two solved ones of one source, up to this many functions each. 1 makes none."""

    @model_validator(mode="after")
    def _fewer_and_fewer(self) -> Self:
        if any(after >= before for before, after in pairwise(self.visible_tests)):
            refuse(f"visible_tests = {list(self.visible_tests)} does not fall", "write for example [1.0, 0.5]")
        return self

    def unreachable(self, group_size: int) -> float | None:
        """Return the highest pass rate this curriculum can observe when `promote_at` lies above it.

        None where `promote_at` can be reached, or where nothing depends on it. All `group_size` rollouts of a group pass.
        """
        if not self.enabled or (self.levels == self.join_up_to == len(self.visible_tests) == 1):
            return None
        remembered = group_size / (1.0 - self.decay)
        most = (remembered + 1) / (remembered + 2)
        # decayed counts never reach their limit
        reached = self.promote_at < most or (self.decay == 0 and self.promote_at == most)
        return None if reached else most
