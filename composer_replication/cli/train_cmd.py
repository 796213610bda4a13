"""`composer train`: run a run file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from composer_replication.config import RunConfig, field_lines, load_config, to_toml
from composer_replication.observe import Terminal

__all__ = ["train"]


def _show_fields(asked: bool) -> None:
    if asked:
        for line in field_lines():
            standard = "required" if line.required else f"default {line.default}" if line.default else "no default"
            typer.echo(f"{line.key}  ({line.kind}; {standard})\n    {line.about}")
        raise typer.Exit


def train(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The run file (TOML).")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint; a new run is started when there is none.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check everything that can be checked without training, print the resolved run file and stop."
        ),
    ] = False,
    fields: Annotated[  # noqa: ARG001  its callback has done the work
        bool, typer.Option("--fields", callback=_show_fields, is_eager=True, help="List every field of a run file and stop.")
    ] = False,
) -> None:
    """Train every arm of a run. Any field of the run file can be overridden, e.g. --loss.hint.weight 2."""
    config = load_config(run, context.args)
    if dry_run:
        _check(config)
        return
    from composer_replication.trainer.loop import train as run_training
    from composer_replication.trainer.open_run import open_run

    run_dir = open_run(config, resume=resume)
    asyncio.run(run_training(config, run_dir, Terminal(on_event=run_dir.log_event)))


def _check(config: RunConfig) -> None:
    """Everything that can be checked without training."""
    from composer_replication.sandbox import open_sandbox
    from composer_replication.tokens import ChatRenderer
    from composer_replication.trainer.models import load_policy
    from composer_replication.trainer.preflight import check_run, prove_solutions

    console = Console()
    console.print(to_toml(config), markup=False, highlight=False, soft_wrap=True)
    checked = check_run(config)
    prove_solutions(config, checked, open_sandbox(config.sandbox.kind))
    model, tokenizer = load_policy(config.model)
    ChatRenderer(tokenizer)
    tasks = f"{len(checked.train)} to train on, {len(checked.held_out)} held out"
    rollouts = config.steps * config.rollout.groups * config.rollout.group_size
    console.print(
        f"policy: {model.num_parameters():,} parameters; tasks: {tasks}; "
        f"{len(config.arms)} arm(s) of {rollouts:,} rollouts each; no rollout was made",
        soft_wrap=True,
    )
