"""`composer traces`: logs of any agent into traces, and out again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from composer_replication.cli.support.kinds import refuse_other_kind
from composer_replication.cli.support.options import refuse_overwriting
from composer_replication.observe.console import Console, echo
from composer_replication.observe.files import replace_file
from composer_replication.traces import Import, TraceState, import_traces, read_traces, readers, states_from_traces, write_atif
from composer_replication.traces.importing import ACCOUNT, TRACES, load_tools
from composer_replication.traces.states import lacks_tools
from composer_replication.types.errors import ConfigError, TraceError
from composer_replication.types.transcript import Trace

app = typer.Typer(no_args_is_help=True, help="Logs of any agent as traces: import them, look at states, export.")

_Folder = Annotated[Path, typer.Argument(help="Folder that `composer traces import` wrote, or the traces.jsonl in it.")]
_MOST_SHOWN = 10
"""Unreadable files and lines that are reported one by one."""


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="A log, or a folder that is searched for them.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for traces.jsonl and import.json.")],
    format: Annotated[str | None, typer.Option(help="Read every file as this format; guessed by default.")] = None,  # noqa: A002 (the option's name)
    tools: Annotated[Path | None, typer.Option(help="JSON list of tool schemas, for logs that do not name theirs.")] = None,
    redact: Annotated[bool, typer.Option("--redact/--no-redact", help="Replace credentials by [REDACTED:kind].")] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier import in OUT even if it has traces that this one lacks.")
    ] = False,
) -> None:
    """Read logs of Claude Code, Codex, OpenHands, SWE-agent, mini-swe-agent, Harbor (ATIF), chat datasets and our own runs.

    Unreadable input is reported and stops nothing. An earlier import in OUT is replaced by one that has all of its traces. Exits
    with 9 when nothing was a trace.
    """
    given = load_tools(tools) if tools else ()
    done = import_traces(path, out, format=format, tools=given, redact=redact, overwrite=overwrite)
    for problem in done.problems[:_MOST_SHOWN]:
        echo(f"not read: {problem}", err=True)
    if len(done.problems) > _MOST_SHOWN:
        kept = f": all are in {out / ACCOUNT}" if done.traces else ""
        echo(f"not read: {len(done.problems) - _MOST_SHOWN} more{kept}", err=True)
    Console().print(_table(done))
    if not done.traces:
        stays = f"; the earlier import in {out} stays as it is" if (out / TRACES).exists() else ""
        raise TraceError(
            f"nothing at {path} is a trace{stays}", fix=f"known formats: {', '.join(readers())}; force one with --format"
        )
    echo(f"{done.traces.total()} traces with {done.turns.total()} turns in {out / TRACES}")
    _print_toolless(done.toolless_states, done.states)


def _print_toolless(without: int, states: int) -> None:
    if without:
        echo(f"{without} of {states} states name no tools: give `composer traces import --tools FILE`", err=True)


def _table(done: Import) -> Table:
    table = Table("format", "traces", "turns", "left out, and why")
    for name in sorted(done.traces.keys() | done.dropped.keys()):
        reasons = "\n".join(f"{count} {reason}" for reason, count in done.dropped.get(name, {}).items())
        table.add_row(name, str(done.traces[name]), str(done.turns[name]), reasons or "-")
    if done.problems:
        table.add_row("not read", "-", "-", f"{len(done.problems)} files or lines, see above")
    if done.redacted:
        table.add_row("redacted", "-", "-", "\n".join(f"{count} {kind}" for kind, count in sorted(done.redacted.items())))
    return table


@app.command()
def export(
    folder: _Folder,
    atif: Annotated[Path, typer.Option(file_okay=False, help="Folder for one ATIF file per trace.")],
) -> None:
    """Write traces in Harbor's Agent Trajectory Interchange Format; importing them again loses nothing."""
    written = write_atif(read_traces(_file(folder)), atif)
    echo(f"{len(written)} ATIF trajectories in {atif}")


@app.command()
def states(
    folder: _Folder,
    out: Annotated[Path, typer.Option(help="File of JSON lines, one state each.")],
) -> None:
    """Write every turn whose exact context is known as a state that teachers can re-answer. Exits with 9 when there is none."""
    refuse_overwriting({"FOLDER": _file(folder)}, {"--out": out})
    traces = list(read_traces(_file(folder)))
    found = _exact_states(traces)
    _write_states(found, out, _incomplete(traces, found))
    _print_toolless(len(found) - len(states_from_traces(_with_tools(traces))), len(found))


def write_answerable_states(folder: Path, out: Path) -> None:
    """Write the states of imported traces whose agent called no tools, or tools that are named.

    Raises:
        ConfigError: there are states, and all of them are of agents whose tools nobody names: teachers could not call one.
        TraceError: there is no state.
    """
    traces = list(read_traces(_file(folder)))
    found, answerable = _exact_states(traces), states_from_traces(_with_tools(traces))
    if not answerable:
        raise ConfigError(
            f"all {len(found)} states are of agents whose logs do not describe the tools that they called: teachers can call no "
            "tool that they are not shown, so no pair would come of their answers, and none was asked",
            fix="describe the tools in a JSON list, in OpenAI's or Anthropic's form, and give it as --tools FILE",
        )
    without = {"whose tools are not described": len(found) - len(answerable)}
    _write_states(answerable, out, _incomplete(traces, found) | without)


def _with_tools(traces: Sequence[Trace]) -> list[Trace]:
    return [trace for trace in traces if not lacks_tools(trace)]


def _exact_states(traces: Sequence[Trace]) -> list[TraceState]:
    """Return all states. Raises TraceError where there is none."""
    found = states_from_traces(traces)
    if not found:
        raise TraceError(
            f"no states: of {sum(len(trace.turns) for trace in traces)} turns none has an exact context", fix=_NO_STATES
        )
    return found


def _incomplete(traces: Sequence[Trace], states: Sequence[TraceState]) -> dict[str, int]:
    return {"whose context is incomplete": sum(len(trace.turns) for trace in traces) - len(states)}


def _write_states(states: Sequence[TraceState], out: Path, left_out: Mapping[str, int]) -> None:
    """Write states, and say how many turns are left out and why."""
    replace_file(out, b"".join(json.dumps(state).encode() + b"\n" for state in states))
    told = "".join(f"; {count} turns left out, {why}" for why, count in left_out.items() if count)
    echo(f"{len(states)} states in {out}{told}")


_NO_STATES = "import logs that hold what the model saw: docs/traces.md says what each format lacks"


def _file(folder: Path) -> Path:
    """Return the file of traces that is meant; raises ConfigError that names the command for what is something else."""
    refuse_other_kind(folder, "imported traces")
    return folder if folder.is_file() else folder / TRACES
