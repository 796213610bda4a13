"""`composer quickstart`: the whole recipe, small, on any machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer_replication.cli.support.options import SandboxOption


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    name: Annotated[str, typer.Option(help="Name of the run.")] = "quickstart",
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the warm start and of the run.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps of each arm; by default the standard number.")] = None,
    sandbox: SandboxOption = "auto",
) -> None:
    """Build tasks, warm-start a tiny policy, then train it twice: with GRPO alone and with all three channels.

    Needs no GPU, no key and no download. Run again after an interruption, it continues where it stopped.
    """
    from composer_replication.quickstart.run import ARM_STEPS, run_quickstart

    run_quickstart(out / name, seed=seed, steps=steps or ARM_STEPS, sandbox=sandbox)
