"""What answers cost before any is bought: growing prompts, the endpoint's prompt cache, and chances of being asked.

The prompt of a trace's step is that of the step before it and a little more, so the tokens sent grow with the square of the
number of steps, and most of them can be read from a cache. Sizes are UTF-8 bytes until a tariff makes them tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from composer_replication.errors import ConfigError
from composer_replication.teachers.teacher import Teacher

__all__ = ["Bill", "Step", "Tariff", "bill", "by_trace"]

_NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is known of a state before anybody is asked."""

    state_id: str
    trace_id: str
    """Steps of one trace stand in their order, whatever stands between them."""
    prompt_bytes: int
    """Size of its messages and tools."""
    extends: bool = False
    """Its prompt begins with the whole prompt of the trace's step before it, so that a cache can help."""
    entropy: float | None = None
    """Mean entropy of the policy over the action's tokens, in nats; None where nobody measured it."""
    findings: tuple[str, ...] = ()
    """Kinds of error that detectors found in the action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """One teacher's prices in USD per million tokens, and how many tokens there will be."""

    fresh: float
    """Of prompt tokens outside any cache."""
    answer: float
    cache_read: float
    """Equal to `fresh` for an endpoint without a cache."""
    cache_write: float
    """Of prompt tokens that are put into the cache; equal to `fresh` where that costs nothing more."""
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
        """At the teacher's own prices. No answer is longer than its `max_tokens`; a cache without a lower price counts for none.

        Raises:
            ConfigError: a price is unknown.
        """
        fresh, answer = teacher.usd_per_million_input, teacher.usd_per_million_output
        if fresh is None or answer is None:
            raise ConfigError(
                f"teacher {teacher.name!r} has no price, so nobody can say what it will cost",
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

    def usd(self, prompt_bytes: float, shared_bytes: float) -> float:
        """One answer to a prompt of which `shared_bytes` stand in the cache."""
        read = shared_bytes * self.hit_rate
        prompt = (prompt_bytes - read) * self.cache_write + read * self.cache_read
        return (prompt / self.bytes_per_token + self.answer_tokens * self.answer) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Expected numbers for one teacher."""

    answers: float
    prompt_tokens: float
    cached_tokens: float
    """Those of the prompts that are read from the cache."""
    usd: float


def by_trace(steps: Sequence[Step]) -> list[list[int]]:
    """Indices of the steps of each trace, in order."""
    traces: defaultdict[str, list[int]] = defaultdict(list)
    for index, step in enumerate(steps):
        traces[step.trace_id].append(index)
    return list(traces.values())


def bill(steps: Sequence[Step], chances: Mapping[str, float], tariff: Tariff) -> Bill:
    """Expectation over the steps that are asked, each independently with its chance by `state_id` (0 when it has none).

    Exact where every chance is 0 or 1. What a prompt shares with the cache is the whole prompt of the last step asked before it
    in its trace, if that is within reach; its expectation is a sum over which step that was.
    """
    answers = prompt = cached = usd = 0.0
    for trace in by_trace(steps):
        last: list[tuple[int, float, int]] = []  # (index in the trace, chance that it was the last one asked, bytes)
        for i, index in enumerate(trace):
            step = steps[index]
            chance = chances.get(step.state_id, 0.0)
            last = [entry for entry in last if step.extends and (tariff.reach is None or i - entry[0] <= tariff.reach)]
            shared = sum(asked * size for _, asked, size in last)
            if chance > 0.0:
                answers += chance
                prompt += chance * step.prompt_bytes / tariff.bytes_per_token
                cached += chance * shared * tariff.hit_rate / tariff.bytes_per_token
                usd += chance * tariff.usd(step.prompt_bytes, shared)
                last = [(j, asked * (1.0 - chance), size) for j, asked, size in last if asked * (1.0 - chance) > _NEGLIGIBLE]
                last.append((i, chance, step.prompt_bytes))
    return Bill(answers=answers, prompt_tokens=prompt, cached_tokens=cached, usd=usd)
