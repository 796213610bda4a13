"""The options of a gate, which `composer plan` and `composer replay` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from composer_replication.types.errors import ConfigError

if TYPE_CHECKING:
    from composer_replication.config import GateConfig

GateOption: TypeAlias = Annotated[
    Literal["off", "flat", "cascade", "sweep", "any"],
    typer.Option(help="Which teachers to ask about which states; off asks all teachers about all states."),
]
CheapOption: TypeAlias = Annotated[str | None, typer.Option(help="Teacher to ask first; the cheapest by default.")]
UncertainOption: TypeAlias = Annotated[float, typer.Option(help="Share of the states that count as uncertain.")]
FindingsOption: TypeAlias = Annotated[bool, typer.Option(help="Treat a detector's finding as a reason to ask.")]
DoubtfulOption: TypeAlias = Annotated[
    float, typer.Option(help="Share of the states with a student_score that count as doubtful: the lowest.")
]
AuditOption: TypeAlias = Annotated[float, typer.Option(help="Probability of asking about a state that was left out.")]
SeedOption: TypeAlias = Annotated[int, typer.Option(help="Seed of the audit's draws.")]
ReachOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Steps after which a prompt cache forgets; never by default.")
]


def gate_options(
    rule: GateOption,
    *,
    cheap: str | None,
    uncertain: float,
    findings: bool,
    doubtful: float,
    audit: float,
    seed: int,
    reach: int | None,
) -> GateConfig:
    """Return the options of a command as the section that a run file has.

    Raises:
        ConfigError: a share is outside [0, 1], or the gate is off and one of the other options is not at its default.
    """
    from composer_replication.config import GateConfig

    given = {"cheap": cheap, "uncertain": uncertain, "findings": findings, "doubtful": doubtful, "audit": audit, "reach": reach}
    defaults = GateConfig()
    ignored = [name for name, value in given.items() if value != getattr(defaults, name)] + (["seed"] if seed else [])
    if rule == "off" and ignored:
        raise ConfigError(
            f"--{ignored[0]} says how a gate decides, and there is none", fix="choose one with --gate, or leave it out"
        )
    for name, share in (("uncertain", uncertain), ("doubtful", doubtful), ("audit", audit)):
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"the gate's {name} is {share}", fix=f"give --{name} as a share between 0 and 1")
    return GateConfig(rule=rule, cheap=cheap, uncertain=uncertain, findings=findings, doubtful=doubtful, audit=audit, reach=reach)
