"""What `composer train --dry-run` checks and prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from composer_replication.config import RunConfig, resolve_arm, to_toml
from composer_replication.observe import Terminal
from composer_replication.observe.console import Console, echo

if TYPE_CHECKING:
    from composer_replication.envs.source import AnyTask, EnvSource
    from composer_replication.trainer.pairs.pairs_file import FilePairs


_SHARED = (
    "memory was not planned: substrate.shard = true shares the weights out among processes, so let the launcher of the run start "
    "them here too: torchrun --nproc-per-node N --no-python composer train FILE --dry-run"
)


def after_stages(config: RunConfig) -> RunConfig:
    """Return the run as it starts after `composer pretrain` and `composer sft`; as it is, with a warning, where one of them has
    not been run. Raises ConfigError as `started_from`."""
    from composer_replication.trainer.stages.before import started_from
    from composer_replication.trainer.stages.order import BEFORE_RL

    for stage in BEFORE_RL:
        if stage.section(config).enabled and stage.checkpoint_of(config) is None:
            echo(
                f"warning: {stage.name}.enabled = true and `composer {stage.name}` has not been run: this plans model.path, "
                "which RL will not start from"
            )
            return config
    return started_from(config, BEFORE_RL)


def check(config: RunConfig) -> None:
    """Check what can be checked without training, and print what the run will do and needs.

    Raises ComposerError where something is wrong or does not fit.
    """
    from composer_replication.loss.forward.models import load_outline, window_of
    from composer_replication.tokens import ChatRenderer
    from composer_replication.trainer.learning.followers import launched_processes
    from composer_replication.trainer.pairs.pairs_file import file_pairs
    from composer_replication.trainer.planning.fit import check_fit
    from composer_replication.trainer.planning.forecast import check_forecast, make_forecast, say_forecast
    from composer_replication.trainer.planning.plan import make_plan, rollouts_at_once, say_plan
    from composer_replication.trainer.planning.prompts import check_prompts, prompt_lengths
    from composer_replication.trainer.planning.trial import try_run
    from composer_replication.trainer.waiting import wait_for

    console = Console()
    console.print(to_toml(config), markup=False, highlight=False, soft_wrap=True)
    tasks, held_out, source = _check_tasks(config)
    train, held = len(tasks), [task.spec.task_id for task in held_out]
    architecture, parameters, tokenizer = load_outline(config.model.path)
    renderer, window = ChatRenderer(tokenizer), window_of(architecture)
    console.print(f"policy: {parameters:,} parameters", soft_wrap=True, highlight=False)
    named = ", ".join(held) or "none, so pass@1 is not measured"
    console.print(f"tasks: {train} to train on; held out: {named}", soft_wrap=True, highlight=False)
    prompts = prompt_lengths((*tasks, *held_out), config, renderer)
    if prompts:
        console.print(f"prompts: {min(prompts.values()):,} to {max(prompts.values()):,} tokens", soft_wrap=True, highlight=False)
    variants = {arm: resolve_arm(config, arm) for arm in config.arms}
    for arm, variant in variants.items():
        check_prompts(prompts, variant, window)
        _say(console, arm, variant, train, file_pairs(variant, renderer, window))
    if config.substrate.type != "local":
        console.print("memory and time are planned for substrate.type = local alone", soft_wrap=True)
        return
    if config.substrate.shard and launched_processes() == 1:
        console.print(_SHARED, soft_wrap=True, highlight=False)
        return
    arm, variant = _planned(variants)
    rollouts = rollouts_at_once(variant, tasks=train, held_out=len(held))
    plan = make_plan(variant, architecture, window, rollouts)
    console.print(say_plan(plan, arm))
    check_fit(plan, variant)
    if not _is_tried(variant):
        console.print("no rollout was made: the server may hold the weights of another run", soft_wrap=True)
        return
    trial = wait_for(try_run(variant, arm, Terminal(console), source))
    forecast = make_forecast(trial, variant, arm, tasks=train, held_out=len(held), arms=len(variants))
    console.print(say_forecast(forecast))
    warning = check_forecast(forecast, variant)
    if warning is not None:
        console.print(f"warning: {warning}", soft_wrap=True, highlight=False)


def plan_along(config: RunConfig) -> None:
    """Take part in the plan of memory and in the trial that the first of several processes makes. Raises as `check`."""
    from composer_replication.loss.forward.models import load_architecture, window_of
    from composer_replication.trainer.planning.plan import make_plan
    from composer_replication.trainer.report import follow_arm

    if config.substrate.type == "local":
        architecture = load_architecture(config.model.path)
        _, variant = _planned({arm: resolve_arm(config, arm) for arm in config.arms})
        make_plan(variant, architecture, window_of(architecture), 0)  # what it finds is not shown
        if _is_tried(variant):
            follow_arm(variant)


def _is_tried(config: RunConfig) -> bool:
    """Return whether rollouts of an arm are made: not on servers that somebody else has started."""
    return not config.rollout.server_urls


def _planned(variants: Mapping[str, RunConfig]) -> tuple[str, RunConfig]:
    """Return the arm that is planned, the one with most channels."""
    return max(variants.items(), key=lambda pair: _channels(pair[1]))


def _channels(config: RunConfig) -> tuple[bool, ...]:
    """Return what an arm does besides the policy gradient: the arm with the most of it is tried."""
    loss = config.loss
    return loss.hint.weight > 0, loss.rlvr.kl_beta > 0, loss.replay.weight > 0 and bool(config.teachers)


def _check_tasks(config: RunConfig) -> tuple[Sequence[AnyTask], Sequence[AnyTask], EnvSource | None]:
    """Prove the tasks, or open the run's own environment, and return the tasks to train on, those held out, and that
    environment."""
    from composer_replication.sandbox import open_sandbox
    from composer_replication.trainer.preflight import check_run, check_source, prove_solutions
    from composer_replication.trainer.run_context import open_configured_source

    source = open_configured_source(config)
    if source is not None:
        check_source(config, source)
        return source.train, source.held_out, source
    checked = prove_solutions(config, check_run(config), open_sandbox(config.sandbox.kind))
    return checked.train, checked.held_out, None


def _say(console: Console, arm: str, config: RunConfig, tasks: int, pairs: FilePairs | None) -> None:
    """Print one arm's channels and rollouts in a line."""
    from composer_replication.trainer.preflight import NO_SOURCE

    loss, teachers = config.loss, len(config.teachers)
    again = [f"{loss.replay.reattempts} re-attempts a step"] if loss.replay.reattempts else []
    sources = [*([f"{teachers} teachers"] if teachers else []), *([str(pairs)] if pairs else []), *again]
    replay = "off (weight 0)" if loss.replay.weight == 0 else " and ".join(sources) or f"off ({NO_SOURCE})"
    hint = "off (weight 0)" if loss.hint.weight == 0 else "on"
    practice = config.steps * config.rollout.groups * config.rollout.group_size
    traces = tasks * loss.replay.traces_per_task if loss.replay.weight > 0 and teachers else 0
    console.print(
        f"arm {arm}: rlvr {loss.rlvr.objective}, hint {hint}, replay {replay}; {practice:,} training rollouts, {traces:,} traces",
        soft_wrap=True,
        highlight=False,
    )
