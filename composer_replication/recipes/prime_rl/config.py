"""PRIME-RL's configuration, made from our run file.

Options that change how fast a run goes and not its result (`rollout.cohorts`, `optimizer.micro_batch_tokens`, ...) are left to
PRIME-RL.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tomli_w

from composer_replication.config import RunConfig, resolve_arm, to_toml
from composer_replication.config.section import flat
from composer_replication.observe.files import replace_file
from composer_replication.recipes.limits import refuse
from composer_replication.recipes.prime_rl.settings import FROZEN_URL, RUN_FILE
from composer_replication.types.errors import ConfigError

LOSS_FN = "composer_replication.recipes.prime_rl.composer_loss.loss_fn"
_OURS = tuple(
    table + name
    for table, names in {
        "": "bench clean_output_dir ckpt dry_run file_monitor max_steps model output_dir seq_len slurm tokenizer",
        "inference.": "dry_run enable_lora model.name output_dir slurm vllm_extra.max_model_len vllm_extra.seed",
        "orchestrator.": (
            "algo batch_size bench ckpt eval file_monitor group_size max_steps model optim output_dir "
            "post_batch_filters pre_batch_filters renderer seq_len token_batch_size tokenizer train"
        ),
        "trainer.": (
            "bench ckpt data file_monitor loss max_concurrent_runs max_steps model.lora model.name model.seq_len "
            "optim output_dir scheduler tokenizer"
        ),
    }.items()
    for name in names.split()
)
"""Settings that the channels, resuming or the import of metrics depend on, in addition to all that follow from the run file."""
_FREE = (
    "ckpt.keep_interval",
    "ckpt.keep_last",
    "deployment",
    "env_vars",
    "orchestrator.env_vars",
    "orchestrator.model.client",
)
"""Of these, or of what holds them, those that are free after all."""
_NEVER = (f"env_vars.{RUN_FILE}", f"orchestrator.env_vars.{RUN_FILE}")
"""How the processes find the run file."""


def check(config: RunConfig) -> None:
    """Raise ConfigError when an arm asks for what PRIME-RL cannot do, or sets an option that is not free."""
    refuse(config, "prime_rl")
    made = _made(config, Path("nowhere"), gpus=2)
    for key in config.substrate.options:
        if _is_ours(key, made):
            raise ConfigError(
                f"substrate.type = prime_rl: substrate.options.{key} follows from the run file, or the channels rest on it",
                fix="leave it out, and set what it follows from; docs/prime_rl.md says what is free",
            )


def _is_ours(key: str, made: dict[str, Any]) -> bool:
    """Return whether a dotted name, a table that holds it, or a name below it is refused; `made` follows from the run file."""
    if any(_meet(key, one) for one in _NEVER):
        return True
    if any(_within(key, one) for one in _FREE):
        return False
    return any(_meet(key, one) for one in (*_OURS, *flat(made)))


def _within(key: str, table: str) -> bool:
    return f"{key}.".startswith(f"{table}.")


def _meet(key: str, other: str) -> bool:
    return _within(key, other) or _within(other, key)


def write_configs(config: RunConfig, out: Path, *, gpus: int = 2, resume: bool = False) -> list[Path]:
    """Write one `rl.toml` per arm, with the arm's run file next to it.

    They are in `out`, or in a folder named after each arm where there are several.
    `composer_replication.recipes.prime_rl.launcher rl @ rl.toml` runs one.

    Args:
        gpus: GPUs of the machine: half of them train, the others sample; PRIME-RL needs two.
        resume: an arm that has checkpoints in its folder continues from the last.

    Raises:
        ConfigError: an arm asks for what PRIME-RL cannot do, or its own loader, where it can be imported, refuses the file.
        StorageError: a file cannot be written.
    """
    written: list[Path] = []
    for arm in config.arms:
        variant = resolve_arm(config, arm)
        check(variant)
        folder = (out / arm if len(config.arms) > 1 else out).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        run_file, toml = folder / "run.toml", folder / "rl.toml"
        replace_file(run_file, to_toml(_alone(variant)).encode())
        made = prime_rl_config(variant, folder, gpus=gpus)
        if resume and any(Path(made["output_dir"], "checkpoints").glob("step_*")):
            made["ckpt"] |= {"resume_step": -1}
        replace_file(toml, tomli_w.dumps(made).encode())
        validate(toml)
        written.append(toml)
    return written


def validate(toml: Path) -> bool:
    """Read a file with PRIME-RL's own loader; False where that cannot be imported. Raises ConfigError when it is refused."""
    try:
        from prime_rl.configs.rl import RLConfig
        from prime_rl.utils.config import cli
        from pydantic_config.cli import ConfigFileError
    except ModuleNotFoundError:
        return False
    try:
        cli(RLConfig, args=["@", str(toml)])
    except ConfigFileError as error:
        said = " ".join(str(error).split())
        raise ConfigError(
            f"{toml}: PRIME-RL refuses it: {said}", fix="correct substrate.options, or the field it names"
        ) from error
    return True


def prime_rl_config(config: RunConfig, folder: Path, *, gpus: int = 2) -> dict[str, Any]:
    """Return the content of `rl.toml` for one arm whose run file is `folder/run.toml`; `substrate.options` are applied last."""
    made = _made(config, folder, gpus=gpus)
    for key, value in config.substrate.options.items():
        *tables, last = key.split(".")
        table = made
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(
                    f"substrate.options: {key}: {name!r} is no table", fix="name a field of PRIME-RL's configuration"
                )
        table[last] = value
    return made


