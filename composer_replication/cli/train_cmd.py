"""`composer train`: run a run file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from composer_replication.config import RunConfig, field_lines, load_config, resolve_arm, to_toml
from composer_replication.observe.console import Console, echo
from composer_replication.types.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from composer_replication.trainer.pairs.pairs_file import FilePairs


def _show_fields(asked: bool) -> None:
    if asked:
        for line in field_lines():
            standard = "required" if line.required else f"default {line.default}" if line.default else "no default"
            echo(f"{line.key}  ({line.kind}; {standard})\n    {line.about}")
        raise typer.Exit


def train(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The run file (TOML).")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint; start a new run when there is none.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check run file, teachers, tasks, their solutions and the model; print the resolved run and the memory that it "
            "needs, and stop.",
        ),
    ] = False,
    fields: Annotated[  # noqa: ARG001  its callback has done the work
        bool, typer.Option("--fields", callback=_show_fields, is_eager=True, help="List every field of a run file and stop.")
    ] = False,
) -> None:
    """Train every arm of a run. Any field of the run file can be overridden, e.g. --loss.hint.weight 2.

    Paths are relative to the run file's folder, those on the command line too.
    """
    from composer_replication.api.training import train as train_run
    from composer_replication.recipes.substrates import check_substrate
    from composer_replication.trainer.learning.followers import is_follower, leave_process_group
    from composer_replication.trainer.open_run import check_run_dir

    _refuse_misspelt(context, [str(run), *context.args])
    config = load_config(run, context.args)
    if config.diloco.enabled:
        raise ConfigError("diloco.enabled = true: this run is one of replicas", fix=f"composer diloco run {run}")
    check_substrate(config)
    if dry_run and is_follower():
        return
    if dry_run:
        check_run_dir(config, resume=resume)
        _check(config)
        return
    train_run(config, resume=resume)
    leave_process_group()


def _refuse_misspelt(context: typer.Context, words: Sequence[str]) -> None:
    """Reject a word that nearly matches one of the command's own options: it is not an override. Raises ConfigError."""
    own = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
    for word in words:
        name = word.partition("=")[0]
        close = difflib.get_close_matches(name, own, n=1)
        if close and name.startswith("--") and name[2:].replace("-", "_") not in RunConfig.model_fields:
            raise ConfigError(f"there is no option {name}", fix=f"did you mean {close[0]}?")


def _check(config: RunConfig) -> None:
    """Check what can be checked without training, and print what the run will do."""
    from composer_replication.loss.forward.models import load_policy
    from composer_replication.rollouts.transformers_engine import TransformersEngine
    from composer_replication.tokens import ChatRenderer
    from composer_replication.trainer.pairs.pairs_file import file_pairs

    console = Console()
    console.print(to_toml(config), markup=False, highlight=False, soft_wrap=True)
    train, held = _check_tasks(config)
    model, tokenizer = load_policy(config.model)
    renderer = ChatRenderer(tokenizer)
    window = TransformersEngine(model, tokenizer).context_window
    console.print(f"policy: {model.num_parameters():,} parameters", soft_wrap=True, highlight=False)
    architecture = model.config
    del model  # a plan is measured where it was
    held_out = ", ".join(held) or "none, so pass@1 is not measured"
    console.print(f"tasks: {train} to train on; held out: {held_out}", soft_wrap=True, highlight=False)
    variants = {arm: resolve_arm(config, arm) for arm in config.arms}
    for arm, variant in variants.items():
        _say(console, arm, variant, train, file_pairs(variant, renderer, window))
    _plan(console, variants, architecture, window)
    console.print("no rollout was made")


def _plan(console: Console, variants: Mapping[str, RunConfig], architecture: PreTrainedConfig, window: int) -> None:
    """Print the memory that the arm with the most channels needs, and refuse it where that is more than there is."""
    from composer_replication.trainer.learning.followers import launched_processes
    from composer_replication.trainer.planning.plan import check_fit, make_plan, say_plan

    arm, config = max(variants.items(), key=lambda pair: (pair[1].loss.hint.weight > 0, pair[1].loss.rlvr.kl_beta > 0))
    if config.substrate.type != "local" or launched_processes() > 1:
        console.print("memory is planned for substrate.type = local alone, and by a process alone", soft_wrap=True)
        return
    plan = make_plan(config, architecture, window)
    console.print(say_plan(plan, arm))
    check_fit(plan, config)


def _check_tasks(config: RunConfig) -> tuple[int, list[str]]:
    """Prove the tasks, or open the run's own environment. Return the number to train on and the ids held out."""
    from composer_replication.sandbox import open_sandbox
    from composer_replication.trainer.preflight import check_run, check_source, prove_solutions
    from composer_replication.trainer.run_context import open_configured_source

    source = open_configured_source(config)
    if source is not None:
        check_source(config, source)
        return len(source.train), [task.spec.task_id for task in source.held_out]
    checked = check_run(config)
    prove_solutions(config, checked, open_sandbox(config.sandbox.kind))
    return len(checked.train), [task.spec.task_id for task in checked.held_out]


def _say(console: Console, arm: str, config: RunConfig, tasks: int, pairs: FilePairs | None) -> None:
    """Print one arm's channels and rollouts in a line."""
    from composer_replication.trainer.preflight import NO_SOURCE

    loss, teachers = config.loss, len(config.teachers)
    sources = [*([f"{teachers} teachers"] if teachers else []), *([str(pairs)] if pairs else [])]
    replay = "off (weight 0)" if loss.replay.weight == 0 else " and ".join(sources) or f"off ({NO_SOURCE})"
    hint = "off (weight 0)" if loss.hint.weight == 0 else "on"
    practice = config.steps * config.rollout.groups * config.rollout.group_size
    traces = tasks * loss.replay.traces_per_task if loss.replay.weight > 0 and teachers else 0
    console.print(
        f"arm {arm}: rlvr {loss.rlvr.objective}, hint {hint}, replay {replay}; {practice:,} training rollouts, {traces:,} traces",
        soft_wrap=True,
        highlight=False,
    )
