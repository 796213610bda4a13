"""`composer hints`: which turns of a transcript went wrong, what a hint says about them, and why when it says nothing."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich import box
from rich.table import Table

from composer_replication.cli.support.options import shortened
from composer_replication.cli.support.transcripts import Batch, read_transcripts
from composer_replication.config import HintConfig, load_teachers
from composer_replication.hints import (
    Ask,
    Detector,
    HintContext,
    JudgeRule,
    LintChanged,
    StyleRules,
    all_detectors,
    detectors_named,
    generators_named,
    load_rules,
)
from composer_replication.hints import explain as explain_one
from composer_replication.hints.generators import ASKING
from composer_replication.observe.console import Console, echo
from composer_replication.observe.files import storage_errors
from composer_replication.teachers import Ledger, Teacher
from composer_replication.trainer.llm_judge import Answered, ask_teacher
from composer_replication.types import Finding, Hint, to_json
from composer_replication.types.errors import StorageError, TeacherError, TraceError
from composer_replication.types.transcript import Trace, Transcript

_Explained = tuple[str, Transcript, list[tuple[Finding, Hint]]]

app = typer.Typer(no_args_is_help=True, help="Look at the hint channel's findings and hints.")

UNUSED = "its detector is not in loss.hint.detectors"
"""Why what a detector found is no hint."""
_SHOWN = ("path", "problem", "message", "source", "tests", "complaints", "reason", "exit_code", "mark", "rule", "first_read")


@app.command()
def explain(
    traces: Annotated[Path, typer.Argument(help="A run directory, a folder of imported traces, or a .jsonl file of either.")],
    rules: Annotated[Path | None, typer.Option(help="TOML file with your own style rules.")] = None,
    lint: Annotated[bool, typer.Option(help="Lint changed lines with ruff, one process per edit.")] = False,
    teachers: Annotated[
        Path | None,
        typer.Option(help="TOML file with \\[\\[teachers]] tables: the first answers rules with a question, and writes hints."),
    ] = None,
    ledger: Annotated[Path, typer.Option(help="What the teacher has answered, and what it cost.")] = Path("hints-ledger.sqlite"),
    max_usd: Annotated[float, typer.Option(min=0.0, help="Cap on everything the ledger has paid or holds.")] = 0.0,
    per_trajectory: Annotated[
        int | None,
        typer.Option(min=1, help="Most hints of one trajectory, earliest error turns first; as many as the run gave by default."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what every detector finds, which hint would be given at that turn, and why when there is none.

    A run is read by each arm's own `loss.hint`: it trains only on what those detectors find and those generators write. Other
    logs are read as a run would by default, with siblings and consensus. What the other detectors find is shown too, and marked.
    Hints that a run recorded are shown as they were given. The project's documentation is not available here, so it is not
    quoted again; the policy is not asked, and a judge is with --teachers alone.
    """
    asked: Counter[Answered] = Counter()
    ask = None if teachers is None else ask_teacher(Teacher.of(load_teachers(teachers)[0]), ledger, max_usd, asked)
    asks = {} if ask is None else {"judge": ask}
    style = StyleRules(load_rules(rules) if rules is not None else (), ask)
    more: list[Detector] = [*([LintChanged()] if lint else []), *([style] if style.rules else [])]
    settings = _Settings(traces, more, asks, per_trajectory)
    explained = [one for batch in read_transcripts(traces) for one in settings.explain(batch)]
    if not explained:
        raise TraceError(f"no transcripts in {traces}", fix="name a run that has rolled out something, or traces")
    if as_json:
        echo(json.dumps({"traces": [_as_json(*one) for one in explained], "counts": _counts(explained)}, indent=1))
    else:
        _show(explained, rules, style)
    if ask is not None:
        _print_asked(asked, style, ledger, max_usd)


def _show(explained: Sequence[_Explained], rules: Path | None, style: StyleRules) -> None:
    console = Console()
    for one in explained:
        _print(console, *one)
    _print_counts(console, explained)
    judged = sum(isinstance(rule, JudgeRule) for rule in style.rules)
    if judged and style.ask is None:
        console.print(f"{judged} rules of {rules} need --teachers and were not looked at", soft_wrap=True, highlight=False)


def _print_asked(asked: Counter[Answered], style: StyleRules, ledger: Path, max_usd: float) -> None:
    """Report on stderr what was asked and what it cost. Exits with 6 where the cap or the teacher left something out."""
    missing = asked["over the cap"] + asked["failed"]
    why = f"not asked, cap ${max_usd:g}" if asked["over the cap"] else "not answered, the teacher failed"
    for name, turns in style.unanswered.items():
        echo(f"rule {name}: {turns} turns {why}", err=True)
    if hints := missing - style.unanswered.total():
        echo(f"hints by the judge: {hints} {why}", err=True)
    with Ledger(ledger) as kept:
        paid, held = kept.spent_usd - kept.held_usd, kept.held_usd
    spent = f"${paid:.4f} paid and ${held:.4f} held in {ledger}, of ${max_usd:g} at most"
    echo(f"{asked['answered']} questions were answered; {spent}", err=True)
    if missing:
        raise typer.Exit(TeacherError.exit_code)


