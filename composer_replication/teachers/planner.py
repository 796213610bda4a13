"""Estimates of a replay's cost before anything is spent: per teacher and in all, with a range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from composer_replication.observe import usd
from composer_replication.teachers.gate import Gate, Reason
from composer_replication.teachers.pool import TeacherAnswer
from composer_replication.teachers.tariff import Bill, ReplayStep, Tariff, bill, window_tariff
from composer_replication.teachers.teacher import Teacher
from composer_replication.types.errors import BudgetExceededError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Assumptions about what is unknown before asking."""

    bytes_per_token: float
    """Bytes per token of the teachers' tokenizers, on prompts as JSON."""
    answer_tokens: float
    """Mean length of an answer, reasoning included."""
    hit_rate: float
    """Share of a prefix that was sent before and is read at the price of the cache, where a teacher has one."""
    disagrees: float
    """Share of the cheap teacher's answers that are not certainly the student's action."""


LOW = Scenario(bytes_per_token=4.5, answer_tokens=100.0, hit_rate=1.0, disagrees=0.2)
EXPECTED = Scenario(bytes_per_token=3.5, answer_tokens=400.0, hit_rate=0.9, disagrees=0.5)
HIGH = Scenario(bytes_per_token=2.5, answer_tokens=1500.0, hit_rate=0.0, disagrees=1.0)
"""Assumptions, not measurements; `measured` replaces them by what a pilot run saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """One number in three scenarios."""

    low: float
    expected: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(low=self.low + other.low, expected=self.expected + other.expected, high=self.high + other.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTeacher:
    """One line of a plan."""

    teacher: str
    tier: int
    """1 is asked first."""
    answers: Range
    prompt_tokens: Range
    cached_tokens: Range
    """Prompt tokens expected from the endpoint's cache."""
    usd: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The expected cost of a replay."""

    states: int
    teachers: tuple[PlannedTeacher, ...]
    usd: Range
    reasons: Mapping[Reason, int]
    """Why the first tier asks, in numbers of states; empty without a gate."""
    call_usd: float
    """Highest cost of one call: a pool makes it only when that fits under the cap beside what is spent."""

    @property
    def ample_usd(self) -> float:
        """A cap that lets every call through, should the replay cost no more than the high estimate."""
        return self.usd.high + self.call_usd


def plan(
    steps: Sequence[ReplayStep],
    *,
    first: Sequence[Teacher],
    second: Sequence[Teacher] = (),
    gate: Gate | None = None,
    scenarios: tuple[Scenario, Scenario, Scenario] = (LOW, EXPECTED, HIGH),
    reach: int | None = None,
) -> ReplayPlan:
    """Estimate the cost of asking `first` what the gate lets through, and `second` what is left open; everything without a gate.

    The first tier's states are known, with its windows and what the audit draws. In the second a state has a chance, and a window
    that of the two states it lies between. Calls that have to be made twice are not part of any scenario, and neither are answers
    that the ledger has already.

    Args:
        scenarios: low, expected, high.
        reach: how many steps after a prompt was sent the endpoints' caches find it (`Tariff.reach`); None for any number.

    Raises:
        ConfigError: a teacher's price is unknown.
    """
    decisions = [] if gate is None else gate.first(steps, window_tariff(first, reach))
    asked = {s.state_id: 1.0 for s in steps if gate is None} | {d.state_id: 1.0 for d in decisions if d.reasons}
    lines = [_line(1, t, [bill(steps, asked, _tariff(t, s, reach)) for s in scenarios]) for t in first]
    windows = None if gate is None or not second else window_tariff(second, reach)
    foreseen = [(asked, set[str]()) if gate is None else gate.foreseen(steps, decisions, s.disagrees) for s in scenarios]
    for teacher in second:
        bills = [
            bill(steps, chances, _tariff(teacher, scenario, reach), always=drawn, windows=windows)
            for scenario, (chances, drawn) in zip(scenarios, foreseen, strict=True)
        ]
        lines.append(_line(2, teacher, bills))
    total = sum((line.usd for line in lines), Range(low=0.0, expected=0.0, high=0.0))
    reasons = Counter(reason for d in decisions for reason in d.reasons)
    dearest = max((t.bound_usd(s.prompt_bytes) or 0.0 for t in (*first, *second) for s in steps), default=0.0)
    return ReplayPlan(states=len(steps), teachers=tuple(lines), usd=total, reasons=dict(reasons), call_usd=dearest)


def _tariff(teacher: Teacher, scenario: Scenario, reach: int | None) -> Tariff:
    return Tariff.of(
        teacher,
        bytes_per_token=scenario.bytes_per_token,
        answer_tokens=scenario.answer_tokens,
        hit_rate=scenario.hit_rate,
        reach=reach,
    )


def _line(tier: int, teacher: Teacher, bills: Sequence[Bill]) -> PlannedTeacher:
    def span(name: str) -> Range:
        low, expected, high = (getattr(b, name) for b in bills)
        return Range(low=low, expected=expected, high=high)

    return PlannedTeacher(
        teacher=teacher.name,
        tier=tier,
        answers=span("answers"),
        prompt_tokens=span("prompt_tokens"),
        cached_tokens=span("cached_tokens"),
        usd=span("usd"),
    )


def measured(scenario: Scenario, steps: Sequence[ReplayStep], answers: Sequence[TeacherAnswer]) -> Scenario:
    """Return the scenario with token counts measured on a pilot's answers; unchanged where they have none."""
    size = {s.state_id: s.prompt_bytes for s in steps}
    counted = [a for a in answers if a.prompt_tokens and a.question_id in size]
    if not counted:
        return scenario
    return replace(
        scenario,
        bytes_per_token=sum(size[a.question_id] for a in counted) / sum(a.prompt_tokens for a in counted),
        answer_tokens=sum(a.completion_tokens for a in counted) / len(counted),
    )


def warn_of_cap(planned: ReplayPlan, max_total_usd: float | None, *, spent_usd: float = 0.0) -> str | None:
    """Return a warning about a cap that does not let every call through at the high estimate; None when there is none.

    Raises:
        BudgetExceededError: it does not at the expected cost.
    """
    if max_total_usd is None:
        return None
    left = max_total_usd - spent_usd
    needed, held = planned.usd.expected + planned.call_usd, f"${usd(planned.call_usd)} of it held while a call is under way"
    if left < needed:
        raise BudgetExceededError(
            f"${usd(left)} is left under the cap and the replay is expected to need ${usd(needed)}, "
            f"{held} (it costs ${usd(planned.usd.low)} to ${usd(planned.usd.high)})",
            fix="raise the cap, replay fewer states, close the gate further or ask cheaper teachers",
        )
    if left < planned.ample_usd:
        return f"the cap leaves ${usd(left)}, and the replay may need up to ${usd(planned.ample_usd)}, {held}"
    return None
