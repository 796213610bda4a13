"""`composer eval`: how good a run's policies are on its held-out tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from composer_replication.cli.support.overrides import refuse_misspelt
from composer_replication.config import is_name, load_config
from composer_replication.observe import Terminal
from composer_replication.observe.console import Console, echo
from composer_replication.observe.verdict import paired_change
from composer_replication.types.errors import ConfigError

if TYPE_CHECKING:
    from composer_replication.trainer.stages.evaluation import PassAtK, PolicyScore


def evaluate(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The run file (TOML), with tasks.held_out or tasks.held_out_share.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A policy, as NAME=FOLDER, NAME=HUGGING_FACE_ID or, for one of the run's [[teachers]], NAME=teacher:ITS_NAME; "
            "repeat it for several. By default the run's start, the policies of `composer pretrain` and `composer sft`, and the "
            "newest checkpoint of each arm, as far as they are there."
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON, all else to stderr.")] = False,
) -> None:
    """Measure pass@1, pass@2, pass@4 and so on of policies on the held-out tasks of a run, each with its 95 % interval.

    It makes eval.samples rollouts of each task, with the run's budgets, tools, sandbox and engine; any field can be overridden,
    e.g. --eval.samples 16 --tasks.held_out other/tasks. The same command continues after an interruption. Rollouts, report.html
    and results.json are in OUT/NAME/eval. A teacher is asked over HTTP, at rollout.temperature and within
    loss.replay.max_total_usd.
    """
    refuse_misspelt(context, [str(run), *context.args])
    config = load_config(run, context.args)
    named = _named(policy or [])

    from composer_replication.api.evaluation import evaluate_run  # takes seconds to import: report errors first

    terminal = Terminal(Console(stderr=True) if json_output else None)
    scores = evaluate_run(config, policies=named or None, terminal=terminal)
    _show(terminal, scores)
    terminal.note(f"report: {config.out / config.name / 'eval' / 'report.html'}")
    if json_output:
        echo(json.dumps([score.to_json() for score in scores], allow_nan=False))


def _named(words: Sequence[str]) -> dict[str, str]:
    """Return policies by name. Raises ConfigError for a word that is none, or a name given twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not path or not is_name(name) or name in found:
            raise ConfigError(
                f"--policy {word}: not NAME=FOLDER, or the name is given twice", fix="write --policy tuned=path/to/model"
            )
        found[name] = str(Path(path).resolve()) if Path(path).is_dir() else path
    return found


def _show(terminal: Terminal, scores: Sequence[PolicyScore]) -> None:
    ks = [one.k for one in scores[0].pass_at]
    columns = ("policy", *(f"pass@{k} (95 %)" for k in ks), "tasks", "rollouts", "unscored", "alarms")
    cells = [
        (
            score.policy,
            *(_passed(one, score.tasks) for one in score.pass_at),
            score.tasks,
            score.rollouts,
            score.unscored,
            score.alarms,
        )
        for score in scores
    ]
    terminal.table("held-out tasks", columns, cells)
    first, *others = scores
    for score in others:
        change = paired_change(first.pass_rates, score.pass_rates)
        if change is not None:
            terminal.note(f"{score.policy} against {first.policy}, on {change.tasks} tasks: pass@1 {change}")


def _passed(one: PassAtK, tasks: int) -> str:
    if not math.isfinite(one.mean):
        return "n/a"
    interval = f" ({one.low:.3f} to {one.high:.3f})" if math.isfinite(one.low) else ""
    return f"{one.mean:.3f}{interval}" + (f" of {one.tasks} tasks" if one.tasks < tasks else "")
