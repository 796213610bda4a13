"""Asks every question of every teacher over HTTP, within a spending cap, and loses nothing it paid for."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import openai

from composer_replication.errors import BudgetExceededError, ConfigError, TeacherError
from composer_replication.teachers.ledger import Ledger, request_key
from composer_replication.teachers.reply import Reply, parse_call, read_reply
from composer_replication.teachers.teacher import Question, Teacher
from composer_replication.types import ToolCall

__all__ = ["BUDGET", "TeacherAnswer", "TeacherPool"]

logger = logging.getLogger(__name__)

BUDGET = "the spending cap is reached"
"""`TeacherAnswer.error` of a question that could not be paid for."""

_UNREADABLE_ATTEMPTS = 2
"""Times a call is made and paid for whose answer breaks off or is no chat completion."""
_NEVER_SENT = frozenset(
    {"ConnectError", "ConnectTimeout", "LocalProtocolError", "PoolTimeout", "ProxyError", "UnsupportedProtocol"}
)
"""Names of transport errors before a request has left, so that nobody can bill it. By name, because the classes are those of
httpx or of httpx2, as the version of openai has it."""
_LONGEST_PAUSE_S = 120.0
_HOPELESS_STATUS = frozenset({401, 402, 403, 404})
"""No key, no credit, no permission, no such model: every further question would fail in the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherAnswer:
    """What one teacher said to one question, or why it said nothing."""

    question_id: str
    teacher: str
    family: str
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    latency_s: float = 0.0
    """Wall-clock time of the call that bought the answer, retries included."""
    usd: float = 0.0
    """What the answer cost when it was bought; a cached answer costs nothing again."""
    cached: bool = False
    """True when the answer was in the ledger, or was bought a moment ago for an identical question."""
    error: str | None = None
    """Why there is no answer, or None."""


