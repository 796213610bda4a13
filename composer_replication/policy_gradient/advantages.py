"""Advantages of a group of siblings from their rewards.

A reward of None means that the trajectory could not be scored (an infrastructure fault). It takes no part in the group's
baseline or spread, and its advantage is None: the caller gives it weight zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

AdvantageKind: TypeAlias = Literal["grpo", "dr_grpo", "rloo"]

STD_EPS = 1e-4
"""Added to the standard deviation in `grpo`; the value TRL uses."""


def group_advantages(
    rewards: Sequence[float | None], kind: AdvantageKind = "grpo", *, scaled_by: Sequence[float | None] | None = None
) -> list[float | None]:
    """Return the advantage of each sibling; None where the reward is None.

    With n scored rewards r, mean m and SAMPLE standard deviation s (divisor n - 1, as TRL's `GRPOTrainer`; not the
    population one):

    - `grpo`: (r - m) / (s + 1e-4)   (arXiv:2402.03300, section 4.1.2)
    - `dr_grpo`: r - m   (arXiv:2503.20783, section 3.2)
    - `rloo`: r minus the mean of the OTHER rewards, which is n / (n - 1) * (r - m)   (arXiv:2402.14740, equation 8)

    `scaled_by` are other values of the same siblings to take s from, with 1 for s + 1e-4 where they are all equal: verdicts
    without the penalties that are in `rewards`, whose size would otherwise not matter among siblings of one verdict.

    A sibling that is alone has nothing to be compared with: its advantage is 0. Raises ValueError on an unknown kind or a reward
    that is not finite (an unscored trajectory is None, never NaN).
    """
    if kind not in ("grpo", "dr_grpo", "rloo"):
        raise ValueError(f"unknown advantage kind {kind!r}: expected 'grpo', 'dr_grpo' or 'rloo'")
    scored = _scored(rewards)
    n = len(scored)
    if n < 2:
        return [None if reward is None else 0.0 for reward in rewards]
    mean = math.fsum(scored) / n
    if kind == "grpo":
        scale = 1.0 / _spread(scored if scaled_by is None else _scored(scaled_by))
    else:
        scale = n / (n - 1) if kind == "rloo" else 1.0
    return [None if reward is None else scale * (reward - mean) for reward in rewards]


def process_advantages(scores: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """Return the process advantage of every step of a group's siblings: GRPO with process supervision.

    With all scores of all steps of the group, their mean m and sample standard deviation s, a step's normalised score is
    (score - m) / (s + 1e-4), and its advantage is the sum of the normalised scores of it and of the steps after it
    (DeepSeekMath, arXiv:2402.03300, section 4.1.3). A step without a score counts as 0, which is the mean.

    Args:
        scores: one list per sibling, one score per step in the order of the steps; an empty list of one that takes no part.

    Raises ValueError on a score that is not finite.
    """
    known = _scored([score for steps in scores for score in steps])
    mean = math.fsum(known) / len(known) if known else 0.0
    spread = _spread(known) if len(known) > 1 else 1.0
    found = []
    for steps in scores:
        normalised = [0.0 if score is None else (score - mean) / spread for score in steps]
        found.append([math.fsum(normalised[step:]) for step in range(len(steps))])
    return found


def _spread(values: Sequence[float]) -> float:
    if all(value == values[0] for value in values):
        return 1.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) + STD_EPS


def has_signal(rewards: Sequence[float | None]) -> bool:
    """Return True when the scored siblings disagree, so that some advantage is not zero.

    This is the predicate of DAPO's dynamic sampling (arXiv:2503.14476, equation 11): groups without signal are dropped and
    refilled.
    """
    scored = _scored(rewards)
    return any(reward != scored[0] for reward in scored[1:])


def soft_overlong_punishment(length: int, *, max_length: int, cache: int) -> float:
    """Return DAPO's length penalty, in [-1, 0], to be added to the reward (arXiv:2503.14476, equation 13).

    `length` counts sampled tokens. It is 0 up to `max_length - cache`, falls linearly to -1 at `max_length`, and is -1 beyond.
    Raises ValueError unless 0 < cache <= max_length.
    """
    if not 0 < cache <= max_length:
        raise ValueError(f"soft_overlong_punishment needs 0 < cache <= max_length, got cache={cache}, max_length={max_length}")
    free = max_length - cache
    return -min(1.0, max(0.0, (length - free) / cache))


def _scored(rewards: Sequence[float | None]) -> list[float]:
    scored = [reward for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in scored):
        raise ValueError(f"rewards must be finite numbers or None, got {list(rewards)}")
    return scored
