"""Which states are worth asking teachers about, and why: the value of information.

A state is worth an answer when the policy was uncertain there, when a detector found an error in its action, when a process
reward model scores the action low, or when a cheap teacher would have done something else. Entropy alone does not do: a policy
can be certain and wrong, and those states it misses (TIP, arXiv 2604.14084). What all of them miss is estimated by an audit
(`audit.py`).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from composer_replication.teachers.audit import Audit
from composer_replication.teachers.tariff import Gaps, ReplayStep, Tariff, by_trace
from composer_replication.types.errors import ConfigError

Reason: TypeAlias = Literal[
    "high entropy",
    "entropy unknown",
    "finding",
    "low score",
    "every state",
    "the cheap teacher does not agree",
    "window",
    "audit",
]
"""Why a state is asked. `window`: it lies between two others, and asking it too costs less than the cold prompt after a gap."""

Rule: TypeAlias = Literal["flat", "cascade", "sweep", "any"]
"""The teachers that the grounds (high entropy, a finding, a low score) decide about.

- `flat`: all teachers are asked where there is a ground.
- `cascade`: the cheap teacher where there is a ground, the others where it does not agree with the student.
- `sweep`: the cheap teacher everywhere, the others where it does not agree.
- `any`: the cheap teacher everywhere, the others where it does not agree or there is a ground.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A tier's decision on a state."""

    state_id: str
    reasons: tuple[Reason, ...]
    """Reasons for asking; empty when the state is not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Decides which teachers to ask, deterministically for the same states and seed.

    Raises:
        ConfigError: a share is outside [0, 1].
    """

    rule: Rule = "cascade"
    uncertain: float = 0.3
    """Share of the states with a known entropy that count as uncertain: those with the highest. 0 turns this ground off."""
    findings: bool = True
    """A detector's finding is a ground."""
    doubtful: float = 0.0
    """Share of the states with a score of a process reward model that count as doubtful: those with the lowest. 0 turns this
    ground off."""
    unknown: Literal["ask", "skip"] = "ask"
    """How to treat a state without an entropy, such as those of foreign traces: the first tier asks about it, or leaves it to
    other grounds. Where the cheap teacher is asked everywhere, its answer decides."""
    audit: float = 0.05
    """Probability of asking a state that the gate would leave out."""
    seed: int = 0
    """Seed of the audit's draws; each depends on the seed and the state's id alone."""

    def __post_init__(self) -> None:
        for name in ("uncertain", "doubtful", "audit"):
            share = getattr(self, name)
            if not 0.0 <= share <= 1.0:
                raise ConfigError(f"the gate's {name} is {share}", fix=f"give {name} as a share between 0 and 1")

    def uncertain_ids(self, steps: Sequence[ReplayStep]) -> set[str]:
        """Return ids of the states with the highest entropies, as many as `uncertain` says; among equals a draw decides."""
        known = [(-s.entropy, self._draw(0, s.state_id), s.state_id) for s in steps if s.entropy is not None]
        return {state_id for _, _, state_id in sorted(known)[: round(self.uncertain * len(known))]}

    def doubtful_ids(self, steps: Sequence[ReplayStep]) -> set[str]:
        """Return the ids of the states with the lowest scores, as many as `doubtful` says; among equals a draw decides."""
        known = [(s.score, self._draw(3, s.state_id), s.state_id) for s in steps if s.score is not None]
        return {state_id for _, _, state_id in sorted(known)[: round(self.doubtful * len(known))]}

    def grounds(self, step: ReplayStep, uncertain: Collection[str], doubtful: Collection[str] = ()) -> tuple[Reason, ...]:
        """Return the grounds for asking a state, considered by itself."""
        found: list[Reason] = []
        if step.entropy is None and self.unknown == "ask" and self.uncertain > 0.0:
            found.append("entropy unknown")
        if step.state_id in uncertain:
            found.append("high entropy")
        if self.findings and step.findings:
            found.append("finding")
        if step.state_id in doubtful:
            found.append("low score")
        return tuple(found)

    def first(self, steps: Sequence[ReplayStep], tariff: Tariff | None = None) -> list[Decision]:
        """Decide what the first tier asks, state by state: the cheap teacher, or all teachers under `flat`.

        Args:
            tariff: of the teacher that is asked; None for no windows.
        """
        uncertain, doubtful = self.uncertain_ids(steps), self.doubtful_ids(steps)
        reasons: list[tuple[Reason, ...]] = [self.grounds(step, uncertain, doubtful) for step in steps]
        if self.rule in ("sweep", "any"):
            reasons = [(*found, "every state") for found in reasons]
        reasons = _with_windows(steps, reasons, tariff)
        return [
            Decision(state_id=s.state_id, reasons=found or self._drawn(1, s.state_id))
            for s, found in zip(steps, reasons, strict=True)
        ]

    def second(
        self, steps: Sequence[ReplayStep], first: Sequence[Decision], agrees: Collection[str], tariff: Tariff | None = None
    ) -> list[Decision]:
        """Decide what the second tier asks of the other teachers, once the cheap one has answered.

        Args:
            first: what `first` decided on these steps.
            agrees: ids of the states where the cheap teacher certainly did what the student did.
            tariff: as above, of the most expensive of them.
        """
        uncertain, doubtful = self.uncertain_ids(steps), self.doubtful_ids(steps)
        reasons: list[tuple[Reason, ...]] = []
        for step, decision in zip(steps, first, strict=True):
            found: tuple[Reason, ...] = ()
            if self.rule == "flat":
                found = tuple(r for r in decision.reasons if r != "audit")
            elif decision.reasons and decision.reasons != ("audit",):
                own = self.grounds(step, uncertain, doubtful) if self.rule == "any" else ()
                found = tuple(r for r in own if r != "entropy unknown")
                found += () if step.state_id in agrees else ("the cheap teacher does not agree",)
            reasons.append(found)
        return [
            Decision(state_id=d.state_id, reasons=found or self._second_audit(d))
            for d, found in zip(first, _with_windows(steps, reasons, tariff), strict=True)
        ]

    def foreseen(
        self, steps: Sequence[ReplayStep], first: Sequence[Decision], disagrees: float
    ) -> tuple[dict[str, float], set[str]]:
        """Predict `second` before the cheap teacher has answered: chances by id, and the ids that the audit draws.

        The chance is that of a reason other than a window or the audit. What the audit draws is asked at any rate; it follows
        from the seed.

        Args:
            first: what `first` decided on these steps.
            disagrees: chance of each of the cheap teacher's answers not to be certainly the student's action.
        """
        agreed, open_ = (self.second(steps, first, ids) for ids in ({s.state_id for s in steps}, ()))
        chances = {d.state_id: disagrees for d in open_ if d.reasons not in ((), ("audit",))}
        chances |= {d.state_id: 1.0 for d in agreed if d.reasons not in ((), ("audit",))}
        return chances, {d.state_id for d in agreed if d.reasons == ("audit",)}

    def _second_audit(self, first: Decision) -> tuple[Reason, ...]:
        """Ask in full what the first tier's audit drew; where the cheap teacher was believed, draw again."""
        if first.reasons == ("audit",):
            return first.reasons
        return self._drawn(2, first.state_id) if first.reasons else ()

    def _drawn(self, tier: int, state_id: str) -> tuple[Reason, ...]:
        return ("audit",) if self._draw(tier, state_id) < self.audit else ()

    def _draw(self, purpose: int, state_id: str) -> float:
        return random.Random(f"{self.seed} {purpose} {state_id}").random()

    def audited(self, second: Sequence[Decision]) -> Audit:
        """Return the audit of both tiers together: what chance alone had asked, out of all that it decided about."""
        left_out = [d for d in second if d.reasons in ((), ("audit",))]
        return Audit(chance=self.audit, population=len(left_out), drawn=frozenset(d.state_id for d in left_out if d.reasons))


def windows(steps: Sequence[ReplayStep], asked: Collection[str], tariff: Tariff) -> set[str]:
    """Return ids of states to ask besides `asked`, so that the prompt cache stays warm where that is cheaper than a cold prompt.

    Between two asked states of a trace lies a gap; `Gaps.fills` decides about it.
    """
    added: set[str] = set()
    for trace in by_trace(steps):
        gaps = Gaps([steps[index] for index in trace])
        chosen = [i for i, index in enumerate(trace) if steps[index].state_id in asked]
        for before, after in pairwise(chosen):
            if gaps.fills(before, after, tariff):
                added |= {steps[index].state_id for index in trace[before + 1 : after]}
    return added


def _with_windows(
    steps: Sequence[ReplayStep], reasons: Sequence[tuple[Reason, ...]], tariff: Tariff | None
) -> list[tuple[Reason, ...]]:
    if tariff is None:
        return list(reasons)
    asked = {step.state_id for step, found in zip(steps, reasons, strict=True) if found}
    added = windows(steps, asked, tariff)
    return [("window",) if step.state_id in added else found for step, found in zip(steps, reasons, strict=True)]
