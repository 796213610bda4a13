"""`composer rollout`: let a policy work on tasks and say how it did."""

from __future__ import annotations

import asyncio
import difflib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from composer_replication.cli.support.options import SandboxOption, marked
from composer_replication.envs import CodingEnv, TestCache, noop_script, oracle_script
from composer_replication.envs.oracle import prove_solution
from composer_replication.envs.tools import TOOLSETS, Toolset
from composer_replication.observe import Terminal, mean_and_se
from composer_replication.rollout import Budgets, Engine, Progress, RandomEngine, ScriptedEngine, collect_groups
from composer_replication.sandbox import Sandbox, open_sandbox
from composer_replication.sandbox.grading.grade import GradeCache
from composer_replication.tasks.build import build_python
from composer_replication.tasks.describe import InstructionStyle
from composer_replication.tasks.store import Task, load_tasks
from composer_replication.tasks.wording import worded
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.types import Group, Message, Unscored, to_json
from composer_replication.types.errors import ConfigError, StorageError

__all__ = ["rollout"]

EXIT_UNSOUND = 10
"""The oracle did not solve every task, or doing nothing solved one."""

EngineKind = Literal["transformers", "vllm", "sglang"]

_PER_COLLECTION = 64
"""Most trajectories collected, and then written, at a time."""
_SCRIPTED_BUDGETS = Budgets(turn_tokens=1 << 22, trajectory_tokens=1 << 24, context_tokens=1 << 26, max_turns=1 << 10)
_REQUIRED = {"oracle": 1.0, "noop": 0.0}


def rollout(
    tasks: Annotated[Path, typer.Option(help="Folder of tasks, as `composer tasks build` writes it.")],
    policy: Annotated[
        str,
        typer.Option(help="oracle (the solution), noop (submit at once), random (random calls), or a model: a folder or an id."),
    ],
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
    out: Annotated[Path | None, typer.Option(file_okay=False, help="Folder for trajectories.jsonl and summary.json.")] = None,
    sandbox: SandboxOption = "auto",
    instruction: Annotated[
        InstructionStyle | None, typer.Option(help="How much the instruction tells agents; by default as built.")
    ] = None,
    tools: Annotated[Toolset, typer.Option(help="Tools offered to agents; shell adds shell commands and patches.")] = "basic",
    engine: Annotated[
        EngineKind, typer.Option(help="Engine that samples a model: here, or on a server that holds it.")
    ] = "transformers",
    server_url: Annotated[str | None, typer.Option(help="http://HOST:PORT of the vLLM or SGLang server.")] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object, and everything else to stderr.")
    ] = False,
) -> None:
    """Let a policy work on tasks: reward, stop reasons, turns and tokens per task, and their mean with its standard error.

    `oracle` must score 1 on every task and `noop` 0, and every policy 0 on an impossible one; otherwise the exit code is 10.
    """
    terminal = Terminal(Console(stderr=True) if json_output else None)
    _check_policy(policy, engine, server_url)
    chosen = worded(load_tasks(tasks)[:limit], instruction)
    interpreter = (python or build_python(tasks, sandbox)).absolute()
    box = open_sandbox(sandbox)
    terminal.isolation(box.isolation.summary())
    possible = [task for task in chosen if not task.spec.impossible]
    _prove(policy, possible, box, interpreter)
    actor = _actor(policy, chosen, tools, engine, server_url)
    budgets = _budgets(actor, turn_tokens, trajectory_tokens, context_tokens, max_turns)
    grades, tests = GradeCache(), TestCache()
    env = partial(CodingEnv, sandbox=box, python=interpreter, grade_cache=grades, test_cache=tests, toolset=tools)
    collect = partial(
        collect_groups,
        make_env=env,
        engine=actor.engine,
        renderer=actor.renderer,
        budgets=budgets,
        group_size=group_size,
        seed=seed,
        step=0,
        temperature=temperature,
        policy_version=0,
        env_workers=workers,
    )
    groups = _in_parts(terminal, f"{policy}: rollouts", chosen, group_size, collect, out)
    summary = _summary(policy, groups, {task.spec.task_id for task in possible}, box.isolation.summary())
    if out is not None:
        _write(out / "summary.json", json.dumps(summary, indent=2) + "\n", "w")
    _show(terminal, summary)
    if json_output:
        typer.echo(json.dumps(summary))
    if summary["deviating"]:
        raise typer.Exit(EXIT_UNSOUND)


