"""Asks questions of teachers over HTTP, within a spending cap, and loses nothing it paid for."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any

from composer_replication.observe import usd
from composer_replication.teachers.breaker import Breaker
from composer_replication.teachers.call import Failure, NoAnswerError, call, make_client
from composer_replication.teachers.ledger import STOPPED, AskedAlreadyError, Ledger, request_key
from composer_replication.teachers.pace import RateLimiter
from composer_replication.teachers.purse import CallCost, Purse
from composer_replication.teachers.reply import Reply, price_of
from composer_replication.teachers.teacher import Question, Teacher
from composer_replication.traces.recorder import native_call
from composer_replication.types import ToolCall
from composer_replication.types.errors import BudgetExceededError, ConfigError, TeacherError

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)

BUDGET = "the spending cap is reached"
"""`TeacherAnswer.error` of a question that could not be paid for."""

_PAID_ATTEMPTS = 2
"""Times a call is made and paid for whose answer is lost on the way or is not a chat completion."""
_ELSEWHERE_S = 0.05
"""Between two looks at what another pool on this ledger is doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherAnswer:
    """One teacher's answer to one question, or why there is none."""

    question_id: str
    teacher: str
    family: str
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    """Arguments, as they came, of the calls that could not be read, by their ids."""
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the endpoint had in its cache."""
    latency_s: float = 0.0
    """Wall-clock time of the call that bought the answer."""
    usd: float = 0.0
    """Cost of the answer when it was bought; a cached answer costs nothing again."""
    cached: bool = False
    """True when the answer was in the ledger, or was bought a moment ago for an identical question."""
    error: str | None = None
    """Why there is no answer, or None."""
    failure: Failure | None = None
    """The kind of `error`."""


OnAnswer = Callable[[TeacherAnswer], None]


@dataclass(slots=True)
class _Question:
    """A question for a teacher, and the answer when it is there."""

    teacher: Teacher
    question: Question
    key: str
    answer: TeacherAnswer | None = None
    before: str = ""
    """Key of the step before it in its trace."""

    def blank(self) -> TeacherAnswer:
        return TeacherAnswer(question_id=self.question.question_id, teacher=self.teacher.name, family=self.teacher.vote_family)


class TeacherPool(AbstractAsyncContextManager["TeacherPool"]):
    """An async context manager around the teachers' HTTP clients.

    Args:
        ledger: cache, spend record and resume log; it stays open when the pool closes.
        max_total_usd: cap on everything the ledger has paid or holds, this run or before; None for no cap.

    Raises:
        ConfigError: no teachers, two of one name, a key that is not in the environment, an unknown price under a cap, or a cap
            that is not an amount of money.
    """

    def __init__(self, teachers: Sequence[Teacher], *, ledger: Ledger, max_total_usd: float | None) -> None:
        check_teachers(teachers, max_total_usd)
        self.teachers = tuple(teachers)
        self.ledger = ledger
        self.max_total_usd = max_total_usd
        self._clients: dict[str, openai.AsyncOpenAI] = {}
        self._paces = {t.name: RateLimiter(t) for t in self.teachers}
        self._left_out: dict[str, str] = {}
        self._breaker = Breaker()
        self._purse = Purse(ledger, max_total_usd)
        self._under_way: dict[str, asyncio.Future[TeacherAnswer]] = {}

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self._clients.values():
            await client.close()

    async def ask(
        self, questions: Sequence[Question], *, teachers: Sequence[str] | None = None, on_answer: OnAnswer | None = None
    ) -> list[TeacherAnswer]:
        """Return every teacher's answer to every question, question by question and in the order of the teachers.

        A teacher is asked the questions of one trace one after the other, in the order of their steps; different traces and
        teachers are asked at the same time. A failure is an answer with an `error`. A teacher whose endpoint refuses the key or
        the model, or cannot be reached, is not asked again by this pool; the others continue. Questions beyond the cap are
        answered with the error `BUDGET`.

        A call that was sent and brought no answer may be billed: it is held at what its prompt likely cost and the longest
        answer, and sent again by the next `ask`, under the cap. Where this process was killed or stopped waiting, it is held at
        what such calls likely cost.

        Args:
            teachers: names of those to ask; by default all of the pool.
            on_answer: called with each answer as soon as it is there, those from the ledger first.

        Raises:
            BudgetExceededError: nothing was answered because not even one call fits under the cap.
            TeacherError: every call failed.
            ConfigError: a name belongs to no teacher of this pool.
            StorageError: the ledger cannot be written.
        """
        asked = self._named(teachers)
        jobs = [_Question(t, q, answer_key(t, q)) for q in questions for t in asked]
        walks = _walks(jobs)
        for job in jobs:
            record = self.ledger.find(job.key)
            if record is not None:
                self._breaker.answered(job.teacher.name)
                _answered(job, _from_record(job.blank(), record, cached=True), on_answer)
        await _all([self._walk([job for job in steps if job.answer is None], on_answer) for steps in walks])
        answers = [job.answer for job in jobs if job.answer is not None]
        self._report(answers)
        return answers

    def _named(self, names: Sequence[str] | None) -> Sequence[Teacher]:
        known = {t.name: t for t in self.teachers}
        unknown = [name for name in names or () if name not in known]
        if unknown:
            raise ConfigError(f"no teacher {unknown[0]!r} in the pool", fix=f"name some of: {', '.join(known)}")
        return self.teachers if names is None else [known[name] for name in names]

    def _report(self, answers: Sequence[TeacherAnswer]) -> None:
        errors = [a for a in answers if a.error is not None]
        if answers and len(errors) == len(answers):
            raise self._nothing_answered(errors)
        unpaid = sum(a.failure is Failure.BUDGET for a in errors)
        if unpaid:
            logger.warning("%s: %d of %d answers were not bought (cap $%s)", BUDGET, unpaid, len(answers), self.max_total_usd)
        for name, reason in self._left_out.items():
            logger.warning("teacher %s is left out: %s", name, reason)

    def _nothing_answered(self, errors: Sequence[TeacherAnswer]) -> TeacherError:
        spent, held = self.ledger.spent_usd, self.ledger.held_usd
        if all(a.failure is Failure.BUDGET for a in errors):
            return BudgetExceededError(
                f"no call fits under the cap of ${self.max_total_usd}: ${usd(spent)} is spent already, "
                f"${usd(held)} of it held for calls that may have been billed",
                fix="raise max_total_usd, lower the teachers' max_tokens, ask cheaper teachers, or read the bill (--bill)",
            )
        first = {a.teacher: a.error for a in reversed(errors)}
        lines = "; ".join(f"{t.name} at {t.base_url}: {first[t.name]}" for t in self.teachers if t.name in first)
        billed = f" (${usd(held)} is held for calls that may have been billed)" if held else ""
        return TeacherError(
            f"no teacher answered{billed}: {lines}", fix="check base_url, model and the key in api_key_env of each teacher"
        )

    # --- one question -----------------------------------------------------------------------------------------------------

    async def _walk(self, steps: Sequence[_Question], on_answer: OnAnswer | None) -> None:
        for job in steps:
            _answered(job, await self._answer(job), on_answer)

    async def _answer(self, job: _Question) -> TeacherAnswer:
        """Return the answer to the question, or to an identical one in progress."""
        if job.key in self._under_way:
            twin = await asyncio.shield(self._under_way[job.key])
            own = job.blank()
            return dataclasses.replace(
                twin, question_id=own.question_id, teacher=own.teacher, family=own.family, cached=twin.error is None
            )
        future: asyncio.Future[TeacherAnswer] = asyncio.get_running_loop().create_future()
        self._under_way[job.key] = future
        try:
            answer = await self._find_or_buy(job)
        except BaseException:
            future.cancel()
            raise
        finally:
            del self._under_way[job.key]
        future.set_result(answer)
        return answer

    async def _find_or_buy(self, job: _Question) -> TeacherAnswer:
        """Find the answer or buy it. Another pool on this ledger may be asking the same, or may have asked."""
        while True:
            record = self.ledger.find(job.key)
            if record is not None:
                self._breaker.answered(job.teacher.name)
                return _from_record(job.blank(), record, cached=True)
            try:
                return await self._buy(job)
            except AskedAlreadyError:
                await asyncio.sleep(_ELSEWHERE_S)

    async def _buy(self, job: _Question) -> TeacherAnswer:
        """Call until there is an answer, or a reason to stop."""
        teacher, pace, blank = job.teacher, self._paces[job.teacher.name], job.blank()
        last: NoAnswerError | None = None
        free = paid = 0
        async with pace.slot:
            cost = CallCost.of(teacher, job.question, follows=self.ledger.sent_lately(job.before, job.key))
            self._client(teacher)  # it takes half a second, and no call should be open meanwhile
            while True:
                if teacher.name in self._left_out:
                    return dataclasses.replace(blank, error=self._left_out[teacher.name], failure=Failure.LEFT_OUT)
                call_id = await self._purse.reserve(job.key, cost, pace.turn)
                if call_id is None:
                    return (
                        dataclasses.replace(blank, error=BUDGET, failure=Failure.BUDGET) if last is None else _failed(blank, last)
                    )
                try:
                    return await self._call(job, cost, call_id, free)
                except NoAnswerError as failed:
                    last = failed
                billed = last.failure.may_be_billed
                free, paid = free + (not billed), paid + billed
                again = last.failure.may_pass and paid < _PAID_ATTEMPTS
                if not again and (billed or last.pause_s is None or free > teacher.max_retries):
                    why = self._breaker.refused(teacher.name, last.reason) if last.failure is Failure.REFUSED else None
                    if last.hopeless or why is not None:
                        self._left_out[teacher.name] = last.reason if why is None else why
                    return _failed(blank, last)
                if last.pause_s is not None:
                    logger.info("teacher %s: %s; attempt %d in %.1f s", teacher.name, last.reason, free + paid + 1, last.pause_s)
                    if last.everybody:
                        pace.pause(last.pause_s)
                    await asyncio.sleep(last.pause_s)

    async def _call(self, job: _Question, cost: CallCost, call_id: str, failed_before: int) -> TeacherAnswer:
        """Make one call and end its reservation. Raises NoAnswerError."""
        teacher, question = job.teacher, job.question
        ending = STOPPED
        try:
            client = self._client(teacher)
            reply, latency_s = await call(client, teacher, question, call_id=call_id, failed_before=failed_before)
            price = price_of(reply.usage, teacher, question, cap_usd=self.max_total_usd)
            record = _record(reply, usd=price.usd, latency_s=latency_s)
            answer = _from_record(job.blank(), record, cached=False)  # first: a record that cannot be read must not be kept
            wrong = self._purse.pay(call_id, cost, price, reply.usage, record)
            self._breaker.answered(teacher.name)
            if wrong is not None:
                self._left_out[teacher.name] = wrong
            return answer
        except NoAnswerError as failed:
            ending = failed.reason
            if not failed.failure.may_be_billed:
                self._purse.release(call_id)
            raise
        finally:
            self._purse.end(call_id, cost, ending)

    def _client(self, teacher: Teacher) -> openai.AsyncOpenAI:
        if teacher.name not in self._clients:
            self._clients[teacher.name] = make_client(teacher)
        return self._clients[teacher.name]


def _walks(jobs: Sequence[_Question]) -> list[list[_Question]]:
    """Return the questions that are asked one after the other: of one teacher and trace, in the order of their steps."""
    traces: defaultdict[tuple[str, str], list[_Question]] = defaultdict(list)
    for i, job in enumerate(jobs):
        traces[job.teacher.name, f"trace {job.question.trace}" if job.question.trace else f"{i}"].append(job)
    for steps in traces.values():
        steps.sort(key=lambda job: job.question.step)
        for before, job in pairwise(steps):
            job.before = before.key
    return list(traces.values())


async def _all(walks: Sequence[Any]) -> None:
    """Await all; when one fails, cancel the others and wait for their ends."""
    tasks = [asyncio.create_task(walk) for walk in walks]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def check_teachers(teachers: Sequence[Teacher], max_total_usd: float | None, *, keys: bool = True) -> None:
    """Refuse, before anything is asked, what could not be asked or paid for. Raises ConfigError.

    Args:
        keys: whether the teachers' keys have to be in the environment.
    """
    if not teachers:
        raise ConfigError("there are no teachers to ask", fix="name at least one teacher")
    if max_total_usd is not None and not 0 <= max_total_usd < math.inf:
        raise ConfigError(f"the cap of ${max_total_usd} is not an amount of money", fix="give the cap as USD, 0 or more")
    names = [t.name for t in teachers]
    if len(set(names)) < len(names):
        raise ConfigError(f"two teachers have one name: {', '.join(sorted(names))}", fix="give every teacher a unique name")
    for teacher in teachers:
        if max_total_usd is not None and teacher.price(0, 0) is None:
            raise ConfigError(
                f"teacher {teacher.name!r} has no price, so the cap of ${max_total_usd} could not be kept",
                fix="set usd_per_million_input and usd_per_million_output of this teacher (0 for a local endpoint)",
            )
        if keys:
            teacher.key()


def answer_key(teacher: Teacher, question: Question) -> str:
    """Return the key under which a ledger keeps the teacher's answer."""
    return request_key(endpoint=teacher.base_url, request=teacher.request(question), sample=question.sample)


