"""`composer replay`: what teachers would have done at the states of frozen traces, within a spending cap."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from composer_replication.cli.support import gating
from composer_replication.cli.support.kinds import refuse_other_kind
from composer_replication.config import GateConfig, load_teachers
from composer_replication.config.lines import read_models
from composer_replication.observe import Phase, Terminal, files, usd
from composer_replication.observe.console import Console, echo
from composer_replication.traces import TraceState
from composer_replication.types import to_json
from composer_replication.types.errors import ConfigError, TeacherError

if TYPE_CHECKING:
    from composer_replication.teachers import Ledger, Teacher, TeacherAnswer
    from composer_replication.teachers.gating import GatedAnswers

_MONEY = ("USD in ledger", "held in ledger")
"""All that the ledger has booked, including earlier commands, beside columns of this command alone."""
EXIT_INCOMPLETE = TeacherError.exit_code
"""Some questions have no answer; the same command asks them again."""


def replay(
    states: Annotated[Path, typer.Argument(help="States, one JSON object a line: state_id, messages, student_action, ...")],
    teachers: Annotated[Path, typer.Option(help="TOML file with \\[\\[teachers]] tables, as a run file has them.")],
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for answers.jsonl, decisions.jsonl, spend.json and ledger.sqlite.")
    ],
    max_usd: Annotated[float, typer.Option(min=0.0, help="Cap on everything the ledger in --out has paid or holds.")],
    gate: gating.GateOption = "off",
    cheap: gating.CheapOption = None,
    uncertain: gating.UncertainOption = 0.3,
    findings: gating.FindingsOption = True,
    doubtful: gating.DoubtfulOption = 0.0,
    audit: gating.AuditOption = 0.05,
    seed: gating.SeedOption = 0,
    reach: gating.ReachOption = None,
    bill: Annotated[
        Path | None,
        typer.Option(
            help="First settle held amounts with the provider's bill: JSON lines with call_id and usd, one for every billed call."
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the table as one JSON object, and everything else to stderr.")
    ] = False,
) -> None:
    """Ask every teacher what it would have done at every state, or at those that a gate chooses.

    Killed or repeated, it resumes: answers in the ledger are not asked or paid for again. Exits with 0 when every
    question has an answer and with 6 when some have none. `composer plan` with the same options estimates the cost beforehand.
    """
    from composer_replication.teacher_replay import count_known
    from composer_replication.teachers import Ledger, Teacher, check_teachers
    from composer_replication.teachers.gating import GatedAnswers, split_teachers

    terminal = Terminal(Console(stderr=True) if json_output else None)
    asked = read_states(states)
    billed = None if bill is None else [line for _, line in read_models(bill, TypeAdapter(_Billed))]
    chosen = [Teacher.of(config) for config in load_teachers(teachers)]
    check_teachers(chosen, max_usd)
    options = gating.gate_options(
        gate, cheap=cheap, uncertain=uncertain, findings=findings, doubtful=doubtful, audit=audit, seed=seed, reach=reach
    )
    split_teachers(chosen, options)
    with Ledger(out / "ledger.sqlite") as ledger:
        if known := count_known(asked, chosen, ledger):
            terminal.note(f"{known} of {len(asked) * len(chosen)} answers are in the ledger")
        if billed is not None:
            _reconcile(terminal, ledger, billed)
        progress, found = _Progress(terminal, chosen, len(asked)), GatedAnswers(())
        try:
            with progress:
                found = asyncio.run(_ask(asked, chosen, options, seed, max_usd, ledger, progress))
            _print_replaced(terminal, out / "answers.jsonl", found.answers)
            _write(out, found)
        finally:
            spend = _spend(chosen, progress.counts, ledger, max_usd)
            if (outcome := found.outcome(asked)) is not None:
                spend["gate"] = {"rule": gate, **outcome}
            files.replace_file(out / "spend.json", (json.dumps(spend, indent=2) + "\n").encode())
            _show(terminal, spend)
            if json_output:
                echo(json.dumps(spend))
    if any(answer.error is not None for answer in found.answers):
        raise typer.Exit(EXIT_INCOMPLETE)


async def _ask(
    states: Sequence[TraceState],
    teachers: Sequence[Teacher],
    options: GateConfig,
    seed: int,
    max_usd: float,
    ledger: Ledger,
    progress: _Progress,
) -> GatedAnswers:
    from composer_replication.teacher_replay import replay_gated

    return await replay_gated(
        states, teachers, max_usd, options, seed=seed, ledger=ledger, on_answer=progress.count, on_tier=progress.begin
    )


def _write(out: Path, found: GatedAnswers) -> None:
    lines = [json.dumps(to_json(answer), ensure_ascii=False) + "\n" for answer in found.answers]
    files.replace_file(out / "answers.jsonl", "".join(lines).encode(errors="surrogatepass"))
    if found.tiered is None:
        (out / "decisions.jsonl").unlink(missing_ok=True)  # of an earlier replay with a gate: its answers are no longer there
        return
    decided = zip(found.tiered.first, found.tiered.second, strict=True)
    rows = [{"state_id": one.state_id, "first": one.reasons, "second": two.reasons} for one, two in decided]
    files.replace_file(out / "decisions.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


# --- what is read -------------------------------------------------------------------------------------------------------


class _AnswerFunction(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str
    arguments: dict[str, Any] | str


class _AnswerCall(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: str
    function: _AnswerFunction


class _AnswerMessage(BaseModel):
    model_config = ConfigDict(extra="allow")
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: list[_AnswerCall] = []

    @model_validator(mode="before")
    @classmethod
    def _no_text(cls, data: Any) -> Any:
        """Accept missing text: OpenAI's own answers have null, or nothing, beside tool calls."""
        if isinstance(data, dict) and data.get("tool_calls") and data.get("content") is None:
            return {**data, "content": ""}
        return data


