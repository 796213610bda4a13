"""A pool's money: who may spend next, what is reserved for a call, and what is booked when it has ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from composer_replication.teachers.habits import CallParts, Used
from composer_replication.teachers.ledger import STOPPED, Ledger
from composer_replication.teachers.reply import Price, Usage
from composer_replication.teachers.teacher import Question, Teacher, prompt_bytes

_PRICES_ABOVE = 5
"""Prices that the price table rules out, in a row or booked as reported, after which a teacher is left out."""
_ELSEWHERE_S = 0.05
"""Between two looks at what another pool on this ledger is doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """What a call can cost by its teacher's price table."""

    teacher: Teacher
    prompt_bytes: int
    most_usd: float
    """0 where the table has a gap, which no cap allows."""
    parts: CallParts

    @classmethod
    def of(cls, teacher: Teacher, question: Question, *, follows: bool) -> CallCost:
        """Read the price table. `follows` is `CallParts.follows`."""
        size = prompt_bytes(question.messages, question.tools)
        most = teacher.bound_usd(size) or 0.0
        parts = CallParts(most - (teacher.bound_usd(0) or 0.0), teacher.price(0, teacher.max_tokens) or 0.0, follows)
        return cls(teacher=teacher, prompt_bytes=size, most_usd=most, parts=parts)

    def used(self, usage: Usage | None, usd: float) -> Used | None:
        """Return what a call used that cost `usd`; None where its reply does not tell.

        A reported cost above the table's raises the tokens. One below it, as where a provider caches and the table has no price
        for that, is believed only of a call that follows another.
        """
        if usage is None:
            return None
        prompt, answer, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        prompt_usd = self.teacher.price(prompt, 0, cached=cached, written=usage.written_tokens)
        answer_usd = self.teacher.price(0, answer)
        if not prompt_usd and not answer_usd:
            return None
        by_table = (prompt_usd or 0.0) + (answer_usd or 0.0)
        dearer, dearest_usd = max(1.0, usd / by_table), self.parts.prompt_usd / self.prompt_bytes * prompt
        price_share = None
        if self.parts.follows and dearest_usd:
            price_share = (prompt_usd or 0.0) * min(1.0, usd / by_table) / dearest_usd
        return Used(prompt / self.prompt_bytes * dearer, answer / self.teacher.max_tokens * dearer, price_share)


class Purse:
    """Reserves and books the calls of one pool.

    Before a call its most is reserved, which the cap rests on; what it likely costs decides how many calls may be in progress at
    once (`Ledger.admits`), and is held for it if this process dies.

    Args:
        cap_usd: cap on everything the ledger has paid or holds; None for no cap.
    """

    def __init__(self, ledger: Ledger, cap_usd: float | None) -> None:
        self._ledger = ledger
        self._cap_usd = cap_usd
        self._line: list[object] = []
        self._news = asyncio.Event()
        self._open_calls = 0
        self._above: Counter[str] = Counter()
        self._above_in_a_row: Counter[str] = Counter()
        self._dearest: dict[str, float] = {}

    async def reserve(self, key: str, cost: CallCost, turn: Callable[[], Awaitable[None]]) -> str | None:
        """Wait in line, then for the teacher's `turn`; reserve the most a call can cost, or has cost where that is more, and name
        the call.

        While calls in progress may yet cost less than is reserved for them, or as many are in progress as may be lost at a time,
        it waits for them; None when there are none left. Whoever came first is first, as a call that has to be alone would
        otherwise wait until there are no others.

        Raises:
            AskedAlreadyError: as `Ledger.reserve`.
        """
        ticket = object()
        self._line.append(ticket)
        try:
            while True:
                if self._line[0] is ticket:
                    call_id = await self._try(ticket, key, cost, turn)
                    if call_id is not None or not self._ledger.any_open:
                        return call_id
                await self._change(first=self._line[0] is ticket)
        finally:
            self._leave(ticket)

    async def _try(self, ticket: object, key: str, cost: CallCost, turn: Callable[[], Awaitable[None]]) -> str | None:
        """Reserve for the first in line, which leaves it; None, first in line again, when that is not admitted."""
        bound, likely, _ = self._amounts(cost)
        if not self._ledger.admits(bound, self._cap_usd, likely_usd=likely):
            return None
        self._leave(ticket)  # before its turn, which may be minutes away: the others need not wait for this teacher
        await turn()
        bound, likely, parts = self._amounts(cost)
        call_id = self._ledger.reserve(
            key, teacher=cost.teacher.name, usd=bound, cap_usd=self._cap_usd, likely_usd=likely, parts=parts
        )
        if call_id is None:
            self._line.insert(0, ticket)
        else:
            self._open_calls += 1
        return call_id

    def _amounts(self, cost: CallCost) -> tuple[float, float, CallParts | None]:
        """Return what to reserve, what the call likely costs, and its parts; of a teacher whose price table was wrong nothing is
        likely."""
        name = cost.teacher.name
        if name in self._dearest:
            bound = max(cost.most_usd, self._dearest[name])
            return bound, bound, None
        return cost.most_usd, min(cost.most_usd, self._ledger.habits(name).likely_usd(cost.parts)), cost.parts

    def _leave(self, ticket: object) -> None:
        if ticket in self._line:
            self._line.remove(ticket)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _change(self, *, first: bool) -> None:
        """Wait until a call has ended or someone has left the line."""
        if first and self._open_calls == 0:  # those in progress are another pool's
            await asyncio.sleep(_ELSEWHERE_S)
        else:
            await self._news.wait()

    # --- the end of a call ------------------------------------------------------------------------------------------------

    def pay(self, call_id: str, cost: CallCost, price: Price, usage: Usage | None, record: Mapping[str, Any]) -> str | None:
        """Book an answer at its price. Return why the teacher must be left out: its price table is wrong; None while it is not.

        The next call reserves no less than this one cost.
        """
        self._ledger.settle(
            call_id, usd=price.usd, answer=record, doubt=price.doubt, used=None if price.doubt else cost.used(usage, price.usd)
        )
        name = cost.teacher.name
        self._above_in_a_row[name] = self._above_in_a_row[name] + 1 if price.above else 0
        if price.usd > cost.most_usd:
            self._above[name] += 1
            self._dearest[name] = max(price.usd, self._dearest.get(name, 0.0))
        if max(self._above[name], self._above_in_a_row[name]) >= _PRICES_ABOVE:
            return f"its prices must be others than the price table says: {price.doubt}"
        return None

    def release(self, call_id: str) -> None:
        """Forget a call that cannot have been billed."""
        self._ledger.release(call_id)

    def end(self, call_id: str, cost: CallCost, reason: str) -> None:
        """Let the next call go; hold this one when it was neither paid nor released, with the longest answer unless it was
        `STOPPED`: what is lost on the way may be longer than what came."""
        if self._ledger.is_open(call_id):
            name, parts = cost.teacher.name, cost.parts
            likely = self._ledger.habits(name).likely_usd(parts, whole_answer=reason != STOPPED)
            self._ledger.hold(call_id, reason=reason, usd=None if name in self._dearest else likely)
        self._open_calls -= 1
        self._wake()
