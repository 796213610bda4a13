"""`composer plan`: what a replay will cost, before anything is spent."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer
from rich.console import Console

from composer_replication.cli.replay_cmd import read_states
from composer_replication.config import load_teachers
from composer_replication.errors import ConfigError
from composer_replication.observe import Terminal, usd

if TYPE_CHECKING:
    from composer_replication.teachers import Gate, Plan, Scenario, Teacher
    from composer_replication.teachers.planner import Range

__all__ = ["GateOption", "gate_of", "plan", "split_teachers"]

GateOption: TypeAlias = Literal["off", "flat", "cascade", "sweep", "any"]


def plan(
    states: Annotated[Path, typer.Argument(help="States, one JSON object a line: state_id, messages, student_action, ...")],
    teachers: Annotated[Path, typer.Option(help="TOML file with \\[\\[teachers]] tables, as a run file has them.")],
    gate: Annotated[GateOption, typer.Option(help="Whom to ask where; off asks everybody about everything.")] = "off",
    cheap: Annotated[str | None, typer.Option(help="Teacher that is asked first; the cheapest by default.")] = None,
    uncertain: Annotated[float, typer.Option(help="Share of the states that count as uncertain.")] = 0.3,
    findings: Annotated[bool, typer.Option(help="Whether a detector's finding is a ground.")] = True,
    audit: Annotated[float, typer.Option(help="Chance that what is left out is asked all the same.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Of the audit's draws.")] = 0,
    reach: Annotated[
        int | None, typer.Option(min=1, help="Steps after which a prompt cache has forgotten; never by default.")
    ] = None,
    bytes_per_token: Annotated[float | None, typer.Option(min=0.1, help="Known from a pilot.")] = None,
    answer_tokens: Annotated[float | None, typer.Option(min=0.0, help="Mean of an answer, known from a pilot.")] = None,
    hit_rate: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Share of known prefixes read from the cache.")] = None,
    disagrees: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Share of the cheap answers that are not the student's action."),
    ] = None,
    max_usd: Annotated[float | None, typer.Option(min=0.0, help="The cap that is meant; exit with 6 if it will not do.")] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the plan as one JSON object, and all else to stderr.")
    ] = False,
) -> None:
    """Print what a replay will cost, per teacher and in all: at the least, expected, and at the most.

    Asks nobody. Exits with 6 when the expected cost is above --max-usd.
    """
    from composer_replication.replay_steps import steps_of
    from composer_replication.teachers import Teacher, warn_of_cap
    from composer_replication.teachers import plan as plan_replay

    terminal = Terminal(Console(stderr=True) if json_output else None)
    chosen = [Teacher.of(config) for config in load_teachers(teachers)]
    steps = steps_of(read_states(states))
    asked = gate_of(gate, uncertain=uncertain, findings=findings, audit=audit, seed=seed)
    first, second = split_teachers(chosen, asked, cheap)
    known = {"bytes_per_token": bytes_per_token, "answer_tokens": answer_tokens, "hit_rate": hit_rate, "disagrees": disagrees}
    planned = plan_replay(steps, first=first, second=second, gate=asked, scenarios=_scenarios(known), reach=reach)
    _show(terminal, planned, without_entropy=sum(s.entropy is None for s in steps) if asked is not None else 0)
    if json_output:
        typer.echo(json.dumps(dataclasses.asdict(planned)))
    warning = warn_of_cap(planned, max_usd)
    if warning is not None:
        terminal.note(f"warning: {warning}")


def gate_of(rule: GateOption, *, uncertain: float, findings: bool, audit: float, seed: int) -> Gate | None:
    """The gate that options describe; None where it is off. Raises ConfigError."""
    from composer_replication.teachers import Gate

    return None if rule == "off" else Gate(rule=rule, uncertain=uncertain, findings=findings, audit=audit, seed=seed)


def split_teachers(teachers: Sequence[Teacher], gate: Gate | None, cheap: str | None) -> tuple[list[Teacher], list[Teacher]]:
    """The teachers of the first and of the second tier; without a gate all are of the first. Raises ConfigError."""
    from composer_replication.teachers import cheapest

    if gate is None:
        return list(teachers), []
    if cheap is not None and cheap not in {t.name for t in teachers}:
        raise ConfigError(f"--cheap {cheap}: no such teacher", fix=f"name one of: {', '.join(t.name for t in teachers)}")
    name = cheapest(teachers).name if cheap is None else cheap
    return [t for t in teachers if t.name == name], [t for t in teachers if t.name != name]


def _scenarios(known: dict[str, float | None]) -> tuple[Scenario, Scenario, Scenario]:
    """The planner's, with what the user knows in place of its assumptions."""
    from composer_replication.teachers.planner import EXPECTED, HIGH, LOW

    given: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
    low, expected, high = (dataclasses.replace(s, **given) for s in (LOW, EXPECTED, HIGH))
    return low, expected, high


def _show(terminal: Terminal, planned: Plan, *, without_entropy: int) -> None:
    columns = ("teacher", "tier", "answers", "prompt tokens", "from its cache", "USD low", "USD expected", "USD high")
    cells = [
        (
            line.teacher,
            line.tier,
            _count(line.answers),
            f"{line.prompt_tokens.expected:,.0f}",
            f"{line.cached_tokens.expected:,.0f}",
            *(usd(amount) for amount in (line.usd.low, line.usd.expected, line.usd.high)),
        )
        for line in planned.teachers
    ]
    terminal.table(f"{planned.states} states", columns, cells)
    if planned.reasons:
        terminal.note("asked first: " + ", ".join(f"{count} {reason}" for reason, count in planned.reasons.items()))
    if without_entropy:
        terminal.note(f"{without_entropy} states have no entropy: nobody measured how uncertain their agent was")
    total = planned.usd
    terminal.note(f"expected to cost ${usd(total.expected)}, between ${usd(total.low)} and ${usd(total.high)}")


def _count(answers: Range) -> str:
    if answers.low == answers.high:
        return f"{answers.expected:,.0f}"
    return f"{answers.low:,.0f} to {answers.high:,.0f}"