def _made(config: RunConfig, folder: Path, *, gpus: int) -> dict[str, Any]:
    """Return the settings that follow from the run file."""
    return {
        "output_dir": str(folder / "outputs"),
        "max_steps": config.steps,
        "seq_len": config.rollout.context_tokens,
        "model": {"name": config.model.path},
        "ckpt": {"interval": config.checkpoint_every, "keep_last": 2},
        "file_monitor": {},
        "deployment": {"gpus_per_node": gpus, "num_train_gpus": gpus // 2, "num_infer_gpus": gpus - gpus // 2},
        "trainer": _trainer(config),
        "orchestrator": _orchestrator(config, folder / "run.toml"),
        "inference": {"seed": config.seed % (1 << 31), "model": {"max_model_len": config.rollout.context_tokens}},
    }


def _trainer(config: RunConfig) -> dict[str, Any]:
    rlvr, optimizer = config.loss.rlvr, config.optimizer
    kwargs = {"objective": rlvr.objective, **rlvr.model_dump(mode="json", exclude_defaults=True)}
    return {
        "loss": {"type": "custom", "import_path": LOSS_FN, "kwargs": kwargs},
        "optim": {
            "type": "adamw",
            "lr": optimizer.learning_rate,
            "weight_decay": optimizer.weight_decay,
            "max_norm": optimizer.max_grad_norm,
            "betas1": optimizer.betas[0],
            "betas2": optimizer.betas[1],
        },
        "scheduler": _scheduler(config),
    }


def _scheduler(config: RunConfig) -> dict[str, Any]:
    warmup = config.optimizer.warmup_steps
    decay = config.steps - warmup if config.optimizer.schedule == "linear" else 0
    if warmup == 0 and decay <= 0:
        return {"type": "constant"}
    return {"type": "linear", "warmup_steps": warmup, "decay_steps": max(0, decay), "min_lr": 0.0}


def _orchestrator(config: RunConfig, run_file: Path) -> dict[str, Any]:
    rollout, loss, url = config.rollout, config.loss, os.environ.get(FROZEN_URL)
    pairs = loss.replay.pairs_per_step if _replays(config) else 0
    made: dict[str, Any] = {
        "batch_size": rollout.groups * rollout.group_size + pairs,
        "group_size": 1,  # each source has its own: a pair has no siblings
        "renderer": _renderer(config),
        # a rollout whose advantages are all 0 counts among the tokens divided by, and may have hints; only refills drop it
        "pre_batch_filters": [{"type": "zero_advantage", "enforce": rollout.refills > 0}],
        "post_batch_filters": [{"type": "zero_advantage", "enforce": False}],
        "env_vars": {RUN_FILE: str(run_file)} | ({FROZEN_URL: url} if url else {}),
        "algo": {"type": "grpo"},
        "train": {
            "sampling": {"temperature": rollout.temperature, "max_completion_tokens": rollout.turn_tokens},
            "source": [
                {
                    "name": "tasks",
                    "ratio": float(rollout.groups),
                    "group_size": rollout.group_size,
                    "env": _coding_env(config, config.tasks.folder, run_file),
                }
            ],
        },
    }
    if pairs:
        source = {
            "name": "replay",
            "ratio": float(pairs),
            "group_size": 1,
            "sampling": {"temperature": 1.0},  # pairs are scored without one
            "env": {"taskset": {"id": "composer_replay", "run": str(run_file)}, "agent": {"runtime": {"type": "subprocess"}}},
        }
        made["train"]["source"].append(source)
    if config.tasks.held_out is not None:
        made["eval"] = {
            "interval": config.eval.every,
            "group_size": config.eval.samples,
            "sampling": {"temperature": rollout.temperature, "max_completion_tokens": rollout.turn_tokens},
            "source": [{"name": "held_out", "env": _coding_env(config, config.tasks.held_out, run_file)}],
        }
    return made


def _coding_env(config: RunConfig, tasks: Path, run_file: Path) -> dict[str, Any]:
    """Return the environment of a task folder. The agent's calls are carried out in our sandbox, and never in the runtime."""
    rollout = config.rollout
    grading: dict[str, Any] = {"sandbox": config.sandbox.kind}
    if config.tasks.python is not None:
        grading["python"] = str(config.tasks.python)
    return {
        "taskset": {"id": "composer_tasks", "tasks": str(tasks), "task": grading},
        "agent": {
            "harness": {"id": "composer_agent", "run": str(run_file)},
            "runtime": {"type": "subprocess"},
            "max_turns": rollout.max_turns,
            "max_output_tokens": rollout.trajectory_tokens,
            "max_total_tokens": rollout.context_tokens,
        },
    }


def _renderer(config: RunConfig) -> dict[str, str]:
    """Return PRIME-RL's renderer for models that it knows, else the chat template with Hermes markup for calls."""
    try:
        from renderers.base import MODEL_RENDERER_MAP
    except ModuleNotFoundError:
        known = not Path(config.model.path).is_dir()
    else:
        known = config.model.path in MODEL_RENDERER_MAP
    return {"name": "auto"} if known else {"name": "default", "tool_parser": "qwen3"}


def _replays(config: RunConfig) -> bool:
    return config.loss.replay.weight > 0 and config.loss.replay.pairs is not None


def _alone(config: RunConfig) -> RunConfig:
    """Return the run of one arm as a separate run; a replay channel without pairs is off."""
    replay = config.loss.replay
    weight = replay.weight if _replays(config) else 0.0
    loss = config.loss.model_copy(update={"replay": replay.model_copy(update={"weight": weight})})
    return config.model_copy(update={"loss": loss, "arms": {"main": {}}})
