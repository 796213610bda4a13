"""`composer replay`: what teachers would have done at the states of frozen traces, within a spending cap."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console

from composer_replication.config import load_teachers
from composer_replication.errors import ConfigError, TeacherError
from composer_replication.observe import Terminal, files, usd
from composer_replication.traces import TraceState
from composer_replication.types import to_json

if TYPE_CHECKING:
    from composer_replication.teachers import Ledger, Teacher, TeacherAnswer

__all__ = ["read_states", "replay"]

EXIT_INCOMPLETE = TeacherError.exit_code
"""Some questions have no answer; the same command asks them again."""


def replay(
    states: Annotated[Path, typer.Argument(help="States, one JSON object a line: state_id, messages, student_action, ...")],
    teachers: Annotated[Path, typer.Option(help="TOML file with \\[\\[teachers]] tables, as a run file has them.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for answers.jsonl, spend.json and ledger.sqlite.")],
    max_usd: Annotated[float, typer.Option(min=0.0, help="Cap on everything the ledger in --out has paid or holds.")],
    bill: Annotated[
        Path | None,
        typer.Option(
            help="First settle what is held by the provider's bill: JSON lines with call_id and usd, every billed call."
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the table as one JSON object, and all else to stderr.")
    ] = False,
) -> None:
    """Ask every teacher what it would have done at every state.

    Killed or repeated, it goes on where it was: what is in the ledger is not asked or paid for again. Exits with 0 when every
    question has an answer and with 6 when some have none.
    """
    from composer_replication.teacher_replay import replay_trace
    from composer_replication.teachers import Ledger, Teacher, check_teachers

    terminal = Terminal(Console(stderr=True) if json_output else None)
    asked = read_states(states)
    billed = None if bill is None else list(_lines(bill, _Billed))
    chosen = [Teacher.of(config) for config in load_teachers(teachers)]
    check_teachers(chosen, max_usd)
    with Ledger(out / "ledger.sqlite") as ledger:
        if billed is not None:
            _reconcile(terminal, ledger, billed)
        counts = {t.name: _Count() for t in chosen}
        try:
            with terminal.phase(f"replay {len(asked)} states through {len(chosen)} teachers", len(asked) * len(chosen)) as shown:

                def count(answer: TeacherAnswer) -> None:
                    counts[answer.teacher].add(answer)
                    shown.advance()

                answers = asyncio.run(replay_trace(asked, chosen, max_usd, ledger=ledger, on_answer=count))
            lines = [json.dumps(to_json(answer), ensure_ascii=False) + "\n" for answer in answers]
            files.replace_file(out / "answers.jsonl", "".join(lines).encode(errors="surrogatepass"))
        finally:
            spend = _spend(chosen, counts, ledger, len(asked), max_usd)
            files.replace_file(out / "spend.json", (json.dumps(spend, indent=2) + "\n").encode())
            _show(terminal, spend)
            if json_output:
                typer.echo(json.dumps(spend))
    if any(answer.error is not None for answer in answers):
        raise typer.Exit(EXIT_INCOMPLETE)


# --- what is read -------------------------------------------------------------------------------------------------------


_Line = TypeVar("_Line", bound=BaseModel)


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")
    role: Literal["system", "user", "assistant", "tool"]
    content: str


class _State(BaseModel):
    model_config = ConfigDict(extra="allow")
    state_id: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[_Message], Field(min_length=1)]
    student_action: str
    tools: list[dict[str, Any]] = []
    trajectory_id: str = ""
    turn: Annotated[int, Field(ge=0)] = 0
    student_entropy: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    findings: list[str] = []


class _Billed(BaseModel):
    call_id: str
    usd: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


def read_states(path: Path) -> list[TraceState]:
    """The states of a file of JSON lines. Raises ConfigError, which names line and field."""
    states = [cast(TraceState, state.model_dump(exclude_unset=True)) for state in _lines(path, _State)]
    if not states:
        raise ConfigError(f"{path} has no states", fix="write one JSON object a line: state_id, messages, student_action")
    return states


def _lines(path: Path, kind: type[_Line]) -> Iterator[_Line]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", fix="name a file of JSON lines") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield kind.model_validate_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                message = f"{path}, line {number}: {where + ': ' if where else ''}{first['msg'].lower()}"
                raise ConfigError(message, fix=f"correct {where or 'that line'}") from None


def _reconcile(terminal: Terminal, ledger: Ledger, lines: Sequence[_Billed]) -> None:
    bill: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        bill[line.call_id] += line.usd
    before = ledger.held_usd
    done = ledger.reconcile(bill)
    terminal.note(
        f"the bill: of ${usd(before)} held, {done.billed} calls were billed and {done.free} were not; {done.corrected} paid "
        f"calls had another price; {done.unknown} calls are of another ledger; ${usd(ledger.spent_usd)} is spent"
    )


# --- what came of it ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Count:
    """One teacher's answers of this command."""

    answered: int = 0
    from_cache: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, answer: TeacherAnswer) -> None:
        if answer.failure is not None:
            self.failed[answer.failure.value] += 1
            return
        self.answered += 1
        self.from_cache += answer.cached
        self.prompt_tokens += answer.prompt_tokens
        self.cached_tokens += answer.cached_tokens
        self.completion_tokens += answer.completion_tokens


def _spend(teachers: Sequence[Teacher], counts: dict[str, _Count], ledger: Ledger, states: int, max_usd: float) -> dict[str, Any]:
    """Plain JSON data. Counts and tokens are of this command's answers, those from the ledger included; money of the ledger."""
    spent, held = ledger.spent_by_teacher(), ledger.held_by_teacher()
    rows = [
        {
            "teacher": t.name,
            "asked": states,
            "answered": counts[t.name].answered,
            "from_cache": counts[t.name].from_cache,
            "failed": dict(sorted(counts[t.name].failed.items())),
            "prompt_tokens": counts[t.name].prompt_tokens,
            "cached_tokens": counts[t.name].cached_tokens,
            "completion_tokens": counts[t.name].completion_tokens,
            "paid_usd": spent.get(t.name, 0.0) - held.get(t.name, 0.0),
            "held_usd": held.get(t.name, 0.0),
        }
        for t in teachers
    ]
    total, kept = ledger.spent_usd, ledger.held_usd
    return {"teachers": rows, "paid_usd": total - kept, "held_usd": kept, "max_usd": max_usd}


def _show(terminal: Terminal, spend: dict[str, Any]) -> None:
    columns = ("teacher", "asked", "answered", "from cache", "failed", "prompt tokens", "cached", "answer tokens", "USD", "held")
    cells = [
        (
            row["teacher"],
            row["asked"],
            row["answered"],
            row["from_cache"],
            ", ".join(f"{count} {kind}" for kind, count in row["failed"].items()) or "none",
            row["prompt_tokens"],
            row["cached_tokens"],
            row["completion_tokens"],
            usd(row["paid_usd"]),
            usd(row["held_usd"]),
        )
        for row in spend["teachers"]
    ]
    terminal.table("teachers", columns, cells)
    total = f"${usd(spend['paid_usd'])} paid and ${usd(spend['held_usd'])} held for calls that may have been billed"
    terminal.note(f"{total}, of ${spend['max_usd']:g} at most")