class _NoAnswerError(Exception):
    """A call failed.

    Args:
        hopeless: every further call to this teacher would fail too.
        billed: it may have to be paid for all the same.
        unreadable: something came back, and another call may bring an answer.
    """

    def __init__(self, reason: str, *, hopeless: bool = False, billed: bool = False, unreadable: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hopeless = hopeless
        self.billed = billed
        self.unreadable = unreadable


class TeacherPool:
    """An async context manager around the teachers' HTTP clients.

    Args:
        ledger: cache, spend record and resume log; it stays open when the pool closes.
        max_total_usd: cap on everything the ledger has paid, this run or before; None for no cap.

    Raises:
        ConfigError: no teachers, two of one name, a key that is not in the environment, or an unknown price under a cap.
    """

    def __init__(self, teachers: Sequence[Teacher], *, ledger: Ledger, max_total_usd: float | None) -> None:
        check_teachers(teachers, max_total_usd)
        self.teachers = tuple(teachers)
        self.ledger = ledger
        self.max_total_usd = max_total_usd
        self._clients = {t.name: _client(t) for t in self.teachers}
        self._slots = {t.name: asyncio.Semaphore(t.max_concurrency) for t in self.teachers}
        self._failed: dict[str, str] = {}
        self._under_way: dict[str, asyncio.Future[TeacherAnswer]] = {}
        self._settled = asyncio.Condition()
        self._reservations = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self._clients.values():
            await client.close()

    async def ask(self, questions: Sequence[Question]) -> list[TeacherAnswer]:
        """Every teacher's answer to every question, question by question and in the order of `teachers`.

        A failure is an answer with an `error`. A teacher whose endpoint refuses the key or the model, or cannot be reached, is
        not asked again by this pool; the others go on. Questions beyond the cap are answered with the error `BUDGET`.

        A call that was sent and brought no answer may be billed: it is booked at the most it can have cost, and sent again by the
        next `ask`, under the cap.

        Raises:
            BudgetExceededError: nothing was answered because not even one call fits under the cap.
            TeacherError: every call failed.
            StorageError: the ledger cannot be written.
        """
        tasks = [asyncio.create_task(self._answer(teacher, q)) for q in questions for teacher in self.teachers]
        try:
            answers = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        errors = [a for a in answers if a.error is not None]
        if answers and len(errors) == len(answers):
            raise self._nothing_answered(errors)
        unpaid = sum(a.error == BUDGET for a in errors)
        if unpaid:
            logger.warning("%s: %d of %d answers were not bought (cap $%s)", BUDGET, unpaid, len(answers), self.max_total_usd)
        for name, reason in self._failed.items():
            logger.warning("teacher %s is left out: %s", name, reason)
        return answers

    def _nothing_answered(self, errors: Sequence[TeacherAnswer]) -> TeacherError:
        if all(a.error == BUDGET for a in errors):
            return BudgetExceededError(
                f"no call fits under the cap of ${self.max_total_usd}: ${self.ledger.spent_usd:.4f} is spent already, "
                f"${self.ledger.unanswered_usd:.4f} of it on calls without an answer",
                fix="raise max_total_usd, lower the teachers' max_tokens or ask cheaper teachers",
            )
        first = {a.teacher: a.error for a in reversed(errors)}
        lines = "; ".join(f"{t.name} at {t.base_url}: {first[t.name]}" for t in self.teachers)
        billed = (
            f" (${self.ledger.unanswered_usd:.4f} is held for calls that may be billed)" if self.ledger.unanswered_usd else ""
        )
        return TeacherError(
            f"no teacher answered{billed}: {lines}", fix="check base_url, model and the key in api_key_env of each teacher"
        )

    async def _answer(self, teacher: Teacher, question: Question) -> TeacherAnswer:
        key = request_key(endpoint=teacher.base_url, request=teacher.request(question), sample=question.sample)
        if key in self._under_way:
            twin = await asyncio.shield(self._under_way[key])
            return dataclasses.replace(
                twin,
                question_id=question.question_id,
                teacher=teacher.name,
                family=teacher.vote_family,
                cached=twin.error is None,
            )
        future: asyncio.Future[TeacherAnswer] = asyncio.get_running_loop().create_future()
        self._under_way[key] = future
        try:
            answer = await self._find_or_buy(key, teacher, question)
        except BaseException:
            future.cancel()
            raise
        finally:
            del self._under_way[key]
        future.set_result(answer)
        return answer

    async def _find_or_buy(self, key: str, teacher: Teacher, question: Question) -> TeacherAnswer:
        blank = TeacherAnswer(question_id=question.question_id, teacher=teacher.name, family=teacher.vote_family)
        record = self.ledger.find(key)
        if record is not None:
            return _from_record(blank, record, cached=True)
        reason = BUDGET
        async with self._slots[teacher.name]:
            for _ in range(_UNREADABLE_ATTEMPTS):
                if teacher.name in self._failed:
                    return dataclasses.replace(blank, error=self._failed[teacher.name])
                if not await self._reserve(key, teacher, question):
                    break
                try:
                    return await self._buy(key, teacher, question, blank)
                except _NoAnswerError as failure:
                    reason = failure.reason
                    if failure.hopeless:
                        self._failed[teacher.name] = reason
                    if not failure.unreadable:
                        break
        return dataclasses.replace(blank, error=reason)

    async def _buy(self, key: str, teacher: Teacher, question: Question, blank: TeacherAnswer) -> TeacherAnswer:
        """Make one call on a reservation, and end the reservation. Raises _NoAnswerError."""
        try:
            record = await self._call(teacher, question)
            answer = _from_record(blank, record, cached=False)  # first: a record that cannot be read must not be kept
            self.ledger.settle(key, usd=record["usd"], answer=record)
            return answer
        except _NoAnswerError as failure:
            if failure.billed:
                self.ledger.write_off(key, reason=failure.reason)
            raise
        finally:
            self.ledger.release(key)
            async with self._settled:
                self._reservations -= 1
                self._settled.notify_all()

    async def _reserve(self, key: str, teacher: Teacher, question: Question) -> bool:
        """Hold the most the call can cost; while calls under way may yet cost less than is held for them, wait for them."""
        bound = teacher.most_expensive(question) or 0.0
        async with self._settled:
            while not self.ledger.reserve(key, teacher=teacher.name, usd=bound, cap_usd=self.max_total_usd):
                if self._reservations == 0:
                    return False
                await self._settled.wait()
            self._reservations += 1
            return True

    async def _call(self, teacher: Teacher, question: Question) -> dict[str, Any]:
        """One bought answer as a JSON record. Raises _NoAnswerError."""
        start = time.monotonic()
        body = await self._send(teacher, teacher.request(question))
        try:
            reply = read_reply(body)
        except ValueError as error:
            raise _NoAnswerError("the response is no chat completion", billed=True, unreadable=True) from error
        return _record(teacher, question, reply, latency_s=time.monotonic() - start)

    async def _send(self, teacher: Teacher, request: Mapping[str, Any]) -> bytes:
        """The body of a response with a success status; what costs nothing and may pass is tried again. Raises _NoAnswerError."""
        attempt = 0
        while True:
            try:
                raw = await self._clients[teacher.name].chat.completions.with_raw_response.create(**request)
                return bytes(raw.http_response.content)
            except (openai.APIStatusError, openai.APIConnectionError) as error:
                failure = _failure(teacher, error)
                pause_s = _pause_s(error, attempt)
                if attempt == teacher.max_retries or pause_s is None:
                    raise failure from error
            attempt += 1
            logger.info("teacher %s: %s; attempt %d in %.1f s", teacher.name, failure.reason, attempt + 1, pause_s)
            await asyncio.sleep(pause_s)


def _failure(teacher: Teacher, error: openai.APIStatusError | openai.APIConnectionError) -> _NoAnswerError:
    if isinstance(error, openai.APIStatusError):
        reason = f"HTTP {error.status_code}: {error.message}"[:300]
        return _NoAnswerError(reason, hopeless=error.status_code in _HOPELESS_STATUS)
    sent = not _never_sent(error)
    if isinstance(error, openai.APITimeoutError):
        return _NoAnswerError(f"no answer within {teacher.timeout_s} s", billed=sent)
    if sent:
        return _NoAnswerError(f"the connection was lost: {error.__cause__ or error}", billed=True, unreadable=True)
    return _NoAnswerError(f"cannot be reached: {error.__cause__ or error}", hopeless=True)


def _never_sent(error: openai.APIConnectionError) -> bool:
    return type(error.__cause__).__name__ in _NEVER_SENT


def _pause_s(error: openai.APIStatusError | openai.APIConnectionError, attempt: int) -> float | None:
    """Seconds until the next attempt of a call that cost nothing and may pass; None when there should be none."""
    usual = min(8.0, 0.5 * 2 ** min(attempt, 4)) * random.uniform(0.75, 1.0)
    if isinstance(error, openai.APIStatusError):
        if error.status_code < 500 and error.status_code not in (408, 409, 429):
            return None
        asked = _seconds(error.response.headers.get("retry-after", ""))
        return max(usual, asked) if asked <= _LONGEST_PAUSE_S else None
    return usual if _never_sent(error) and not isinstance(error, openai.APITimeoutError) else None


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0


def check_teachers(teachers: Sequence[Teacher], max_total_usd: float | None) -> None:
    """Refuse, before anything is asked, what could not be asked or paid for. Raises ConfigError."""
    if not teachers:
        raise ConfigError("there are no teachers to ask", fix="name at least one teacher")
    names = [t.name for t in teachers]
    if len(set(names)) < len(names):
        raise ConfigError(f"two teachers have one name: {', '.join(sorted(names))}", fix="give every teacher a name of its own")
    for teacher in teachers:
        if max_total_usd is not None and teacher.price(0, 0) is None:
            raise ConfigError(
                f"teacher {teacher.name!r} has no price, so the cap of ${max_total_usd} could not be kept",
                fix="set usd_per_million_input and usd_per_million_output of this teacher (0 for a local endpoint)",
            )
        if teacher.api_key_env is not None and not os.environ.get(teacher.api_key_env):
            raise ConfigError(
                f"teacher {teacher.name!r} needs a key and {teacher.api_key_env} is not set",
                fix=f"export {teacher.api_key_env}=..., or set its api_key_env to an empty string for an endpoint without keys",
            )


def _client(teacher: Teacher) -> openai.AsyncOpenAI:
    key = os.environ[teacher.api_key_env] if teacher.api_key_env is not None else "none"
    return openai.AsyncOpenAI(api_key=key, base_url=teacher.base_url, timeout=teacher.timeout_s, max_retries=0)


def _record(teacher: Teacher, question: Question, reply: Reply, *, latency_s: float) -> dict[str, Any]:
    """What the ledger keeps. An endpoint that reports neither cost nor usage is booked at the most the answer can have cost."""
    usage = reply.usage
    if usage is None:
        usd = teacher.most_expensive(question)
    else:
        usd = usage.cost if usage.cost is not None else teacher.price(usage.prompt_tokens, usage.completion_tokens)
    return {
        "content": reply.content,
        "tool_calls": list(reply.calls),
        "finish_reason": reply.finish_reason,
        "prompt_tokens": usage.prompt_tokens if usage is not None else 0,
        "completion_tokens": usage.completion_tokens if usage is not None else 0,
        "latency_s": latency_s,
        "usd": usd or 0.0,
    }


def _from_record(blank: TeacherAnswer, record: Mapping[str, Any], *, cached: bool) -> TeacherAnswer:
    calls = tuple(parse_call(c["id"], c["name"], c["arguments"]) for c in record["tool_calls"])
    return dataclasses.replace(blank, **{**record, "tool_calls": calls}, cached=cached)
