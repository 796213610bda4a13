"""The stage before RL: a run of its own below the run's folder, whose last weights RL starts from."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from composer_replication.config import LossConfig, ModelConfig, OptimizerConfig, RunConfig, SubstrateConfig
from composer_replication.loss.forward import LogprobCache
from composer_replication.loss.forward.adapters import ADAPTER_FILE
from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.loss.forward.models import load_policy, save_policy, weights_dtype
from composer_replication.observe import Phase
from composer_replication.observe.files import storage_errors
from composer_replication.observe.summary import SummaryRow
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.run_context import RunContext
from composer_replication.trainer.stages.imitation import learn_from_demonstrations
from composer_replication.trainer.train import train_arm
from composer_replication.types.errors import ConfigError

STAGE = "sft"
ARM = "main"


def sft_config(config: RunConfig) -> RunConfig:
    """Return the run of the stage: `out/NAME/sft`, with one arm and cross-entropy alone.

    Raises:
        ConfigError: the run file does not ask for it.
    """
    if not config.sft.enabled:
        raise ConfigError("sft.enabled is false: this run has no fine-tuning before RL", fix="set sft.enabled = true")
    off = {"weight": 0.0}
    loss = LossConfig.model_validate({"hint": off, "replay": off})
    once = {"mini_batches": 1, "epochs": 1, "learning_rate": config.sft.learning_rate, "schedule": "linear"}
    update = {
        **{"name": STAGE, "out": config.out / config.name, "steps": config.sft.steps, "loss": loss, "teachers": ()},
        **{"optimizer": OptimizerConfig.model_validate({**config.optimizer.model_dump(), **once}), "arms": {ARM: {}}},
        "substrate": SubstrateConfig(shard=config.substrate.shard),
    }
    return config.model_copy(update=update)


def started_from_sft(config: RunConfig) -> RunConfig:
    """Return the run with `model.path` where the stage before it has written the policy; the run itself where it has none.

    Raises:
        ConfigError: the stage is not done.
    """
    if not config.sft.enabled:
        return config
    folder = config.out / config.name / STAGE / "ckpt" / ARM
    found = latest_checkpoint(folder)
    done = found is not None and found.name == f"step_{config.sft.steps:05d}"
    if found is None or not done:
        raise ConfigError(
            f"sft.enabled = true, and {folder} does not hold step {config.sft.steps} of the fine-tuning before RL",
            fix="run `composer sft` with this run file first (--resume continues it), or set sft.enabled = false",
        )
    return config.model_copy(update={"model": config.model.model_copy(update={"path": str(_whole(found))})})


def _whole(checkpoint: Path) -> Path:
    """Return the folder of a whole model: the checkpoint's own, or that which `write_whole` has made of it."""
    if not (checkpoint / ADAPTER_FILE).is_file():
        return checkpoint
    merged = checkpoint.parents[2] / "model"
    if not (merged / "config.json").is_file():
        raise ConfigError(f"{merged} does not hold the fine-tuned model", fix="`composer sft --resume` with this run file")
    return merged


def write_whole(config: RunConfig) -> None:
    """Add the LoRA adapters that the stage has trained, if it has, to their model, so that RL can train others on top of it.

    Raises:
        StorageError: the disk refuses.
    """
    folder = config.out / config.name
    found = latest_checkpoint(folder / "ckpt" / ARM)
    if found is None or not (found / ADAPTER_FILE).is_file():
        return
    model, tokenizer = load_policy(ModelConfig(path=str(found), device="cpu"))
    partial = folder / ".model.partial"
    with storage_errors(partial):
        shutil.rmtree(partial, ignore_errors=True)
        save_policy(model, tokenizer, partial, dtype=weights_dtype(config.model))
        shutil.rmtree(folder / "model", ignore_errors=True)
        partial.rename(folder / "model")


async def train_imitation(context: RunContext, config: RunConfig, arm: str, shown: Phase) -> SummaryRow:
    """Fine-tune the arm of the stage (`trainer.report.TrainArm`)."""
    with closing(LogprobCache()) as unused, closing(ArmTrainer.create(context, config, arm, unused)) as trainer:
        learn_from_demonstrations(trainer)
        row = await train_arm(trainer, shown)
    trainer.learner.dismiss()
    return row
