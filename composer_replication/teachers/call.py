"""One HTTP request to a teacher: its answer, or why there is none and whether that may be billed."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import time
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from composer_replication.teachers.reply import Reply, read_reply
from composer_replication.teachers.teacher import Question, Teacher
from composer_replication.types.secrets import quoted, without_secrets

if TYPE_CHECKING:
    import openai

CALL_ID_HEADER = "X-Client-Request-Id"
"""Carries the ledger's name of the call, so that the logs of a gateway or provider can be compared with the ledger."""

_NEVER_SENT = frozenset(
    {"ConnectError", "ConnectTimeout", "LocalProtocolError", "PoolTimeout", "ProxyError", "UnsupportedProtocol"}
)
"""Names of transport errors before a request has left, so that it cannot be billed. By name, because the classes are those of
httpx or of httpx2, depending on the version of openai."""
_CONNECT_S = 10.0
_LONGEST_REASON = 300
"""Characters of an endpoint's error that are shown."""
_LONGEST_PAUSE_S = 120.0
_HOPELESS_STATUS = frozenset({401, 402, 403, 404})
"""No key, no credit, no permission, no such model: every further question would fail in the same way."""
_PASSING_STATUS = frozenset({408, 409, 429})
_GATEWAY_STATUS = frozenset({502, 504, 520, 521, 522, 523, 524})
"""A gateway lost the endpoint behind it, which may have answered."""


class Failure(StrEnum):
    """Why a question has no answer."""

    BUDGET = "over budget"
    REFUSED = "refused"
    """A status from 400 that another attempt would bring again."""
    RATE_LIMITED = "rate limited"
    SERVER = "server error"
    GATEWAY = "gateway error"
    UNREACHABLE = "unreachable"
    """No connection, so that nothing was sent."""
    TIMEOUT = "timeout"
    LOST = "connection lost"
    """Something was sent, and the answer did not come or not whole."""
    UNREADABLE = "unreadable"
    """An answer that is not a chat completion."""
    LEFT_OUT = "left out"
    """Not asked, because the teacher had failed for good."""

    @property
    def may_be_billed(self) -> bool:
        """True when the endpoint may have answered and may bill the call."""
        return self in (Failure.GATEWAY, Failure.TIMEOUT, Failure.LOST, Failure.UNREADABLE)

    @property
    def may_pass(self) -> bool:
        """True when a further call is worth paying for, when this one may be billed."""
        return self in (Failure.GATEWAY, Failure.LOST, Failure.UNREADABLE)


class NoAnswerError(Exception):
    """A call failed.

    Args:
        hopeless: every further call to this teacher would fail too.
        pause_s: after how many seconds a call that cost nothing may be repeated; None when it should not be.
        everybody: the pause is the endpoint's wish and holds for all calls to this teacher.
    """

    def __init__(
        self, failure: Failure, reason: str, *, hopeless: bool = False, pause_s: float | None = None, everybody: bool = False
    ) -> None:
        super().__init__(reason)
        self.failure = failure
        self.reason = reason
        self.hopeless = hopeless
        self.pause_s = pause_s
        self.everybody = everybody


def make_client(teacher: Teacher) -> openai.AsyncOpenAI:
    """Make a client that repeats nothing by itself: every attempt is a separate call in the ledger."""
    import openai  # takes half a second

    timeout = openai.Timeout(teacher.timeout_s, connect=min(_CONNECT_S, teacher.timeout_s))
    return openai.AsyncOpenAI(api_key=teacher.key() or "none", base_url=teacher.base_url, timeout=timeout, max_retries=0)


async def call(
    client: openai.AsyncOpenAI, teacher: Teacher, question: Question, *, call_id: str, failed_before: int
) -> tuple[Reply, float]:
    """Return the reply, and the seconds until it was complete.

    Args:
        failed_before: attempts that failed at no cost; the pause after this one grows with them.

    Raises:
        NoAnswerError: there is no reply.
    """
    import openai

    start = time.monotonic()
    try:
        async with asyncio.timeout(teacher.timeout_s):  # the client's own limit is one between two bytes
            raw = await client.chat.completions.with_raw_response.create(
                **teacher.arguments(question), extra_headers={CALL_ID_HEADER: call_id}
            )
        return _without_key(read_reply(raw.http_response.content), client.api_key), time.monotonic() - start
    except TimeoutError as error:
        raise _timed_out(teacher) from error
    except (openai.APIStatusError, openai.APIConnectionError) as error:
        raise _no_answer(teacher, error, failed_before, client.api_key) from None  # the cause quotes the endpoint, key and all
    except ValueError:
        raise NoAnswerError(Failure.UNREADABLE, "the response is not a chat completion") from None


def _timed_out(teacher: Teacher) -> NoAnswerError:
    return NoAnswerError(Failure.TIMEOUT, f"no answer within {teacher.timeout_s} s")


def _without_key(reply: Reply, key: str) -> Reply:
    """Take credentials out of a reply before anything keeps it: a proxy, or a model, may repeat the key it was sent."""

    def clean(text: str) -> str:
        return without_secrets(text, key, certain=True)

    calls = [{name: clean(value) for name, value in made.items()} for made in reply.calls]
    return dataclasses.replace(reply, content=clean(reply.content), calls=calls, finish_reason=clean(reply.finish_reason))


def _no_answer(
    teacher: Teacher, error: openai.APIStatusError | openai.APIConnectionError, failed_before: int, key: str
) -> NoAnswerError:
    import openai

    usual = min(8.0, 0.5 * 2 ** min(failed_before, 4)) * random.uniform(0.75, 1.0)
    if isinstance(error, openai.APIStatusError):
        return _refused(error, usual, key)
    cause = error.__cause__ or error
    if type(error.__cause__).__name__ in _NEVER_SENT:
        return NoAnswerError(
            Failure.UNREACHABLE,
            f"cannot be reached: {quoted(str(cause), key, most=_LONGEST_REASON)}",
            hopeless=True,
            pause_s=usual,
        )
    if isinstance(error, openai.APITimeoutError):
        return _timed_out(teacher)
    return NoAnswerError(Failure.LOST, f"the connection was lost: {quoted(str(cause), key, most=_LONGEST_REASON)}")


def _refused(error: openai.APIStatusError, usual: float, key: str) -> NoAnswerError:
    status = error.status_code
    reason = f"HTTP {status}: {quoted(error.message, key, most=_LONGEST_REASON)}"
    if status in _GATEWAY_STATUS:
        return NoAnswerError(Failure.GATEWAY, reason)
    if status < 500 and status not in _PASSING_STATUS:
        return NoAnswerError(Failure.REFUSED, reason, hopeless=status in _HOPELESS_STATUS)
    asked = _retry_after_s(error.response.headers.get("retry-after", ""))
    pause_s = max(usual, asked or 0.0)
    failure = Failure.RATE_LIMITED if status == 429 else Failure.SERVER
    return NoAnswerError(failure, reason, pause_s=pause_s if pause_s <= _LONGEST_PAUSE_S else None, everybody=asked is not None)


def _retry_after_s(text: str) -> float | None:
    """Parse RFC 9110 section 10.2.3: seconds or a date. None when it is neither."""
    try:
        asked = float(text)
    except ValueError:
        try:
            asked = parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, asked) if math.isfinite(asked) else None
