"""`composer sft`: fine-tune on demonstrations before RL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer_replication.cli.support.overrides import refuse_misspelt
from composer_replication.config import load_config


def sft(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The run file (TOML), with sft.enabled = true.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint; start anew when there is none.")
    ] = False,
) -> None:
    """Fine-tune the model of a run on demonstrations that pass their tests. Any field of the run file can be overridden.

    Demonstrations are the tasks' own solutions, the model's own tries that pass, and conversations of others, as the section
    [sft] says. The model is written to OUT/NAME/sft/ckpt/main, and `composer train` with the same run file starts from it.
    """
    refuse_misspelt(context, [str(run), *context.args])
    config = load_config(run, context.args)

    from composer_replication.api.training import sft as fine_tune  # takes seconds to import: report errors first
    from composer_replication.trainer.learning.followers import leave_process_group

    fine_tune(config, resume=resume)
    leave_process_group()
