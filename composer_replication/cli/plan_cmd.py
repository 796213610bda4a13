"""`composer plan`: what a replay will cost, before anything is spent."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from composer_replication.cli.replay_cmd import read_states
from composer_replication.cli.support import gating
from composer_replication.config import load_teachers
from composer_replication.observe import Terminal, usd
from composer_replication.observe.console import Console, echo

if TYPE_CHECKING:
    from composer_replication.teachers import ReplayPlan, Scenario
    from composer_replication.teachers.planner import Range


def plan(
    states: Annotated[Path, typer.Argument(help="States, one JSON object a line: state_id, messages, student_action, ...")],
    teachers: Annotated[Path, typer.Option(help="TOML file with \\[\\[teachers]] tables, as a run file has them.")],
    gate: gating.GateOption = "off",
    cheap: gating.CheapOption = None,
    uncertain: gating.UncertainOption = 0.3,
    findings: gating.FindingsOption = True,
    doubtful: gating.DoubtfulOption = 0.0,
    audit: gating.AuditOption = 0.05,
    seed: gating.SeedOption = 0,
    reach: gating.ReachOption = None,
    bytes_per_token: Annotated[float | None, typer.Option(min=0.1, help="Bytes per token, known from a pilot.")] = None,
    answer_tokens: Annotated[float | None, typer.Option(min=0.0, help="Mean tokens of an answer, known from a pilot.")] = None,
    hit_rate: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Share of known prefixes read from the cache.")] = None,
    disagrees: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Share of the cheap answers that are not the student's action."),
    ] = None,
    max_usd: Annotated[float | None, typer.Option(min=0.0, help="The intended cap; exit with 6 if it does not suffice.")] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the plan as one JSON object, and everything else to stderr.")
    ] = False,
) -> None:
    """Print what a replay will cost, per teacher and in all: at the least, expected, and at the most.

    Asks no teacher. Exits with 6 when --max-usd does not cover the expected cost.
    """
    from composer_replication.teachers import Teacher, check_teachers, warn_of_cap
    from composer_replication.teachers import plan as plan_replay
    from composer_replication.teachers.gate_steps import steps_of
    from composer_replication.teachers.gating import gate_of, split_teachers

    terminal = Terminal(Console(stderr=True) if json_output else None)
    chosen = [Teacher.of(config) for config in load_teachers(teachers)]
    check_teachers(chosen, max_usd, keys=False)
    asked_about = read_states(states)
    steps = steps_of(asked_about)
    options = gating.gate_options(
        gate, cheap=cheap, uncertain=uncertain, findings=findings, doubtful=doubtful, audit=audit, seed=seed, reach=reach
    )
    asked = gate_of(options, seed)
    first, second = split_teachers(chosen, options)
    known = {"bytes_per_token": bytes_per_token, "answer_tokens": answer_tokens, "hit_rate": hit_rate, "disagrees": disagrees}
    planned = plan_replay(steps, first=first, second=second, gate=asked, scenarios=_scenarios(known), reach=reach)
    _show(terminal, planned, without_entropy=sum(s.entropy is None for s in steps) if asked is not None else 0)
    toolless = sum(not state.get("tools") for state in asked_about)
    if toolless:
        terminal.note(f"warning: {toolless} of {len(asked_about)} states name no tools: teachers can only answer them in words")
    if json_output:
        echo(json.dumps(dataclasses.asdict(planned)))
    warning = warn_of_cap(planned, max_usd)
    if warning is not None:
        terminal.note(f"warning: {warning}")


def _scenarios(known: dict[str, float | None]) -> tuple[Scenario, Scenario, Scenario]:
    """Return the planner's scenarios, with the user's values in place of its assumptions."""
    from composer_replication.teachers.planner import EXPECTED, HIGH, LOW

    given: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
    low, expected, high = (dataclasses.replace(s, **given) for s in (LOW, EXPECTED, HIGH))
    return low, expected, high


def _show(terminal: Terminal, planned: ReplayPlan, *, without_entropy: int) -> None:
    from composer_replication.teachers.gating import listed

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
        terminal.note(f"asked first: {listed(planned.reasons)}")
    if without_entropy:
        terminal.note(f"{without_entropy} states have no entropy: how uncertain their agent was is unknown")
    total = planned.usd
    terminal.note(f"expected to cost ${usd(total.expected)}, between ${usd(total.low)} and ${usd(total.high)}")
    ample, held = f"${usd(planned.ample_usd)}", f"${usd(planned.call_usd)}"
    terminal.note(f"a cap of {ample} lets every call through, up to that high cost: {held} of it is held while one is under way")


def _count(answers: Range) -> str:
    if answers.low == answers.high:
        return f"{answers.expected:,.0f}"
    return f"{answers.low:,.0f} to {answers.high:,.0f}"
