"""A penalty on long and laborious trajectories that bites most while they are short (Composer 2 technical report,
arXiv:2603.24477).

    C(x) = ((1 + k x)^(1 - q) - 1) / (k (1 - q))        log(1 + k x) / k  at q = 1

x is a weighted sum of what a trajectory took. C rises with slope 1 from 0 and is concave for q > 0: an easy task is answered
curtly, while one that needs a thousand more tokens hardly pays for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Effort of one trajectory, by kind."""

    thinking_tokens: int = 0
    tool_call_tokens: int = 0
    tool_output_tokens: int = 0
    final_tokens: int = 0
    tool_calls: int = 0
    turns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EffortWeights:
    """Weight of each kind of effort in x; none is negative."""

    thinking_tokens: float = 1.0
    tool_call_tokens: float = 1.0
    tool_output_tokens: float = 0.0
    final_tokens: float = 1.0
    tool_calls: float = 0.0
    turns: float = 0.0


def concave_penalty(x: float, *, k: float, q: float) -> float:
    """Return C(x) for x >= 0. Raises ValueError unless x >= 0, k > 0 and q >= 0."""
    if not (x >= 0.0 and k > 0.0 and q >= 0.0):
        raise ValueError(f"concave_penalty needs x >= 0, k > 0 and q >= 0, got x={x}, k={k}, q={q}")
    grown = math.log1p(k * x)
    if q == 1.0:
        return grown / k
    return math.expm1((1.0 - q) * grown) / (k * (1.0 - q))


def effort_penalty(effort: Effort, *, weights: EffortWeights, k: float, q: float) -> float:
    """Return C of the weighted sum, to be subtracted from the reward times a coefficient. Raises ValueError as
    `concave_penalty`."""
    names = Effort.__slots__
    return concave_penalty(sum(getattr(weights, name) * getattr(effort, name) for name in names), k=k, q=q)