class _State(BaseModel):
    model_config = ConfigDict(extra="allow")
    state_id: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[_AnswerMessage], Field(min_length=1)]
    student_action: str
    student_tool_calls: list[_AnswerCall] = []
    tools: list[dict[str, Any]] = []
    trajectory_id: str = ""
    turn: Annotated[int, Field(ge=0)] = 0
    student_entropy: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    findings: list[str] = []
    student_score: Annotated[float, Field(ge=0.0, le=1.0)] | None = None


class _Answered(BaseModel):
    question_id: str
    teacher: str


class _Billed(BaseModel):
    call_id: str
    usd: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


def read_states(path: Path) -> list[TraceState]:
    """Read the states of a file of JSON lines. Raises ConfigError, which names line and field, or what the file is instead."""
    refuse_other_kind(path, "states")
    states = [cast(TraceState, state.model_dump(exclude_unset=True)) for _, state in read_models(path, TypeAdapter(_State))]
    if not states:
        raise ConfigError(f"{path} has no states", fix="write one JSON object a line: state_id, messages, student_action")
    twice = [name for name, count in Counter(s["state_id"] for s in states).items() if count > 1]
    if twice:
        raise ConfigError(f"{path}: two states have the state_id {twice[0]!r}", fix="give every state a unique state_id")
    return states


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


def _print_replaced(terminal: Terminal, path: Path, answers: Sequence[TeacherAnswer]) -> None:
    """Report what the file loses when it is overwritten."""
    if not path.is_file():
        return
    try:
        before = [(line.question_id, line.teacher) for _, line in read_models(path, TypeAdapter(_Answered))]
    except ConfigError:
        terminal.note(f"{path} held no answers and is replaced")
        return
    lost = len(set(before) - {(answer.question_id, answer.teacher) for answer in answers})
    if lost:
        terminal.note(
            f"{len(before)} answers replaced by {len(answers)} in {path}: {lost} are to other states or by other teachers; they "
            "stay in the ledger, and a command with all of them writes them again at no cost"
        )


# --- what came of it ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Count:
    """One teacher's answers of this command."""

    asked: int = 0
    answered: int = 0
    from_cache: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, answer: TeacherAnswer) -> None:
        if answer.failure is not None:
            kind = answer.failure.value
            self.failed[kind] = self.failed.get(kind, 0) + 1
            return
        self.answered += 1
        self.from_cache += answer.cached
        self.prompt_tokens += answer.prompt_tokens
        self.cached_tokens += answer.cached_tokens
        self.completion_tokens += answer.completion_tokens


class _Progress(ExitStack):
    """A progress phase for each tier, with counts of questions asked and answered."""

    def __init__(self, terminal: Terminal, teachers: Sequence[Teacher], states: int) -> None:
        super().__init__()
        self.counts = {t.name: _Count() for t in teachers}
        self._terminal = terminal
        self._states = states
        self._shown: Phase | None = None

    def begin(self, teachers: Sequence[Teacher], asked: int) -> None:
        """End the tier before; from now on these teachers are asked about `asked` states."""
        self.close()
        for teacher in teachers:
            self.counts[teacher.name].asked = asked
        some = "" if asked == self._states else f"{asked} of "
        title = f"replay {some}{self._states} states through {', '.join(t.name for t in teachers)}"
        self._shown = self.enter_context(self._terminal.phase(title, asked * len(teachers)))

    def count(self, answer: TeacherAnswer) -> None:
        """Count one more answer."""
        self.counts[answer.teacher].add(answer)
        if self._shown is not None:
            self._shown.advance()


def _spend(teachers: Sequence[Teacher], counts: dict[str, _Count], ledger: Ledger, max_usd: float) -> dict[str, Any]:
    """Return plain JSON data. Counts and tokens are of this command's answers, those from the ledger included; money of the
    ledger."""
    spent, held = ledger.spent_by_teacher(), ledger.held_by_teacher()
    rows = [
        {
            "teacher": t.name,
            **asdict(counts[t.name]),
            "failed": dict(sorted(counts[t.name].failed.items())),
            "paid_usd": spent.get(t.name, 0.0) - held.get(t.name, 0.0),
            "held_usd": held.get(t.name, 0.0),
        }
        for t in teachers
    ]
    total, kept = ledger.spent_usd, ledger.held_usd
    return {"teachers": rows, "paid_usd": total - kept, "held_usd": kept, "max_usd": max_usd}


def _show(terminal: Terminal, spend: dict[str, Any]) -> None:
    columns = ("teacher", "asked", "answered", "from cache", "failed", "prompt tokens", "cached", "answer tokens", *_MONEY)
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
    if "gate" in spend:
        from composer_replication.teachers.gating import outcome_lines

        for line in outcome_lines(spend["gate"]):
            terminal.note(line)
