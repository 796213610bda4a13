"""Estimate what a teacher's calls really cost, beside the most that they can cost.

A call is reserved at the most it can cost: a token for each byte of its prompt, none of them from a cache, and the longest
answer. Real calls cost a small part of that, so a call whose end nobody saw is held at an estimate. It has two factors from the
calls that were paid: tokens per byte of the prompt, and the answer's tokens as a share of the most allowed. They are two because
along a trace the prompts grow and the answers do not: one share of the whole cost, learnt on short prompts, would be too small
for the long ones. Both are in units of the price table; a call dearer than the table says at its token counts raises both.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

RECENT = 200
"""Paid calls that are looked at, the newest."""
FEWEST = 10
"""Paid calls, below which nothing is known about the others."""
_QUANTILE = 0.9
"""Nine of ten calls use no more than is estimated."""
_COLD_TOKENS_PER_BYTE = 1 / 3
"""Before that: one token for three bytes, between the planner's expected 3.5 and its highest estimate's 2.5 (`planner.EXPECTED`,
`planner.HIGH`)."""
_COLD_ANSWER_SHARE = 1 / 4
"""Before that: a quarter of the longest answer, 1,024 tokens of 4,096, between the planner's 400 and 1,500."""


class CallParts(NamedTuple):
    """Two parts of the most that a call can cost, in USD."""

    prompt_usd: float
    """Its prompt at one token for each byte, all at the dearest price of a prompt token."""
    answer_usd: float
    """The longest answer."""
    follows: bool = False
    """The teacher was sent the step before it in its trace, or this very prompt, a moment ago (`Ledger.sent_lately`): a cache may
    hold most of it."""


class Used(NamedTuple):
    """The share of its parts that a paid call used."""

    tokens_per_byte: float
    """Prompt tokens per byte of the prompt, cached ones included."""
    answer_share: float
    """Answer tokens per token of the longest answer."""
    price_share: float | None
    """Mean price of its prompt tokens over the dearest price, for a call that follows another (`CallParts.follows`); None for any
    other call, so that what a cache saves is never expected of a call without one."""


class Habits:
    """Recent paid calls of a teacher, the newest last."""

    def __init__(self, used: Iterable[Used] = ()) -> None:
        self._recent = deque(used, maxlen=RECENT)
        self.num_seen = len(self._recent)

    @property
    def known(self) -> bool:
        """True when estimates rest on calls that were paid."""
        return len(self._recent) >= FEWEST

    def add(self, used: Used) -> None:
        """Note what a call used."""
        self._recent.append(used)
        self.num_seen += 1
        self.__dict__.pop("_usual", None)

    def likely_usd(self, parts: CallParts, *, tokens_per_byte: float | None = None, whole_answer: bool = False) -> float:
        """Return what a call will hardly exceed, in USD.

        Args:
            tokens_per_byte: of this very prompt, where it is known.
            whole_answer: count the longest answer, for a call that was lost because its answer was long, perhaps.
        """
        usual = self._usual
        prompt = usual.tokens_per_byte if tokens_per_byte is None else tokens_per_byte
        price = usual.price_share if parts.follows and usual.price_share is not None else 1.0
        return parts.prompt_usd * prompt * price + parts.answer_usd * (1.0 if whole_answer else usual.answer_share)

    @cached_property
    def _usual(self) -> Used:
        if not self.known:
            return Used(_COLD_TOKENS_PER_BYTE, _COLD_ANSWER_SHARE, None)
        recent = [*self._recent]  # at once, as another thread may add to it
        prices = [used.price_share for used in recent if used.price_share is not None]
        return Used(
            _quantile([used.tokens_per_byte for used in recent]),
            _quantile_by_size([used.answer_share for used in recent]),
            _quantile(prices) if len(prices) >= FEWEST else None,
        )


def _quantile(values: list[float]) -> float:
    return sorted(values)[math.ceil(_QUANTILE * len(values)) - 1]


def _quantile_by_size(values: list[float]) -> float:
    """Return the value up to which the values make up `_QUANTILE` of their sum.

    A process that is killed leaves long answers under way more often than short ones, in proportion to their length.
    """
    rest = _QUANTILE * math.fsum(values)
    for value in sorted(values):
        rest -= value
        if rest <= 0.0:
            return value
    return max(values)
