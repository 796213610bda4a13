"""`composer rollout`: let a policy work on tasks and say how it did."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from composer_replication.api.policies import REQUIRED, check_policy
from composer_replication.api.rollout_options import EngineKind, RolloutOptions
from composer_replication.api.rollouts import Evaluation, evaluation_of, rollout_groups
from composer_replication.cli.support.options import ForgeableOption, SandboxOption, marked
from composer_replication.config import TEACHER
from composer_replication.envs.tools import Toolset
from composer_replication.observe import Terminal, mean_and_se, usd
from composer_replication.observe.console import Console, echo
from composer_replication.tasks.store import Task
from composer_replication.tasks.strength import load_strong_tasks
from composer_replication.tasks.wording import worded
from composer_replication.types import Group, InstructionStyle, Trajectory, cause_of, to_json
from composer_replication.types.errors import StorageError

EXIT_UNSOUND = 10
"""The oracle did not solve every task, or doing nothing solved one."""
PolicyOption: TypeAlias = Annotated[
    str,
    typer.Option(
        help="oracle (the solution), noop (submit at once), random (random calls), teacher:NAME (one of --teachers), or a model: "
        "a folder or an id."
    ),
]
TeachersOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="TOML file with \\[\\[teachers]] tables, as a run file has them, for teacher:NAME.")
]
ModelOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="The model that is to learn from a teacher, a folder or an id: its chat template writes the teacher's turns, and "
        "budgets are counted in its tokens."
    ),
]
MaxUsdOption: TypeAlias = Annotated[
    float | None, typer.Option(min=0.0, help="Cap on everything the teacher's ledger in --out has paid or holds, in US dollars.")
]
OutOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(file_okay=False, help="Folder for trajectories.jsonl and summary.json, and for a teacher's ledger.sqlite."),
]


def rollout(
    tasks: Annotated[Path, typer.Option(help="Folder of tasks, as `composer tasks build` writes it.")],
    policy: PolicyOption,
    group_size: Annotated[int, typer.Option(min=1, help="Rollouts per task.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Take only the first N tasks.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of every random draw.")] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 takes the most likely token.")] = 1.0,
    turn_tokens: Annotated[int | None, typer.Option(min=1, help="Budget of one turn, in sampled tokens.")] = None,
    trajectory_tokens: Annotated[int | None, typer.Option(min=1, help="Budget of a rollout, in sampled tokens.")] = None,
    context_tokens: Annotated[int | None, typer.Option(min=1, help="Budget of prompt, turns and replies together.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Most turns of a rollout.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of tests run at a time.")] = 2,
    python: Annotated[Path | None, typer.Option(help="Interpreter for the tests; the one the tasks were built with.")] = None,
    out: OutOption = None,
    sandbox: SandboxOption = "auto",
    forgeable: ForgeableOption = False,
    instruction: Annotated[
        InstructionStyle | None, typer.Option(help="How much the instruction tells agents; by default as built.")
    ] = None,
    tools: Annotated[Toolset, typer.Option(help="Tools offered to agents; shell adds shell commands and patches.")] = "basic",
    engine: Annotated[
        EngineKind, typer.Option(help="Engine that samples a model: here, or on a server that holds it.")
    ] = "transformers",
    server_url: Annotated[str | None, typer.Option(help="http://HOST:PORT of the vLLM or SGLang server.")] = None,
    teachers: TeachersOption = None,
    model: ModelOption = None,
    max_usd: MaxUsdOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, all else to stderr.")] = False,
) -> None:
    """Let a policy work on tasks: reward, stop reasons, turns and tokens per task, and their mean with its standard error.

    `oracle` must score 1 on every task and `noop` 0, and every policy 0 on an impossible one; otherwise the exit code is 10. A
    teacher is asked over HTTP; repeated, the command asks and pays for nothing twice. `sft.traces` takes its trajectories.jsonl.
    """
    terminal = Terminal(Console(stderr=True) if json_output else None)
    options = RolloutOptions(
        seed=seed,
        temperature=temperature,
        turn_tokens=turn_tokens,
        trajectory_tokens=trajectory_tokens,
        context_tokens=context_tokens,
        max_turns=max_turns,
        env_workers=workers,
        python=python,
        sandbox=sandbox,
        toolset=tools,
        engine=engine,
        server_url=server_url,
        forgeable=forgeable,
        teachers=teachers,
        model=model,
        ledger=None if out is None else out / "ledger.sqlite",
        max_usd=max_usd,
    )
    check_policy(policy, options)
    chosen = worded(load_strong_tasks(tasks, forgeable=forgeable)[:limit], instruction)
    found = _rolled_out(terminal, chosen, policy, group_size, options, out)
    if policy.startswith(TEACHER):
        _note_spent(terminal, options.ledger)
    _finish(terminal, _summary(found), out, json_output=json_output)


def _rolled_out(
    terminal: Terminal, tasks: Sequence[Task], policy: str, group_size: int, options: RolloutOptions, out: Path | None
) -> Evaluation:
    """Make the rollouts, write each part of them as soon as it is there, and return what they amount to."""
    with terminal.phase(f"{policy}: rollouts", len(tasks) * group_size) as shown:
        groups, isolation = rollout_groups(
            tasks,
            policy,
            group_size,
            options,
            on_progress=lambda done: shown.advance(done - shown.done),
            on_groups=None if out is None else _TrajectoryWriter(out / "trajectories.jsonl"),
            on_isolation=terminal.isolation,
        )
    return evaluation_of(policy, tasks, groups, isolation)


def _finish(terminal: Terminal, summary: dict[str, Any], out: Path | None, *, json_output: bool) -> None:
    """Write and show the summary; exit with its own code where the tasks are unsound."""
    if out is not None:
        _write(out / "summary.json", json.dumps(summary, indent=2) + "\n", "w")
    _show(terminal, summary)
    if json_output:
        echo(json.dumps(summary))
    if summary["deviating"]:
        raise typer.Exit(EXIT_UNSOUND)


def _note_spent(terminal: Terminal, path: Path | None) -> None:
    from composer_replication.teachers import Ledger

    with Ledger(path) as ledger:
        terminal.note(f"{path} has ${usd(ledger.spent_usd)} in it")


class _TrajectoryWriter:
    """Append each part of the rollouts to a file as soon as it is there."""

    def __init__(self, path: Path) -> None:
        self._path, self._mode = path, "w"

    def __call__(self, groups: list[Group]) -> None:
        lines = [json.dumps(to_json(t), ensure_ascii=False) + "\n" for g in groups for t in g.trajectories]
        _write(self._path, "".join(lines), self._mode)
        self._mode = "a"


def _summary(found: Evaluation) -> dict[str, Any]:
    """Return plain JSON data; a number that cannot be estimated is None. Impossible tasks are not part of the mean reward."""
    rows, trajectories = found.rows, found.trajectories
    mean, se = mean_and_se([row["reward"] for row in rows if row["reward"] is not None and not row["impossible"]])
    required = REQUIRED.get(found.policy)
    owed = {row["task_id"]: 0.0 if row["impossible"] else required for row in rows}
    deviating = [
        row["task_id"] for row in rows if required is not None and (row["reward"] != owed[row["task_id"]] or row["unscored"])
    ]
    return {
        "policy": found.policy,
        "reward_mean": mean if math.isfinite(mean) else None,
        "reward_se": se if math.isfinite(se) else None,
        "tasks": len(rows),
        "trajectories": len(trajectories),
        "unscored": sum(row["unscored"] for row in rows),
        "turns": sum(row["turns"] for row in rows),
        "sampled_tokens": sum(row["sampled_tokens"] for row in rows),
        "impossible": sum(row["impossible"] for row in rows),
        "cheat_alarms": sum(bool(t.grade.alarms) for t in trajectories if t.grade is not None),
        "alarm_causes": dict(_causes(trajectories).most_common()),
        "required": required,
        "deviating": deviating,
        "isolation": found.isolation,
        "per_task": rows,
    }


def _causes(trajectories: Sequence[Trajectory]) -> Counter[str]:
    """Return what alarms say, and in how many rollouts."""
    return Counter(cause for t in trajectories if t.grade is not None for cause in {cause_of(a) for a in t.grade.alarms})


def _show(terminal: Terminal, summary: dict[str, Any]) -> None:
    columns = ("task", "reward", "unscored", "stopped by", "turns", "tokens")
    cells = [
        (
            marked(row["task_id"], row["impossible"]),
            "n/a" if row["reward"] is None else f"{row['reward']:.3f}",
            row["unscored"],
            ", ".join(f"{name} {count}" for name, count in row["stop_reasons"].items()),
            row["turns"],
            row["sampled_tokens"],
        )
        for row in summary["per_task"]
    ]
    terminal.table(f"policy {summary['policy']}", columns, cells)
    mean, se = (summary[name] for name in ("reward_mean", "reward_se"))
    counted = f"{summary['tasks']} tasks, {summary['trajectories']} rollouts, {summary['sampled_tokens']} sampled tokens"
    spread = "" if se is None else f" ± {se:.3f} (standard error over tasks)"
    terminal.note(f"reward {'n/a' if mean is None else f'{mean:.3f}'}{spread}: {counted}, {summary['unscored']} unscored")
    if ungraded := next((row for row in summary["per_task"] if row["unscored"]), None):
        terminal.note(f"unscored on {ungraded['task_id']}, for one: {ungraded['why']}")
    if summary["cheat_alarms"]:
        causes = "; ".join(f"{cause} ({count})" for cause, count in summary["alarm_causes"].items())
        terminal.note(f"CHEAT ALARM: {summary['cheat_alarms']} rollouts raised an alarm; read their trajectories. {causes}")
    for task_id in summary["deviating"]:
        row = next(r for r in summary["per_task"] if r["task_id"] == task_id)
        owed = 0.0 if row["impossible"] else summary["required"]
        name = marked(task_id, row["impossible"])
        terminal.note(f"{summary['policy']} must score {owed:g} on {name}: {row['why'] or 'it scored 1'}")


def _write(path: Path, text: str, mode: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", fix="free some space or name another --out") from error
