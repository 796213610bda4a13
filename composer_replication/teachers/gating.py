"""A gate as the options describe it: which teachers come first, what is asked, and what to say of it afterwards.

`composer replay`, `composer plan` and training go through these functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.config import GateConfig
from composer_replication.teachers.gate import Gate, Reason
from composer_replication.teachers.mining.pair_mining import extract_dpo_pairs
from composer_replication.teachers.pool import TeacherAnswer
from composer_replication.teachers.teacher import Teacher
from composer_replication.teachers.tiers import TieredAnswers, cheapest
from composer_replication.traces import TraceState
from composer_replication.types import to_json
from composer_replication.types.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GatedAnswers:
    """The answers of a replay, and what its gate decided."""

    answers: Sequence[TeacherAnswer]
    tiered: TieredAnswers | None = None
    """The answers with the gate's decisions; None where there was no gate."""

    def asked(self, states: Sequence[TraceState]) -> set[str]:
        """Return the ids of the states that were put to at least one teacher."""
        if self.tiered is None:
            return {state["state_id"] for state in states}
        return {d.state_id for tier in (self.tiered.first, self.tiered.second) for d in tier if d.reasons}

    def outcome(self, states: Sequence[TraceState]) -> dict[str, Any] | None:
        """Return why how many states were asked in each tier, and what the audit says of the others, as plain JSON data.

        None where there was no gate.
        """
        found = self.tiered
        if found is None:
            return None
        drawn = [s for s in states if s["state_id"] in found.audit.drawn]
        pairs = {p["state_id"] for p in extract_dpo_pairs(drawn, found.answers)}
        first, second = (dict(Counter(reason for d in tier for reason in d.reasons)) for tier in (found.first, found.second))
        return {"first": first, "second": second, "missed": to_json(found.missed(pairs)) if found.audit.chance else None}


def gate_of(options: GateConfig, seed: int) -> Gate | None:
    """Return the gate that the options describe, or None where it is off. `seed` decides the draws of its audit."""
    if options.rule == "off":
        return None
    return Gate(**options.model_dump(exclude={"cheap", "reach"}), seed=seed)


def split_teachers(teachers: Sequence[Teacher], options: GateConfig) -> tuple[list[Teacher], list[Teacher]]:
    """Return the teachers of the first and of the second tier; without a gate all are in the first.

    Raises:
        ConfigError: no teacher is called `options.cheap`, or there are not two teachers with prices.
    """
    if options.rule == "off":
        return list(teachers), []
    name = cheapest(teachers).name if options.cheap is None or len(teachers) < 2 else options.cheap
    if name not in {t.name for t in teachers}:
        raise ConfigError(
            f"the gate asks {name} first, and there is no such teacher", fix=f"name one of: {', '.join(t.name for t in teachers)}"
        )
    return [t for t in teachers if t.name == name], [t for t in teachers if t.name != name]


def listed(reasons: Mapping[Reason, int]) -> str:
    """Return why states are asked, with the number of states for each reason."""
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def outcome_lines(outcome: Mapping[str, Any]) -> list[str]:
    """Return what to tell people about `GatedAnswers.outcome`."""
    lines = [f"asked first: {listed(outcome['first']) or 'nothing'}; then: {listed(outcome['second']) or 'nothing'}"]
    missed = outcome["missed"]
    if missed is not None:
        lines.append(
            f"the audit asked about {missed['drawn']} of {missed['population']} states that the gate left out; {missed['found']} "
            f"gave a pair, so about {missed['estimate']:.0f} would ({missed['low']} to {missed['high']} at 95 %)"
        )
    return lines
