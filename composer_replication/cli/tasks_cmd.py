"""`composer tasks`: build feature-deletion tasks from a repository, list them, show one."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.syntax import Syntax
from rich.table import Table

from composer_replication.cli.support.build_display import BuildDisplay, print_reasons, show_report
from composer_replication.cli.support.options import SandboxOption, wide_console
from composer_replication.cli.support.set_table import build_and_show_set
from composer_replication.cli.support.task_table import MOST_ROWS, task_lines, task_table
from composer_replication.languages.functions import Skipped
from composer_replication.observe.console import echo
from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.exchange.swebench_import import build_instances
from composer_replication.tasks.folders import load_tasks, read_folder
from composer_replication.tasks.report import BuildMode, BuildOptions
from composer_replication.tasks.sets.sources_file import read_sources
from composer_replication.tasks.solved import SolvedTasks, rates_of, write_solved
from composer_replication.tasks.sources.fetch import left_open
from composer_replication.tasks.store import Task, load_task
from composer_replication.types import InstructionStyle
from composer_replication.types.errors import ConfigError, TaskError

if TYPE_CHECKING:
    from composer_replication.teachers import Teacher

app = typer.Typer(help="Build, list and show tasks.", no_args_is_help=True)

_List = typer.Option("--from", dir_okay=False, help="File with a source a line: build them all into one set.")
_Size = typer.Option(help="Functions deleted together: a number, or a range such as 3-10. Default: 1; features: 2-12.")
_Source = typer.Argument(help="A folder, pypi:NAME==VERSION, npm:NAME@VERSION, debian:NAME==VERSION, or a git URL.")
_TRIVIAL = "Keep tasks of three lines or fewer without a branch, and near copies of functions that stay."
_Commits = typer.Option(min=1, help="With --mode commits: look at this many of the newest; by default at all.")
_Since = typer.Option(help="With --mode commits: look only at commits that came after this tag or commit.")


@app.command()
def build(
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the tasks; the same command continues a build.")],
    source: Annotated[str | None, _Source] = None,
    sources: Annotated[Path | None, _List] = None,
    retry: Annotated[bool, typer.Option("--retry", help="With --from: try sources again that were refused before.")] = False,
    max_tasks: Annotated[int | None, typer.Option("--max", min=1, help="Stop after this many tasks.")] = None,
    mode: Annotated[BuildMode, typer.Option(help="Delete bodies, functions or features, or undo commits.")] = "stub",
    commits: Annotated[int | None, _Commits] = None,
    since: Annotated[str, _Since] = "",
    size: Annotated[str | None, _Size] = None,
    difficulty: Annotated[str, typer.Option(help="Range of the estimated difficulty, such as 0.3-0.8.")] = "0-1",
    trivial: Annotated[bool, typer.Option("--trivial", help=_TRIVIAL)] = False,
    instruction: Annotated[InstructionStyle, typer.Option(help="How much the instruction tells the agent.")] = "terse",
    mutants: Annotated[int, typer.Option(min=0, help="Try a task's tests on this many wrong versions of its code.")] = 0,
    kill_rate: Annotated[float, typer.Option(help="Share of wrong versions that the tests must detect.")] = 0.5,
    licence: Annotated[list[str] | None, typer.Option(help="Allow this licence (SPDX) and no other; repeatable.")] = None,
    benchmark: Annotated[list[Path] | None, typer.Option(help="File of benchmark rows or repositories to avoid.")] = None,
    allow_credentials: Annotated[list[str] | None, typer.Option(help="Pattern of files whose credentials are made up.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of candidates and of samples of tests.")] = 0,
    python: Annotated[Path | None, typer.Option(help="Interpreter for the tests, with what they import.")] = None,
    install: Annotated[bool, typer.Option("--install", help="Install the declared dependencies into OUT/.venv.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Candidates validated at once.")] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds for one run of the whole test suite.")] = 300.0,
    task_timeout: Annotated[float, typer.Option(help="Seconds for one run of a task's tests.")] = 60.0,
    budget: Annotated[float | None, typer.Option(help="Start no new candidate after this many seconds.")] = None,
    pass_to_pass: Annotated[int, typer.Option(min=0, help="Limit on the tests per task that must keep passing.")] = 50,
    impossible: Annotated[float, typer.Option(help="Share of tasks made impossible: passing one is a cheat alarm.")] = 0.0,
    forgeable: Annotated[bool, typer.Option("--forgeable", help="Keep tasks whose reward a program could forge.")] = False,
    drop_docstrings: Annotated[bool, typer.Option("--drop-docstrings", help="Delete docstrings with the bodies.")] = False,
    language: Annotated[str, typer.Option(help="Language to build tasks in; by default what the source shows.")] = "",
    package: Annotated[list[str] | None, typer.Option(help="Path of a package or module to delete from; repeatable.")] = None,
    tests: Annotated[list[str] | None, typer.Option(help="Path of tests; repeatable.")] = None,
    sandbox: SandboxOption = "auto",
) -> None:
    """Turn a repository with tests into tasks: delete features whose tests can verify that they are back.

    With --mode commits, undo commits of a git repository instead, one a task: those whose tests fail without their code.

    With --from, turn many repositories into one set of tasks; options hold for each of them. Exits with 3 when no task could be
    validated, and with 1 when some sources of a list have none.
    """
    options = BuildOptions(
        max_tasks=max_tasks,
        mode=mode,
        commits=commits,
        since=since,
        **_ranges(size or "0", difficulty),
        trivial=trivial,
        instruction=instruction,
        mutants=mutants,
        kill_rate=kill_rate,
        **_tuples(licences=licence, benchmarks=benchmark, allow_credentials=allow_credentials, packages=package, tests=tests),
        seed=seed,
        python=python,
        install=install,
        jobs=jobs,
        timeout_s=timeout,
        task_timeout_s=task_timeout,
        budget_s=budget,
        pass_to_pass_cap=pass_to_pass,
        impossible=impossible,
        forgeable=forgeable,
        language=language,
        keep_docstring=not drop_docstrings,
        sandbox=sandbox,
    )
    _build(source, sources, out, options, retry=retry)


def _build(source: str | None, sources: Path | None, out: Path, options: BuildOptions, *, retry: bool) -> None:
    if (source is None) == (sources is None):
        raise ConfigError("a build takes one source, or a list of them with --from", fix="give one of the two")
    if source is None:
        build_and_show_set(read_sources(sources or Path()), out, options, retry=retry)
        return
    if what := left_open(source, installs=options.runs_programs):
        echo(f"not confined: {what}", err=True)
    with BuildDisplay(each=options.mode == "commits") as display:
        report = build_tasks(source, out, options, progress=display.show)
    show_report(report, out)


@app.command()
def revert(
    rows: Annotated[Path, typer.Argument(help="JSONL file with rows of SWE-bench, SWE-Gym, SWE-rebench or SWE-smith.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the tasks; those already there are not built again.")],
    instance: Annotated[str, typer.Option(help="Id of one instance; all by default.")] = "",
    checkout: Annotated[
        str, typer.Option(help="Repository with the commits: a path or git URL; by default the row's, on GitHub.")
    ] = "",
    max_tasks: Annotated[int | None, typer.Option("--max", min=1, help="Stop after this many tasks.")] = None,
    licence: Annotated[list[str] | None, typer.Option(help="Allow this licence (SPDX) and no other; repeatable.")] = None,
    benchmark: Annotated[list[Path] | None, typer.Option(help="File of benchmark rows or repositories to avoid.")] = None,
    allow_credentials: Annotated[list[str] | None, typer.Option(help="Pattern of files whose credentials are made up.")] = None,
    python: Annotated[Path | None, typer.Option(help="Interpreter for the tests, with what they import.")] = None,
    install: Annotated[bool, typer.Option("--install", help="Make an environment a row in OUT; equal ones are shared.")] = False,
    timeout: Annotated[float, typer.Option(help="With --install: seconds for one run of a project's whole test suite.")] = 300.0,
    task_timeout: Annotated[float, typer.Option(help="Seconds for one run of a task's tests.")] = 60.0,
    sandbox: SandboxOption = "auto",
) -> None:
    """Turn SWE-bench-style rows into tasks by reverting their patches; what a row claims is confirmed by real runs.

    Exits with 1 when some instances could not be confirmed, and with 3 when none could.
    """
    options = BuildOptions(
        max_tasks=max_tasks,
        **_tuples(licences=licence, benchmarks=benchmark, allow_credentials=allow_credentials),
        python=python,
        install=install,
        timeout_s=timeout,
        task_timeout_s=task_timeout,
        sandbox=sandbox,
    )
    with BuildDisplay(each=True) as display:
        tasks, dropped = build_instances(rows, out, only=instance, checkout=checkout, options=options, progress=display.show)
    console = wide_console()
    if tasks:
        console.print(task_table(tasks))
    print_reasons(console, Counter(entry.reason for entry in dropped).most_common(), what="instances")
    console.print(f"{len(tasks)} tasks from {len(tasks) + len(dropped)} instances\n{out!s}", soft_wrap=True)
    if not tasks:
        raise TaskError(f"no instance of {rows} could be confirmed", fix="see the reasons above")
    if dropped:
        raise typer.Exit(1)


@app.command()
def describe(
    folder: Annotated[Path, typer.Argument(help="Folder of tasks.")],
    model: Annotated[str, typer.Option(help="Model that writes, by the endpoint's name for it.")],
    base_url: Annotated[str, typer.Option(help="OpenAI-compatible endpoint.")] = "https://openrouter.ai/api/v1",
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the key; empty for none.")] = "OPENROUTER_API_KEY",
    max_usd: Annotated[float | None, typer.Option(help="Cap on the cost of all calls; needs the prices.")] = None,
    usd_per_million_input: Annotated[float | None, typer.Option(help="Price of prompt tokens.")] = None,
    usd_per_million_output: Annotated[float | None, typer.Option(help="Price of answer tokens.")] = None,
) -> None:
    """Let a model write the instructions of a folder's tasks; texts that give the deleted code away are not used.

    Answers are kept in FOLDER/.build/writer.sqlite and never paid for twice.
    """
    from composer_replication.teachers import Teacher

    writer = Teacher(
        name=model,
        model=model,
        base_url=base_url,
        api_key_env=api_key_env or None,
        usd_per_million_input=usd_per_million_input,
        usd_per_million_output=usd_per_million_output,
        max_tokens=1024,
    )
    tasks = [task for task in load_tasks(folder) if "instruction_by" not in task.provenance]
    done, skipped = asyncio.run(_rewrite(tasks, writer, folder / ".build" / "writer.sqlite", max_usd))
    console = wide_console()
    print_reasons(console, Counter(entry.reason for entry in skipped).most_common())
    console.print(f"{len(done)} of {len(tasks)} instructions written by {model}", soft_wrap=True, highlight=False)


async def _rewrite(tasks: list[Task], writer: Teacher, ledger: Path, max_usd: float | None) -> tuple[list[Task], list[Skipped]]:
    from composer_replication.tasks.rewrite import rewrite_instructions
    from composer_replication.teachers import Ledger, TeacherPool

    ledger.parent.mkdir(exist_ok=True)
    with Ledger(ledger) as kept:
        async with TeacherPool([writer], ledger=kept, max_total_usd=max_usd) as pool:
            return await rewrite_instructions(tasks, pool)


@app.command("filter")
def filter_tasks(
    folder: Annotated[Path, typer.Argument(help="Folder of tasks, or a set of such folders.")],
    results: Annotated[Path, typer.Option(dir_okay=False, help="The file eval/results.json that `composer eval` wrote.")],
    policy: Annotated[str, typer.Option(help="Name of the policy whose pass rates count, where several were evaluated.")] = "",
    keep: Annotated[str, typer.Option(help="Range of the share of passed rollouts; 0-1 keeps every task.")] = "0.05-0.95",
) -> None:
    """Leave out the tasks of a folder that a policy solves too rarely or too often to learn from.

    Pass rates are those of an evaluation on these tasks: composer eval RUN --tasks.held_out FOLDER. They are kept in
    FOLDER/solved.json, and whatever loads the folder leaves those tasks out; nothing is deleted.
    """
    name, rates = rates_of(results, policy)
    least, most = _range(keep, "--keep")
    solved = SolvedTasks(policy=name, least=least, most=most, rates=rates)
    ids = [task.spec.task_id for task in read_folder(folder)[0]]
    known = [rates[task_id] for task_id in ids if task_id in rates]
    if not known:
        raise ConfigError(f"{results} has no rollout of a task of {folder}", fix=f"composer eval RUN --tasks.held_out {folder}")
    write_solved(folder, solved)
    rare, often = sum(rate < least for rate in known), sum(rate > most for rate in known)
    echo(f"{name} passes {rare} of {len(ids)} tasks too rarely and {often} too often; {len(ids) - rare - often} are kept")
    if untried := len(ids) - len(known):
        echo(f"{untried} of these were not tried")


@app.command("list")
def list_tasks(
    folder: Annotated[Path, typer.Argument(help="Folder of tasks, or a set of such folders.")],
    check: Annotated[bool, typer.Option("--check", help="Compare every file with its task's manifest.")] = False,
) -> None:
    """List the tasks of a folder or set, and for each whether its reward can be forged, and by what."""
    tasks = load_tasks(folder)
    for task in tasks if check else ():
        task.check()
    if len(tasks) <= MOST_ROWS:
        wide_console().print(task_table(tasks))
    else:
        echo("\n".join(task_lines(tasks)))


@app.command()
def show(task: Annotated[Path, typer.Argument(help="Folder of one task, FOLDER/TASK.")]) -> None:
    """Show one task: its instruction, what was deleted, its tests, and the solution."""
    loaded = load_task(task)
    spec, console = loaded.spec, wide_console()
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    rows = {
        "task": spec.task_id,
        "asks": spec.instruction,
        "source": spec.source,
        "deleted": ", ".join(f"{d.qualname} ({d.path}, {d.lines} lines)" for d in spec.deleted),
        "editable": ", ".join(spec.editable),
        "time limit": f"{spec.test_timeout_s:g} s",
        "fail-to-pass": f"{len(spec.fail_to_pass)}: {_first(spec.fail_to_pass)}",
        "pass-to-pass": f"{len(spec.pass_to_pass)}: {_first(spec.pass_to_pass)}" if spec.pass_to_pass else "0",
        "hidden checks": _hidden(loaded),
        "made with": ", ".join(f"{name} {value}" for name, value in loaded.provenance.items()),
    }
    for name, value in rows.items():
        facts.add_row(name, value)
    console.print(facts)
    console.print(Syntax(loaded.gold_patch(), "diff", background_color="default", word_wrap=True))


def _ranges(size: str, difficulty: str) -> dict[str, Any]:
    """Return the options of a build that are ranges."""
    (fewest, most), (easiest, hardest) = _range(size, "--size"), _range(difficulty, "--difficulty")
    return {
        "min_group_size": int(fewest),
        "group_size": int(most),
        "min_difficulty": easiest,
        "max_difficulty": hardest,
    }


def _tuples(**given: list[Any] | None) -> dict[str, Any]:
    """Return options that may be repeated, as a build takes them."""
    return {name: tuple(values or ()) for name, values in given.items()}


def _range(text: str, option: str) -> tuple[float, float]:
    """Parse `N` or `N-M` into two numbers."""
    low, _, high = text.partition("-")
    try:
        return float(low), float(high or low)
    except ValueError as error:
        example = "0.3-0.8" if option == "--difficulty" else "3-10"
        raise ConfigError(f"{option} {text} is not a range", fix=f"write for example {option} {example}") from error


def _first(ids: tuple[str, ...], count: int = 3) -> str:
    return ", ".join(ids[:count]) + (", ..." if len(ids) > count else "")


def _hidden(task: Task) -> str:
    if task.spec.impossible:
        return "none: the task is impossible, and passing it an alarm"
    hidden = task.spec.hidden
    new = sum(program.new_calls > 0 for program in hidden.programs)
    strength = f"forgeable: {hidden.weakness}" if task.spec.forgeable else "trivial bodies and the tests' answers by heart fail"
    programs = f"{len(hidden.programs)} held-out programs, {new} of them with calls that no test makes"
    return f"{programs}; {len(hidden.anti_tests)} anti-tests; {strength}"
