"""Expected costs of answers before any is bought: growing prompts, the endpoint's prompt cache, and chances of being asked.

The prompt of a trace's step is that of the step before it and a little more, so the tokens sent grow with the square of the
number of steps, and most of them can be read from a cache. Sizes are UTF-8 bytes until a tariff makes them tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from composer_replication.teachers.teacher import Teacher
from composer_replication.types.errors import ConfigError

_NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """The known facts about a state before any teacher is asked."""

    state_id: str
    trace_id: str
    """Trace of the step. Steps of one trace keep their order, whatever stands between them."""
    prompt_bytes: int
    """Size of its messages and tools."""
    extends: bool = False
    """Its prompt begins with the whole prompt of the trace's step before it, so that a cache can help."""
    entropy: float | None = None
    """Mean entropy of the policy over the action's tokens, in nats; None where it was not measured."""
    findings: tuple[str, ...] = ()
    """Kinds of error that detectors found in the action."""
    score: float | None = None
    """Probability that the action is good, as a process reward model has it; None where none was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """One teacher's prices in USD per million tokens, and how many tokens there will be."""

    fresh: float
    """Price of prompt tokens outside any cache."""
    answer: float
    cache_read: float
    """Equal to `fresh` for an endpoint without a cache."""
    cache_write: float
    """Price of prompt tokens written to the cache; equal to `fresh` where that costs nothing more."""
    bytes_per_token: float = 3.5
    answer_tokens: float = 400.0
    """Mean tokens of an answer, reasoning included."""
    hit_rate: float = 1.0
    """Share of the shared prefix that is really read from the cache."""
    reach: int | None = None
    """How many steps after a prompt was sent the cache still finds it; None for any number. Anthropic's looks back 20 content
    blocks (platform.claude.com/docs/en/build-with-claude/prompt-caching), about 7 steps of text, call and result."""

    @classmethod
    def of(
        cls,
        teacher: Teacher,
        *,
        bytes_per_token: float = 3.5,
        answer_tokens: float = 400.0,
        hit_rate: float = 1.0,
        reach: int | None = None,
    ) -> Tariff:
        """Make a tariff at the teacher's own prices. No answer is longer than its `max_tokens`; a cache without a lower price
        counts as none.

        Raises:
            ConfigError: a price is unknown.
        """
        fresh, answer = teacher.usd_per_million_input, teacher.usd_per_million_output
        if fresh is None or answer is None:
            raise ConfigError(
                f"teacher {teacher.name!r} has no price, so its cost cannot be estimated",
                fix="set usd_per_million_input and usd_per_million_output of this teacher (0 for a local endpoint)",
            )
        read, write = teacher.usd_per_million_cache_read, teacher.usd_per_million_cache_write
        return cls(
            fresh=fresh,
            answer=answer,
            cache_read=fresh if read is None else read,
            cache_write=fresh if write is None else write,
            bytes_per_token=bytes_per_token,
            answer_tokens=min(answer_tokens, teacher.max_tokens),
            hit_rate=0.0 if read is None or read >= fresh else hit_rate,
            reach=reach,
        )

    def usd(self, prompt_bytes: float, shared_bytes: float, answers: float = 1.0) -> float:
        """Return the cost of answers to prompts of `prompt_bytes` in all, of which `shared_bytes` are in the cache."""
        read = shared_bytes * self.hit_rate
        prompt = (prompt_bytes - read) * self.cache_write + read * self.cache_read
        return (prompt / self.bytes_per_token + answers * self.answer_tokens * self.answer) / 1e6


def window_tariff(teachers: Sequence[Teacher], reach: int | None) -> Tariff | None:
    """Return the tariff that decides about windows: of the teacher with the most expensive cold prompt. None without a cache's
    end.

    Raises:
        ConfigError: a price is unknown.
    """
    if reach is None:
        return None
    return max((Tariff.of(t, reach=reach) for t in teachers), key=lambda t: t.cache_write - t.cache_read)


class RequestSize(NamedTuple):
    """Amount sent to a teacher, and how often it must answer."""

    prompt: float = 0.0
    """Bytes."""
    shared: float = 0.0
    """Those of them in the cache."""
    answers: float = 0.0

    def plus(self, other: RequestSize, times: float = 1.0) -> RequestSize:
        """Return the sum of both, the other multiplied by `times`."""
        prompt, shared = self.prompt + times * other.prompt, self.shared + times * other.shared
        return RequestSize(prompt, shared, self.answers + times * other.answers)


