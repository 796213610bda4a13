"""The stage before RL: a run of its own below the run's folder, whose last weights RL starts from."""

from __future__ import annotations

import shutil
import tomllib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from composer_replication.config import RunConfig, config_from
from composer_replication.loss.forward import LogprobCache
from composer_replication.loss.forward.adapters import ADAPTER_FILE
from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.loss.forward.models import write_merged
from composer_replication.observe import Phase
from composer_replication.observe.files import storage_errors
from composer_replication.observe.summary import SummaryRow
from composer_replication.rollouts.protocol import Budgets
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.open_run import decisive
from composer_replication.trainer.run_context import RunContext
from composer_replication.trainer.sampling.kept_rollouts import folder_of
from composer_replication.trainer.stages.demonstrations import DemonstrationSources
from composer_replication.trainer.stages.imitation import learn_from_demonstrations
from composer_replication.trainer.train import train_arm
from composer_replication.types.errors import ConfigError

STAGE = "sft"
ARM = "main"
_DECIDES = ("model.", "sft.", "tasks.", "env.", "reward.", "optimizer.", "seed")
"""Fields of the run file that decide what the stage writes."""


def sft_config(config: RunConfig) -> RunConfig:
    """Return the run of the stage: `out/NAME/sft`, with one arm and cross-entropy alone.

    Raises:
        ConfigError: the run file does not ask for it.
    """
    if not config.sft.enabled:
        raise ConfigError("sft.enabled is false: this run has no fine-tuning before RL", fix="set sft.enabled = true")
    data = config.model_dump(mode="json", exclude_none=True)
    importance = {name: value for name, value in data["loss"]["rlvr"].items() if name.startswith("importance")}
    for section in ("diloco", "curriculum", "teachers"):
        data.pop(section)
    if config.rollout.server_urls:
        data["rollout"]["server_url"] = config.rollout.server_urls[0]
    rate = {"learning_rate": config.sft.learning_rate, "schedule": "linear", "mini_batches": 1, "epochs": 1}
    data |= {
        **{"name": STAGE, "out": str(config.out / config.name), "steps": config.sft.steps, "arms": {ARM: {}}},
        **{"loss": {"rlvr": importance, "hint": {"weight": 0.0}, "replay": {"weight": 0.0}}},
        **{"optimizer": data["optimizer"] | rate, "substrate": {"shard": config.substrate.shard}},
        "reward": {} if config.reward.function is None else {"function": config.reward.function},
    }
    return config_from(data)


def checkpoint_of(config: RunConfig) -> Path | None:
    """Return the newest checkpoint of the stage; None where there is none."""
    return latest_checkpoint(config.out / config.name / STAGE / "ckpt" / ARM)


def started_from_sft(config: RunConfig) -> RunConfig:
    """Return the run with `model.path` where the stage before it has written the policy; the run itself where it has none.

    Raises:
        ConfigError: the stage is not done, or was done with other settings.
    """
    if not config.sft.enabled:
        return config
    stage, found = sft_config(config), checkpoint_of(config)
    folder = stage.out / stage.name
    if found is None or found.name != f"step_{stage.steps:05d}":
        raise ConfigError(
            f"sft.enabled = true, and {folder} does not hold step {stage.steps} of the fine-tuning before RL",
            fix="run `composer sft` with this run file first (--resume continues it), or set sft.enabled = false",
        )
    with storage_errors(folder / "config.toml", "read"):
        made = decisive(RunConfig.model_validate(tomllib.loads((folder / "config.toml").read_text("utf-8"))), *_DECIDES)
    wanted = decisive(stage, *_DECIDES)
    changed = sorted(key for key in made.keys() | wanted.keys() if made.get(key) != wanted.get(key))
    if changed:
        listed = "; ".join(f"{key}: {made.get(key)!r} -> {wanted.get(key)!r}" for key in changed)
        raise ConfigError(
            f"{folder} was fine-tuned with other settings: {listed}",
            fix="run `composer sft` again under another name, or set these fields back",
        )
    return config.model_copy(update={"model": config.model.model_copy(update={"path": str(_whole(found))})})


def _whole(checkpoint: Path) -> Path:
    """Return the folder of a whole model: the checkpoint's own, or that which `write_whole` has made of it. Raises ConfigError
    where it has not."""
    if not (checkpoint / ADAPTER_FILE).is_file():
        return checkpoint
    merged = checkpoint.parents[2] / "model"
    if not (merged / "config.json").is_file():
        raise ConfigError(f"{merged} does not hold the fine-tuned model", fix="`composer sft --resume` with this run file")
    return merged


def write_whole(config: RunConfig) -> None:
    """Add the LoRA adapters that the stage has trained, if it has, to their model, so that RL can train others on top of it.

    The sum is written in float32. RL keeps a model below adapters in the type of `model.precision`: with bfloat16 it rounds away
    a part of what small adapters have learned, which RL's evaluation of its start shows.

    Raises:
        StorageError: the disk refuses.
    """
    folder = config.out / config.name
    found = latest_checkpoint(folder / "ckpt" / ARM)
    if found is None or not (found / ADAPTER_FILE).is_file():
        return
    partial = folder / ".model.partial"
    with storage_errors(partial):
        shutil.rmtree(partial, ignore_errors=True)
        write_merged(found, partial, "float32")
        shutil.rmtree(folder / "model", ignore_errors=True)
        partial.rename(folder / "model")


async def train_imitation(context: RunContext, config: RunConfig, arm: str, shown: Phase) -> SummaryRow:
    """Fine-tune the arm of the stage (`trainer.report.TrainArm`).

    Raises:
        ConfigError: there is nothing to learn from (`DemonstrationSources`). Nothing is recorded then, so that the run can be
            started again with other settings.
        ComposerError: as `ArmTrainer.create`.
    """
    tasks = [task for task in context.train if not task.spec.impossible]
    held_out = {task.spec.task_id for task in context.held_out}
    made_of = decisive(config, "sft.", "model.", "tasks.", "env.", "reward.", "rollout.", "sandbox.", "seed")
    with closing(LogprobCache()) as unused, closing(ArmTrainer.create(context, config, arm, unused)) as trainer:
        renderer, window = trainer.renderer, trainer.collector.context_window
        budgets = replace(Budgets.of(config.rollout), context_tokens=min(config.rollout.context_tokens, window))
        sources = DemonstrationSources(config.sft, renderer, tasks, held_out, budgets)
        sources.check()
        folder = folder_of(context.run_dir.path / "demonstrations", arm, {**made_of, **trainer.fingerprint})
        await learn_from_demonstrations(trainer).gather(sources, folder)
        row = await train_arm(trainer, shown)
    trainer.learner.dismiss()
    return row