def _check_policy(policy: str, engine: EngineKind, server_url: str | None) -> None:
    """Raise ConfigError for a misspelt name, which would be looked up on the Hugging Face hub, and where an engine, its address
    or a model for it is missing."""
    close = difflib.get_close_matches(policy.lower(), (*_REQUIRED, "random"), n=1, cutoff=0.8)
    if close and policy != close[0] and not Path(policy).exists():
        raise ConfigError(f"there is no policy {policy!r}", fix=f"did you mean --policy {close[0]}?")

    if engine != "transformers" and policy in (*_REQUIRED, "random"):
        raise ConfigError(f"--engine {engine} samples models, and {policy} is none", fix="leave --engine out")
    if (engine == "transformers") != (server_url is None):
        raise ConfigError(
            f"--engine {engine} {'needs' if server_url is None else 'reads no'} --server-url",
            fix="give --engine vllm or sglang together with --server-url http://HOST:PORT",
        )


def _prove(policy: str, possible: Sequence[Task], box: Sandbox, interpreter: Path) -> None:
    """Show with one solution that tests run here; the policies that are required to solve or fail every task show more."""
    if policy not in _REQUIRED and possible:
        prove_solution(possible[0], sandbox=box, python=interpreter)


def _in_parts(
    terminal: Terminal,
    title: str,
    tasks: Sequence[Task],
    group_size: int,
    collect: Callable[..., Coroutine[Any, Any, list[Group]]],
    out: Path | None,
) -> list[Group]:
    """Collect a bounded number of rollouts at a time, and write each part as soon as it is there."""
    groups: list[Group] = []
    size = max(1, _PER_COLLECTION // group_size)
    with terminal.phase(title, len(tasks) * group_size) as shown:
        for start in range(0, len(tasks), size):

            def report(progress: Progress, before: int = start * group_size) -> None:
                shown.advance(before + progress.finished - shown.done)

            collected = asyncio.run(collect(tasks[start : start + size], on_progress=report))
            groups += collected
            if out is not None:
                lines = [json.dumps(to_json(t), ensure_ascii=False) + "\n" for g in collected for t in g.trajectories]
                _write(out / "trajectories.jsonl", "".join(lines), "a" if start else "w")
    return groups


@dataclass(frozen=True, slots=True)
class _PolicyActor:
    engine: Engine
    renderer: ChatRenderer
    budgets: Budgets


def _actor(policy: str, tasks: Sequence[Task], toolset: Toolset, engine_kind: EngineKind, server_url: str | None) -> _PolicyActor:
    """Return the engine behind a policy's name, the renderer for its tokens, and its default budgets."""
    if policy not in (*_REQUIRED, "random"):
        return _model(policy) if engine_kind == "transformers" else _served(policy, engine_kind, str(server_url))
    renderer = ChatRenderer(byte_level_tokenizer())
    if policy == "random":
        names = {name for t in tasks for d in t.spec.deleted for name in (d.path, d.qualname.rpartition(".")[2])}
        engine = RandomEngine(renderer, tools=TOOLSETS[toolset], words=sorted(names))
        return _PolicyActor(
            engine, renderer, Budgets(turn_tokens=2000, trajectory_tokens=32_000, context_tokens=1 << 20, max_turns=16)
        )
    by_id = {task.spec.task_id: task for task in tasks}

    def script_for(session: str) -> Sequence[Message]:
        task_id = session.partition("/")[2].rpartition("/")[0]
        return oracle_script(by_id[task_id]) if policy == "oracle" else noop_script()

    return _PolicyActor(ScriptedEngine(renderer, script_for), renderer, _SCRIPTED_BUDGETS)


def _budgets(actor: _PolicyActor, *given: int | None) -> Budgets:
    """Return the actor's own budgets, except those given, in the order of their fields."""
    names = (field.name for field in fields(Budgets))
    return replace(actor.budgets, **{name: value for name, value in zip(names, given, strict=True) if value is not None})


def _model(path: str) -> _PolicyActor:
    from composer_replication.config import ModelConfig
    from composer_replication.loss.forward.models import load_policy
    from composer_replication.rollout.transformers_engine import TransformersEngine

    model, tokenizer = load_policy(ModelConfig(path=path))
    return _PolicyActor(TransformersEngine(model, tokenizer), ChatRenderer(tokenizer), Budgets())


def _served(path: str, kind: Literal["vllm", "sglang"], url: str) -> _PolicyActor:
    from composer_replication.loss.forward.models import load_tokenizer
    from composer_replication.trainer.engines import open_server_engine

    tokenizer, generation = load_tokenizer(path)
    return _PolicyActor(open_server_engine(kind, url, tokenizer, generation), ChatRenderer(tokenizer), Budgets())


# --- what came of it ---------------------------------------------------------------------------------------------------


def _summary(policy: str, groups: Sequence[Group], possible: Set[str], isolation: str) -> dict[str, Any]:
    """Return plain JSON data; a number that cannot be estimated is None. Impossible tasks are left out of the mean reward."""
    rows = [_row(group) for group in groups]
    mean, se = mean_and_se([row["reward"] for row in rows if row["reward"] is not None and row["task_id"] in possible])
    required = _REQUIRED.get(policy)
    owed = {row["task_id"]: required if row["task_id"] in possible else 0.0 for row in rows}
    deviating = [
        row["task_id"] for row in rows if required is not None and (row["reward"] != owed[row["task_id"]] or row["unscored"])
    ]
    return {
        "policy": policy,
        "reward_mean": _finite(mean),
        "reward_se": _finite(se),
        "tasks": len(rows),
        "trajectories": sum(len(g.trajectories) for g in groups),
        "unscored": sum(row["unscored"] for row in rows),
        "turns": sum(row["turns"] for row in rows),
        "sampled_tokens": sum(row["sampled_tokens"] for row in rows),
        "impossible": len(rows) - len(possible),
        "cheat_alarms": sum(t.grade.alarm for g in groups for t in g.trajectories if t.grade is not None),
        "required": required,
        "deviating": deviating,
        "isolation": isolation,
        "per_task": [{**row, "impossible": row["task_id"] not in possible} for row in rows],
    }


def _row(group: Group) -> dict[str, Any]:
    trajectories = group.trajectories
    scored = [t.reward for t in trajectories if not isinstance(t.reward, Unscored)]
    reasons = itertools.chain.from_iterable([t.reward.reason] if isinstance(t.reward, Unscored) else [] for t in trajectories)
    graded = next((t.grade for t in trajectories if t.grade is not None and t.grade.reward != 1.0), None)
    return {
        "task_id": group.task_id,
        "reward": _finite(mean_and_se(scored)[0]),
        "unscored": len(trajectories) - len(scored),
        "stop_reasons": dict(sorted(Counter(t.stop_reason.value for t in trajectories).items())),
        "turns": sum(len(t.turns) for t in trajectories),
        "sampled_tokens": sum(t.num_sampled_tokens() for t in trajectories),
        "why": next(reasons, graded.reasons[0] if graded is not None and graded.reasons else ""),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
    if summary["cheat_alarms"]:
        terminal.note(f"CHEAT ALARM: {summary['cheat_alarms']} rollouts passed an impossible task; read their trajectories")
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
