"""The options of a gate, which `composer plan` and `composer replay` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from composer_replication.types.errors import ConfigError

if TYPE_CHECKING:
    from composer_replication.teachers import Gate, Teacher
    from composer_replication.teachers.gate import Reason

__all__ = [
    "AuditOption",
    "CheapOption",
    "FindingsOption",
    "GateOption",
    "ReachOption",
    "SeedOption",
    "UncertainOption",
    "gate_of",
    "listed",
    "split_teachers",
    "without_gate",
]

GateOption: TypeAlias = Annotated[
    Literal["off", "flat", "cascade", "sweep", "any"],
    typer.Option(help="Which teachers to ask about which states; off asks all teachers about all states."),
]
CheapOption: TypeAlias = Annotated[str | None, typer.Option(help="Teacher to ask first; the cheapest by default.")]
UncertainOption: TypeAlias = Annotated[float, typer.Option(help="Share of the states that count as uncertain.")]
FindingsOption: TypeAlias = Annotated[bool, typer.Option(help="Treat a detector's finding as a reason to ask.")]
AuditOption: TypeAlias = Annotated[float, typer.Option(help="Probability of asking about a state that was left out.")]
SeedOption: TypeAlias = Annotated[int, typer.Option(help="Seed of the audit's draws.")]
ReachOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Steps after which a prompt cache forgets; never by default.")
]


def gate_of(rule: GateOption, *, uncertain: float, findings: bool, audit: float, seed: int) -> Gate | None:
    """Make the gate that options describe; None where it is off.

    Raises:
        ConfigError: a share is outside [0, 1], or the gate is off and one of the other options is not at its default.
    """
    from composer_replication.teachers import Gate

    given = {"uncertain": uncertain, "findings": findings, "audit": audit, "seed": seed}
    if rule != "off":
        return Gate(rule=rule, uncertain=uncertain, findings=findings, audit=audit, seed=seed)
    ignored = [name for name, value in given.items() if value != getattr(Gate(), name)]
    if ignored:
        raise without_gate(ignored[0])
    return None


def listed(reasons: Mapping[Reason, int]) -> str:
    """List why states are asked, with the number of each."""
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def without_gate(option: str) -> ConfigError:
    """Make the error for an option that only a gate reads."""
    return ConfigError(f"--{option} says how a gate decides, and there is none", fix="choose one with --gate, or leave it out")


def split_teachers(teachers: Sequence[Teacher], gate: Gate | None, cheap: str | None) -> tuple[list[Teacher], list[Teacher]]:
    """Split the teachers into the first and the second tier; without a gate all are in the first.

    Raises:
        ConfigError: no teacher is called `cheap`, one is named without a gate, or there are not two teachers with prices.
    """
    from composer_replication.teachers import cheapest

    if gate is None:
        if cheap is not None:
            raise without_gate("cheap")
        return list(teachers), []
    name = cheapest(teachers).name if cheap is None or len(teachers) < 2 else cheap
    if name not in {t.name for t in teachers}:
        raise ConfigError(f"--cheap {name}: no such teacher", fix=f"name one of: {', '.join(t.name for t in teachers)}")
    return [t for t in teachers if t.name == name], [t for t in teachers if t.name != name]