class Gaps:
    """Amounts sent from one asked step of a trace to the next, whether those between are asked or not. Steps are 0-based."""

    def __init__(self, trace: Sequence[ReplayStep]) -> None:
        self._sizes = [step.prompt_bytes for step in trace]
        self._cuts = [*accumulate(not step.extends for step in trace)]
        self._prompts = [*accumulate(self._sizes)]
        self._shared = [*accumulate(size if step.extends else 0 for size, step in zip([0, *self._sizes], trace, strict=False))]

    def next(self, last: int | None, step: int, reach: int | None) -> RequestSize:
        """Return the request for a step whose predecessor in the cache is `last`; None for none."""
        warm = last is not None and self._cuts[last] == self._cuts[step] and (reach is None or step - last <= reach)
        return RequestSize(self._sizes[step], self._sizes[last] if warm and last is not None else 0, 1.0)

    def filled(self, before: int, after: int) -> RequestSize:
        """Return every step after `before` up to `after`."""
        return RequestSize(
            self._prompts[after] - self._prompts[before], self._shared[after] - self._shared[before], after - before
        )

    def fills(self, before: int, after: int, tariff: Tariff) -> bool:
        """Return whether asking all steps between the two is cheaper than what the later one costs by itself.

        Within the cache's reach the later prompt still finds the earlier one, and filling the gap only costs; beyond it, the
        whole later prompt is paid for again, unless every step between is asked.
        """
        alone = tariff.usd(*self.next(before, after, tariff.reach))
        return after - before > 1 and tariff.usd(*self.filled(before, after)) < alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Expected numbers for one teacher."""

    answers: float
    prompt_tokens: float
    cached_tokens: float
    """Prompt tokens read from the cache."""
    usd: float


def by_trace(steps: Sequence[ReplayStep]) -> list[list[int]]:
    """Return the indices of the steps of each trace, in order."""
    traces: defaultdict[str, list[int]] = defaultdict(list)
    for index, step in enumerate(steps):
        traces[step.trace_id].append(index)
    return list(traces.values())


def bill(
    steps: Sequence[ReplayStep],
    chances: Mapping[str, float],
    tariff: Tariff,
    *,
    always: Collection[str] = (),
    windows: Tariff | None = None,
) -> Bill:
    """Return the expectation over the steps that are asked, each independently with its chance by `state_id` (0 when it has
    none).

    Exact but for outcomes less likely than one in a billion. What a prompt shares with the cache is the whole prompt of the last
    step asked before it in its trace, if that is within reach.

    Args:
        always: ids of steps that are asked even where chance does not have it, and no window is for their sake.
        windows: fills gaps between two steps that chance has asked, where `Gaps.fills` at this tariff; None for no windows.
    """
    total = RequestSize()
    for trace in by_trace(steps):
        total = total.plus(_expected([steps[index] for index in trace], chances, always, tariff.reach, windows))
    return Bill(
        answers=total.answers,
        prompt_tokens=total.prompt / tariff.bytes_per_token,
        cached_tokens=total.shared * tariff.hit_rate / tariff.bytes_per_token,
        usd=tariff.usd(*total),
    )


@dataclass(slots=True)
class _Course:
    """One way in which a trace may have gone up to some step."""

    chance: float
    drawn: int | None
    """The last step that chance has asked."""
    last: int | None
    """The last step asked at all, unless a window fills the gap that begins at `drawn`."""
    pending: RequestSize
    """Sent since `drawn`, unless a window fills the gap."""


def _expected(
    trace: Sequence[ReplayStep], chances: Mapping[str, float], always: Collection[str], reach: int | None, windows: Tariff | None
) -> RequestSize:
    gaps, total = Gaps(trace), RequestSize()
    courses = [_Course(1.0, None, None, RequestSize())]
    for i, step in enumerate(trace):
        chance = chances.get(step.state_id, 0.0)
        if chance > 0.0:
            for course in courses:
                fills = windows is not None and course.drawn is not None and gaps.fills(course.drawn, i, windows)
                if fills and course.drawn is not None:
                    sent = gaps.filled(course.drawn, i)
                else:
                    sent = course.pending.plus(gaps.next(course.last, i, reach))
                total = total.plus(sent, course.chance * chance)
                course.chance *= 1.0 - chance
            courses = [course for course in courses if course.chance > _NEGLIGIBLE]
        if step.state_id in always:
            for course in courses:
                course.pending, course.last = course.pending.plus(gaps.next(course.last, i, reach)), i
        if chance > 0.0:
            courses.append(_Course(chance, i, i, RequestSize()))
    for course in courses:
        total = total.plus(course.pending, course.chance)
    return total
