"""Asks every question of every teacher over HTTP, within a spending cap, and loses nothing it paid for."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import openai
from openai.types.chat import ChatCompletion

from composer_replication.errors import BudgetExceededError, ConfigError, TeacherError
from composer_replication.teachers.ledger import Ledger, request_key
from composer_replication.teachers.teacher import Question, Teacher
from composer_replication.types import ToolCall

__all__ = ["BUDGET", "TeacherAnswer", "TeacherPool"]

logger = logging.getLogger(__name__)

BUDGET = "the spending cap is reached"
"""`TeacherAnswer.error` of a question that could not be paid for."""

_UNREADABLE_ATTEMPTS = 2
"""Times a call is made whose answer has a success status and an unreadable body."""
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
    """A call failed; `hopeless` when every further call to this teacher would fail too."""

    def __init__(self, reason: str, *, hopeless: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hopeless = hopeless


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
                f"no call fits under the cap of ${self.max_total_usd}: ${self.ledger.spent_usd:.4f} is spent already",
                fix="raise max_total_usd, lower the teachers' max_tokens or ask cheaper teachers",
            )
        first = {a.teacher: a.error for a in reversed(errors)}
        lines = "; ".join(f"{t.name} at {t.base_url}: {first[t.name]}" for t in self.teachers)
        return TeacherError(
            f"no teacher answered: {lines}", fix="check base_url, model and the key in api_key_env of each teacher"
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
        async with self._slots[teacher.name]:
            if teacher.name in self._failed:
                return dataclasses.replace(blank, error=self._failed[teacher.name])
            if not await self._reserve(key, teacher, question):
                return dataclasses.replace(blank, error=BUDGET)
            try:
                record = await self._call(teacher, question)
                self.ledger.settle(key, usd=record["usd"], answer=record)
                return _from_record(blank, record, cached=False)
            except _NoAnswerError as failure:
                if failure.hopeless:
                    self._failed[teacher.name] = failure.reason
                return dataclasses.replace(blank, error=failure.reason)
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
        body = teacher.request(question)
        start = time.monotonic()
        for _ in range(_UNREADABLE_ATTEMPTS):
            try:
                response: Any = await self._clients[teacher.name].chat.completions.create(**body)
            except openai.APIStatusError as error:
                reason = f"HTTP {error.status_code}: {error.message}"[:300]
                raise _NoAnswerError(reason, hopeless=error.status_code in _HOPELESS_STATUS) from error
            except openai.APITimeoutError as error:
                raise _NoAnswerError(f"no answer within {teacher.timeout_s} s") from error
            except openai.APIConnectionError as error:
                raise _NoAnswerError(f"cannot be reached: {error.__cause__ or error}", hopeless=True) from error
            except (openai.OpenAIError, json.JSONDecodeError):
                continue
            if isinstance(response, ChatCompletion) and response.choices and response.choices[0].message is not None:
                return _record(teacher, question, response, latency_s=time.monotonic() - start)
        raise _NoAnswerError("the response is no chat completion")


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
    return openai.AsyncOpenAI(api_key=key, base_url=teacher.base_url, timeout=teacher.timeout_s, max_retries=teacher.max_retries)


def _record(teacher: Teacher, question: Question, response: ChatCompletion, *, latency_s: float) -> dict[str, Any]:
    """What the ledger keeps. An endpoint that reports neither cost nor usage is booked at the most the answer can have cost."""
    choice, usage = response.choices[0], response.usage
    prompt, completion = (usage.prompt_tokens, usage.completion_tokens) if usage is not None else (0, 0)
    reported = (usage.model_extra or {}).get("cost") if usage is not None else None
    priced = teacher.price(prompt, completion) if usage is not None else teacher.most_expensive(question)
    usd = float(reported) if isinstance(reported, int | float) else priced
    calls = [c for c in choice.message.tool_calls or [] if c.type == "function"]
    return {
        "content": choice.message.content or "",
        "tool_calls": [{"id": c.id, "name": c.function.name, "arguments": c.function.arguments} for c in calls],
        "finish_reason": choice.finish_reason,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "latency_s": latency_s,
        "usd": usd or 0.0,
    }


def _from_record(blank: TeacherAnswer, record: Mapping[str, Any], *, cached: bool) -> TeacherAnswer:
    calls = tuple(_parse_call(c["id"] or "", c["name"] or "", c["arguments"] or "") for c in record["tool_calls"])
    return dataclasses.replace(blank, **{**record, "tool_calls": calls}, cached=cached)


def _parse_call(call_id: str, name: str, arguments: str) -> ToolCall:
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError as error:
        return ToolCall(call_id=call_id, name=name, arguments={}, error=f"bad JSON: {error}")
    if not isinstance(parsed, dict) or not name:
        return ToolCall(call_id=call_id, name=name, arguments={}, error="a call needs a name and an object of arguments")
    return ToolCall(call_id=call_id, name=name, arguments=parsed)
