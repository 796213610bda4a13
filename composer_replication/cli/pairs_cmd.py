"""`composer pairs`: from teachers' answers to preference pairs, and what of them is worth training on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.table import Table

from composer_replication.actions.calls import parse_action
from composer_replication.cli.replay_cmd import read_states
from composer_replication.cli.support.options import SandboxOption, refuse_overwriting, shortened, wide_console
from composer_replication.config import load_teachers
from composer_replication.observe.console import Console, echo
from composer_replication.types.errors import ConfigError

if TYPE_CHECKING:
    from composer_replication.actions.agreement import Scene
    from composer_replication.replaysim import NormalizeReport
    from composer_replication.replaysim.pairs_file import BadLine
    from composer_replication.replaysim.recipe import Operator
    from composer_replication.teachers import TeacherAnswer
    from composer_replication.teachers.mining.judged_mining import Judge
    from composer_replication.teachers.mining.pair_mining import PairMining
    from composer_replication.traces import TraceState

ThresholdOption = Annotated[int, typer.Option(min=1, help="Families of teachers that must choose the same action.")]
JudgeOption = Annotated[
    Path | None,
    typer.Option(
        help="TOML file whose first \\[\\[teachers]] table is asked, in both orders, whether two actions are interchangeable "
        "where nothing else tells."
    ),
]
TasksOption = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        help="Folder of the tasks that the states are of, as `composer tasks build` writes it: actions that change files are "
        "carried out in a sandbox where the student stood.",
    ),
]
app = typer.Typer(help="Preference pairs, as lines of JSON.", no_args_is_help=True)

EXIT_NO_PAIRS = 9
EXIT_NOTHING_LEFT = 10
_MOST_BAD_LINES = 10
_EXAMPLE_LENGTH = 40


@app.command()
def extract(
    states: Annotated[Path, typer.Argument(help="The states that were replayed, as `composer replay` read them.")],
    answers: Annotated[Path, typer.Argument(help="The answers.jsonl that `composer replay` wrote.")],
    out: Annotated[Path, typer.Option(help="File for the pairs, one per line, in JSON; replaced whole.")],
    threshold: ThresholdOption = 2,
    judge: JudgeOption = None,
    max_usd: Annotated[
        float, typer.Option(min=0.0, help="Cap on everything the judge's ledger has paid or holds, in US dollars.")
    ] = 0.0,
    ledger: Annotated[
        Path | None, typer.Option(help="Ledger of the judge's answers; by default ledger.sqlite beside ANSWERS.")
    ] = None,
    tasks: TasksOption = None,
    sandbox: SandboxOption = "auto",
) -> None:
    """Make a preference pair of every state where enough teachers agree on another action than the student's.

    Exits with 9 when no state gives one.
    """
    from composer_replication.replaysim.pairs_file import write_pairs
    from composer_replication.teachers import read_answers
    from composer_replication.teachers.mining.judged_mining import find_judged_disagreements
    from composer_replication.teachers.mining.pair_mining import scene_of

    refuse_overwriting({"STATES": states, "ANSWERS": answers, "--judge": judge}, {"--out": out})
    asked = None if judge is None else _judge(judge, max_usd, ledger or answers.parent / "ledger.sqlite")
    given, answered = read_states(states), read_answers(answers)
    known = {state["state_id"] for state in given}
    strange = sum(answer.question_id not in known for answer in answered)
    if strange == len(answered):
        raise ConfigError(f"none of the {strange} answers in {answers} is to a state of {states}", fix="name the states replayed")
    scenes = scene_of if tasks is None else _scenes(tasks, sandbox, given)
    found = asyncio.run(find_judged_disagreements(given, answered, threshold, judge=asked, scenes=scenes))
    by_id = {state["state_id"]: state for state in given}
    extra = {name: {"tools": by_id[name].get("tools", []), "confidence": weight} for name, weight in found.confidence.items()}
    write_pairs(out, ({**pair, **extra[pair["state_id"]]} for pair in found.pairs))
    _show_found(given, answered, strange, found)
    echo(f"{len(found.pairs)} pairs of {len(given)} states: {out}")
    if not found.pairs:
        families = {answer.family or answer.teacher for answer in answered if answer.error is None}
        if len(families) < threshold:
            echo(f"the answers are of {len(families)} families and --threshold is {threshold}: lower it", err=True)
        raise typer.Exit(EXIT_NO_PAIRS)


@app.command("from-logs")
def from_logs(
    logs: Annotated[Path, typer.Argument(help="A log of any agent, or a folder that is searched for them.")],
    teachers: Annotated[Path, typer.Option(help="TOML file with \\[\\[teachers]] tables, as a run file has them.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for everything that is made, pairs.jsonl among it.")],
    max_usd: Annotated[float, typer.Option(min=0.0, help="Cap on everything that teachers and judge have cost, in US dollars.")],
    threshold: ThresholdOption = 2,
    judge: JudgeOption = None,
    tools: Annotated[Path | None, typer.Option(help="JSON list of tool schemas, for logs that do not name theirs.")] = None,
    tasks: TasksOption = None,
    sandbox: SandboxOption = "auto",
) -> None:
    """Make preference pairs of logs: import them, ask teachers what they would have done at every turn, and compare.

    It does what `composer traces import`, `composer traces states`, `composer replay` and `composer pairs extract` do, one after
    the other. Teachers can call only tools that they are shown: where logs do not describe them, as those of Claude Code and
    Codex, --tools does, and states without any are not asked about. Killed or repeated, it resumes: answers in the ledger are not
    asked or paid for again. Where some questions have no answer, it makes the pairs of the others and exits with 6.
    """
    from composer_replication.cli import replay_cmd, traces_cmd

    states, answers = out / "states.jsonl", out / "answers.jsonl"
    traces_cmd.import_(logs, out, tools=tools)
    traces_cmd.write_answerable_states(out, states)
    unanswered = False
    try:
        replay_cmd.replay(states, teachers, out, max_usd)
    except typer.Exit as ended:
        if ended.exit_code != replay_cmd.EXIT_INCOMPLETE:
            raise
        unanswered = True
    extract(states, answers, out / "pairs.jsonl", threshold, judge, max_usd, tasks=tasks, sandbox=sandbox)
    if unanswered:
        echo("some questions have no answer: repeat this command to ask them again", err=True)
        raise typer.Exit(replay_cmd.EXIT_INCOMPLETE)


def _scenes(folder: Path, kind: str, states: Sequence[TraceState]) -> Callable[[TraceState], Scene]:
    """Return scenes with a sandbox for the states of a folder's tasks, and say of how many there are none.

    Raises TaskError as `load_tasks` and `interpreters_of` do, and SandboxError as `open_sandbox`.
    """
    from composer_replication.envs.scenes import scenes_of_tasks
    from composer_replication.sandbox import open_sandbox
    from composer_replication.tasks import load_tasks
    from composer_replication.tasks.interpreters import interpreters_of

    found = load_tasks(folder)
    foreign = len([state for state in states if state.get("task_id") not in {task.spec.task_id for task in found}])
    if foreign:
        echo(
            f"{foreign} of {len(states)} states are of no task in {folder}: their actions are compared without a sandbox",
            err=True,
        )
    return scenes_of_tasks(found, open_sandbox(kind), interpreters_of(found, None, kind))


def _judge(path: Path, max_usd: float, ledger: Path) -> Judge:
    """Return the first teacher of a file as a judge. Raises ConfigError as `load_teachers` and `check_teachers` do."""
    from composer_replication.teachers import Teacher, check_teachers
    from composer_replication.teachers.mining.judged_mining import Judge

    teacher = Teacher.of(load_teachers(path)[0])
    check_teachers([teacher], max_usd)
    return Judge(teacher=teacher, ledger=ledger, max_total_usd=max_usd)


def _show_found(states: Sequence[TraceState], answers: Sequence[TeacherAnswer], strange: int, found: PairMining) -> None:
    """Print the outcome of the states, a number and its meaning per row."""
    answered = {answer.question_id for answer in answers if answer.error is None} & {state["state_id"] for state in states}
    table = Table("", "", box=box.SIMPLE_HEAD, show_header=False)
    rows = [
        ("states", len(states)),
        ("answered by a teacher", len(answered)),
        ("SAME clusters", found.clusters),
        ("clusters dissolved for contradicting themselves", found.dissolved),
        ("undecided comparisons", len(found.undecided)),
        ("pairs", len(found.pairs)),
        *((f"no pair: {reason}", count) for reason, count in sorted(found.dropped.items())),
        *((f"no vote: {reason}", count) for reason, count in sorted(found.abstained.items())),
    ]
    for name, count in [*rows, *([("answers to other states", strange)] if strange else [])]:
        table.add_row(name, str(count))
    Console().print(table)


@app.command()
def normalize(
    pairs: Annotated[Path, typer.Argument(help="File with one pair per line, in JSON.")],
    out: Annotated[Path, typer.Option(help="File for the pairs that pass; replaced whole.")],
    recipe: Annotated[Path | None, typer.Option(help="Recipe in YAML; by default the one of the package.")] = None,
    backend: Annotated[
        Literal["builtin", "data_juicer", "executor", "ray"],
        typer.Option(help="Backend of the operators; all but builtin need the extra replaysim."),
    ] = "builtin",
    ray_address: Annotated[str | None, typer.Option(help="Cluster for the backend ray; by default one is started.")] = None,
    dropped: Annotated[Path | None, typer.Option(help="File for the pairs that do not pass, with what dropped them.")] = None,
    skip_bad_lines: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Report lines that are not pairs, and continue.")
    ] = False,
) -> None:
    """Drop the pairs that are not worth training on, and count for every operator how many it dropped.

    A line that is not a pair is refused with FILE:LINE, and nothing is written. Exits with 10 when no pair is left.
    """
    from composer_replication.replaysim import DJNormalizer
    from composer_replication.replaysim.builtin import states_lost
    from composer_replication.replaysim.pairs_file import read_pairs, write_pairs
    from composer_replication.replaysim.recipe import DEDUPLICATOR

    refuse_overwriting({"PAIRS": pairs, "--recipe": recipe}, {"--out": out, "--dropped": dropped})
    normalizer = DJNormalizer(recipe, backend, ray_address=ray_address)
    given, bad = read_pairs(pairs)
    _print_bad_lines(bad, skip=skip_bad_lines)
    kept = normalizer.normalize(given)
    report = normalizer.report
    assert report is not None
    write_pairs(out, kept)
    if dropped is not None:
        marked = zip(given, report.dropped_by, strict=True)
        write_pairs(dropped, ({**pair, "dropped_by": by} for pair, by in marked if by is not None))
    _print(report, normalizer.operators, given)
    lost = states_lost(normalizer.operators, given, report.dropped_by)
    if lost:
        echo(f"{lost} dropped although their states differ; remove {DEDUPLICATOR} from the recipe for agents", err=True)
    skipped = f", {len(bad)} lines skipped" if bad else ""
    echo(f"{report.kept} of {report.given} pairs kept{skipped}: {out}")
    if not report.kept:
        raise typer.Exit(EXIT_NOTHING_LEFT)


def _print_bad_lines(bad: Sequence[BadLine], *, skip: bool) -> None:
    if not bad:
        return
    if skip:
        for line in bad:
            echo(f"skipped: {line}", err=True)
        return
    shown = "".join(f"\n  {line}" for line in bad[:_MOST_BAD_LINES])
    more = f"\n  and {len(bad) - _MOST_BAD_LINES} more" if len(bad) > _MOST_BAD_LINES else ""
    raise ConfigError(
        f"{len(bad)} lines are not pairs; nothing was written{shown}{more}",
        fix="correct them, or leave them out with --skip-bad-lines",
    )


def _print(report: NormalizeReport, operators: Sequence[Operator], given: Sequence[Mapping[str, Any]]) -> None:
    """Print one row per operator: what it dropped, how many of those were tool calls, and the first of them."""
    table = Table("operator", "field", "limits", "dropped", "tool calls", "the first", box=box.SIMPLE_HEAD)
    for title in dict.fromkeys(operator.title for operator in operators):
        alike = [operator for operator in operators if operator.title == title]
        field = alike[0].text_key
        texts = [pair[field] for pair, by in zip(given, report.dropped_by, strict=True) if by == title]
        calls = sum(bool(parse_action(text)[1]) for text in texts)
        limits = "; ".join(", ".join(f"{key} {value}" for key, value in operator.parameters.items()) for operator in alike)
        first = shortened(repr(texts[0]), _EXAMPLE_LENGTH) if texts else ""
        row = (alike[0].name, field, limits, str(len(texts)), str(calls), first)
        table.add_row(*row)
    wide_console().print(table)
