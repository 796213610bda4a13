"""`composer pretrain`, `composer sft` and `composer train`: run a run file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from composer_replication.cli.support.dry_run import after_stages, check, plan_along
from composer_replication.cli.support.options import ResumeOption
from composer_replication.cli.support.overrides import refuse_misspelt
from composer_replication.config import field_lines, load_config
from composer_replication.observe.console import echo
from composer_replication.types.errors import ConfigError, NothingLearntError


def _show_fields(asked: bool) -> None:
    if asked:
        for line in field_lines():
            standard = "required" if line.required else f"default {line.default}" if line.default else "no default"
            echo(f"{line.key}  ({line.kind}; {standard})\n    {line.about}")
        raise typer.Exit


def train(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The run file (TOML).")],
    resume: ResumeOption = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check run file, teachers, tasks, their solutions and the model; plan the memory, make two rollouts and an "
            "update, print what the run needs in memory, time, disk and dollars, and stop.",
        ),
    ] = False,
    fields: Annotated[  # noqa: ARG001  its callback has done the work
        bool, typer.Option("--fields", callback=_show_fields, is_eager=True, help="List every field of a run file and stop.")
    ] = False,
) -> None:
    """Train every arm of a run. Any field of the run file can be overridden, e.g. --loss.hint.weight 2.

    Paths are relative to the run file's folder, those on the command line too.
    """
    refuse_misspelt(context, [str(run), *context.args])
    config = load_config(run, context.args)
    if config.diloco.enabled:
        raise ConfigError("diloco.enabled = true: this run is one of replicas", fix=f"composer diloco run {run}")

    from composer_replication.api.training import train as train_run  # takes seconds to import: report errors first
    from composer_replication.recipes.substrates import check_substrate
    from composer_replication.trainer.learning.followers import is_follower, leave_process_group
    from composer_replication.trainer.learning.launcher import check_launcher
    from composer_replication.trainer.open_run import check_run_dir

    check_substrate(config)
    if dry_run:
        check_launcher(config)
        config = after_stages(config)
    if dry_run and is_follower():
        plan_along(config)
    elif dry_run:
        check_run_dir(config, resume=resume)
        check(config)
    else:
        _in_group(lambda: train_run(config, resume=resume))
    leave_process_group()


def _in_group(body: Callable[[], object]) -> None:
    """Do a run, and end this process's part in a group also where a strict run learnt nothing. After other errors the launcher
    ends the others, which may be waiting."""
    from composer_replication.trainer.learning.followers import leave_process_group

    try:
        body()
    except NothingLearntError:
        leave_process_group()
        raise


def pretrain(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The run file (TOML), with pretrain.enabled = true.")],
    resume: ResumeOption = False,
) -> None:
    """Train the model of a run on text before everything else. Any field of the run file can be overridden.

    Documents are read from folders, .jsonl files and the Hugging Face hub, as the section [pretrain] says: licensed ones, each
    once, and none that holds what a task of the run deletes. Held-out documents show what was learnt. The model is written to
    OUT/NAME/pretrain/ckpt/main, and `composer sft` and `composer train` with the same run file start from it.
    """
    refuse_misspelt(context, [str(run), *context.args])
    config = load_config(run, context.args)

    from composer_replication.api.training import pretrain as train_on  # takes seconds to import: report errors first
    from composer_replication.trainer.learning.followers import leave_process_group

    _in_group(lambda: train_on(config, resume=resume))
    leave_process_group()


def sft(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The run file (TOML), with sft.enabled = true.")],
    resume: ResumeOption = False,
) -> None:
    """Fine-tune the model of a run on demonstrations that pass their tests. Any field of the run file can be overridden.

    Demonstrations are the tasks' own solutions, the model's own tries that pass, and conversations of others, as the section
    [sft] says. The model is written to OUT/NAME/sft/ckpt/main, and `composer train` with the same run file starts from it.
    """
    refuse_misspelt(context, [str(run), *context.args])
    config = load_config(run, context.args)

    from composer_replication.api.training import sft as fine_tune  # takes seconds to import: report errors first
    from composer_replication.trainer.learning.followers import leave_process_group

    _in_group(lambda: fine_tune(config, resume=resume))
    leave_process_group()