def _answered(job: _Question, answer: TeacherAnswer, on_answer: OnAnswer | None) -> None:
    job.answer = answer
    if on_answer is not None:
        on_answer(answer)


def _failed(blank: TeacherAnswer, failed: NoAnswerError) -> TeacherAnswer:
    return dataclasses.replace(blank, error=failed.reason, failure=failed.failure)


def _record(reply: Reply, *, usd: float, latency_s: float) -> dict[str, Any]:
    """Return what the ledger keeps of an answer."""
    usage = reply.usage
    return {
        "content": reply.content,
        "tool_calls": list(reply.calls),
        "finish_reason": reply.finish_reason,
        "prompt_tokens": usage.prompt_tokens if usage is not None else 0,
        "completion_tokens": usage.completion_tokens if usage is not None else 0,
        "cached_tokens": usage.cached_tokens if usage is not None else 0,
        "latency_s": latency_s,
        "usd": usd,
    }


def _from_record(blank: TeacherAnswer, record: Mapping[str, Any], *, cached: bool) -> TeacherAnswer:
    read = [native_call(c["id"], c["name"], c["arguments"]) for c in record["tool_calls"]]
    unread = {call.call_id: raw for call, raw in read if raw is not None}
    calls = tuple(call for call, _ in read)
    return dataclasses.replace(blank, **{**record, "tool_calls": calls}, unread=unread, cached=cached)