@dataclass(frozen=True, slots=True)
class _Settings:
    """How transcripts are read."""

    traces: Path
    more: Sequence[Detector]
    """Detectors that the command was asked for."""
    asks: Mapping[str, Ask]
    most: int | None
    """Hints of a trajectory at most; None for what the arm says."""

    def explain(self, batch: Batch) -> Iterator[_Explained]:
        """Yield what every detector finds in the transcripts of a batch, with a hint or the reason why there is none."""
        hint = _hints_of(self.traces, batch.arm)
        names = hint.detectors
        detectors = [*detectors_named(names), *self.more]
        others = [one for name, one in all_detectors().items() if name not in names and not one.needs & {"subprocess", "judge"}]
        wanted = hint.generators if batch.arm else (*hint.generators, "sibling", "consensus", *self.asks)
        generators = generators_named([name for name in wanted if name not in ASKING or name in self.asks], self.asks)
        most = self.most or hint.per_trajectory
        for one in batch.transcripts:
            siblings = tuple(s for s in batch.transcripts if one.task_id and s.task_id == one.task_id and s.reward == 1.0)
            context = HintContext(tools=one.tools, siblings=siblings, consensus=batch.consensus, demo=hint.demo)
            said = explain_one(one, context, max_hints=most, detectors=detectors, generators=generators)
            recorded = [(f, batch.hints.get((h.trajectory_id, h.turn, h.kind), h)) for f, h in said]
            unused = explain_one(one, context, max_hints=max(1, len(one.turns)), detectors=others, generators=generators)
            marked = [(f, h if h.dropped is not None else replace(h, dropped=UNUSED)) for f, h in unused]
            yield batch.name, one, sorted([*recorded, *marked], key=lambda pair: pair[0].turn)


_READ_HERE = ("detectors", "generators", "per_trajectory", "demo")
"""Fields of `loss.hint` that decide which hints there are."""


def _hints_of(traces: Path, arm: str) -> HintConfig:
    """Return what an arm of a run says of its hints; of anything else what runs use by default.

    Raises:
        StorageError: the run's configuration cannot be read.
    """
    written = traces / "config.toml"
    if not arm or not written.is_file():
        return HintConfig()
    with storage_errors(written, "read"):
        text = written.read_text("utf-8")
    try:
        data = tomllib.loads(text)
        said = data.get("loss", {}).get("hint", {})
        own = {key.removeprefix("loss.hint."): value for key, value in data.get("arms", {}).get(arm, {}).items()}
        merged = {**said, **own}
        return HintConfig.model_validate({name: merged[name] for name in _READ_HERE if name in merged})
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise StorageError(f"{written} is damaged: {error}", fix="copy the file from where the run was made") from error


def _as_json(batch: str, one: Transcript, said: list[tuple[Finding, Hint]]) -> dict[str, Any]:
    findings = [
        {
            **{"turn": f.turn, "kind": f.kind, "span": f.span, "confidence": f.confidence, "evidence": _evidence(f)},
            **{"hint": h.text or None, "source": h.source or None, "dropped": h.dropped},
        }
        for f, h in said
    ]
    about = {"batch": batch, "trajectory_id": one.trajectory_id, "task_id": one.task_id, "turns": len(one.turns)}
    return {**about, "reward": to_json(one.reward), "findings": findings}


def _evidence(finding: Finding) -> dict[str, Any]:
    return {key: to_json(finding.evidence[key]) for key in ("tool", *_SHOWN) if finding.evidence.get(key) not in (None, "")}


def _counts(explained: Sequence[_Explained]) -> dict[str, dict[str, int]]:
    """Count by kind how many were found and used, and how many were dropped, by reason."""
    counts: dict[str, Counter[str]] = {}
    for _, _, said in explained:
        for finding, hint in said:
            row = counts.setdefault(finding.kind, Counter())
            row["found"] += 1
            row["told" if hint.dropped is None else hint.dropped] += 1
    return {kind: dict(counts[kind]) for kind in sorted(counts)}


def _print(console: Console, batch: str, one: Transcript, said: list[tuple[Finding, Hint]]) -> None:
    if not said:
        return
    reward = "" if one.reward is None else f", reward {to_json(one.reward)}"
    log = one.details.get("log") if isinstance(one, Trace) else None
    title = f"{log or batch}: {one.trajectory_id} ({len(one.turns)} turns{reward})"
    console.print(title, style="bold", soft_wrap=True, highlight=False)
    for finding, hint in said:
        about = ", ".join(f"{key} {value}" for key, value in _evidence(finding).items())
        sure = "" if finding.confidence == 1.0 else f", {finding.confidence:.0%} sure"
        lines = [f"  turn {finding.turn}: {finding.kind}{sure}{f' ({shortened(about, 200)})' if about else ''}"]
        text = shortened(hint.text.replace("\n", " / "), 400)
        if hint.dropped is None:
            lines.append(f"    said, by {hint.source}: {text}")
        else:
            lines.append(f"    not said: {hint.dropped}" + (f" [{hint.source}: {text}]" if text else ""))
        console.print("\n".join(lines), soft_wrap=True, highlight=False)


def _print_counts(console: Console, explained: Sequence[_Explained]) -> None:
    counts = _counts(explained)
    silent = sum(not said for _, _, said in explained)
    turns = sum(len(one.turns) for _, one, _ in explained)
    if counts:
        table = Table("kind", "found", "said", "not said", box=box.SIMPLE_HEAD)
        for kind, row in counts.items():
            reasons = ", ".join(f"{count} {why}" for why, count in row.items() if why not in ("found", "told"))
            table.add_row(kind, str(row["found"]), str(row.get("told", 0)), reasons)
        console.print(table)
    console.print(f"{len(explained)} transcripts, {turns} turns; nothing was found in {silent} transcripts", highlight=False)
