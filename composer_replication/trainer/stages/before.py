"""Stages before RL: each a run of its own below the run's folder, which starts from the last weights of the one before it."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.config import PretrainConfig, RunConfig, SftConfig, config_from
from composer_replication.loss.forward.adapters import ADAPTER_FILE
from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.loss.forward.models import write_merged
from composer_replication.observe.files import storage_errors
from composer_replication.trainer.open_run import decisive
from composer_replication.types.errors import ConfigError

ARM = "main"
_ALWAYS = ("model.", "optimizer.", "seed")
_WITHOUT = ("diloco", "curriculum", "teachers", "pretrain", "sft")
"""Sections that a stage has none of, but for its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierStage:
    """A stage before RL."""

    name: str
    """Of its section in the run file, its command and its folder."""
    what: str
    """As messages call it."""
    decides: tuple[str, ...]
    """Fields of the run file that decide what it writes, besides those of model and optimizer."""
    reshape: Callable[[dict[str, Any]], None]
    """Changes the other sections of the run, as plain data, into those of the stage."""

    def section(self, config: RunConfig) -> PretrainConfig | SftConfig:
        """Return the stage's own section of a run."""
        found: PretrainConfig | SftConfig = getattr(config, self.name)
        return found

    def run_of(self, config: RunConfig) -> RunConfig:
        """Return the run of the stage, `OUT/NAME/STAGE`: one arm, and cross-entropy alone.

        Raises:
            ConfigError: the run file does not ask for it.
        """
        section = self.section(config)
        if not section.enabled:
            raise ConfigError(f"{self.name}.enabled is false: this run has no {self.what}", fix=f"set {self.name}.enabled = true")
        data = config.model_dump(mode="json", exclude_none=True)
        own = data[self.name]
        for name in _WITHOUT:
            data.pop(name)
        rate = {"learning_rate": section.learning_rate, "schedule": "linear", "mini_batches": 1, "epochs": 1}
        data |= {
            **{"name": self.name, "out": str(config.out / config.name), "steps": section.steps, "arms": {ARM: {}}},
            **{"loss": {"rlvr": _importance(data), "hint": _hints(data, own), "replay": {"weight": 0.0}}},
            **{"optimizer": data["optimizer"] | rate, "substrate": {"shard": config.substrate.shard}, self.name: own},
            "reward": {} if config.reward.function is None else {"function": config.reward.function},
        }
        self.reshape(data)
        return config_from(data)

    def checkpoint_of(self, config: RunConfig) -> Path | None:
        """Return the newest checkpoint of the stage; None where there is none."""
        return latest_checkpoint(config.out / config.name / self.name / "ckpt" / ARM)


def started_from(config: RunConfig, stages: Iterable[EarlierStage]) -> RunConfig:
    """Return the run with `model.path` where the last of these stages that it has has written the policy; the run itself where it
    has none of them.

    Raises:
        ConfigError: a stage is not done, or was done with other settings.
    """
    for stage in stages:
        if stage.section(config).enabled:
            config = _started_from(config, stage)
    return config


def _started_from(config: RunConfig, stage: EarlierStage) -> RunConfig:
    run, found = stage.run_of(config), stage.checkpoint_of(config)
    folder, name = run.out / run.name, stage.name
    if found is None or found.name != f"step_{run.steps:05d}":
        raise ConfigError(
            f"{name}.enabled = true, and {folder} does not hold step {run.steps} of the {stage.what}",
            fix=f"run `composer {name}` with this run file first (--resume continues it), or set {name}.enabled = false",
        )
    decides = (f"{name}.", *stage.decides, *_ALWAYS)
    with storage_errors(folder / "config.toml", "read"):
        made = decisive(RunConfig.model_validate(tomllib.loads((folder / "config.toml").read_text("utf-8"))), *decides)
    changed = _changed(made, decisive(run, *decides))
    if changed:
        raise ConfigError(
            f"{folder} was made with other settings: {changed}",
            fix=f"run `composer {name}` again under another name, or set these fields back",
        )
    return config.model_copy(update={"model": config.model.model_copy(update={"path": str(_whole(found, stage))})})


def _changed(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    keys = sorted(key for key in made.keys() | wanted.keys() if made.get(key) != wanted.get(key))
    return "; ".join(f"{key}: {made.get(key)!r} -> {wanted.get(key)!r}" for key in keys)


def _importance(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data["loss"]["rlvr"].items() if name.startswith("importance")}


def _hints(data: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a hint channel that is off, with what finds and writes hints where the stage's own section asks for re-attempts. The
    stage has no teachers, who could write some."""
    if not own.get("reattempts"):
        return {"weight": 0.0}
    generators = [name for name in data["loss"]["hint"]["generators"] if name not in ("judge", "consensus")]
    return {"weight": 0.0, "detectors": data["loss"]["hint"]["detectors"], "generators": generators}


def _whole(checkpoint: Path, stage: EarlierStage) -> Path:
    """Return the folder of a whole model: the checkpoint's own, or that which `write_whole` has made of it. Raises ConfigError
    where it has not."""
    if not (checkpoint / ADAPTER_FILE).is_file():
        return checkpoint
    merged = checkpoint.parents[2] / "model"
    if not (merged / "config.json").is_file():
        raise ConfigError(f"{merged} does not hold the trained model", fix=f"`composer {stage.name} --resume` with this run file")
    return merged


def write_whole(config: RunConfig) -> None:
    """Add the LoRA adapters that a stage has trained, if it has, to their model, so that what follows can train others on top.

    The sum is written in float32. RL keeps a model below adapters in the type of `model.precision`: with bfloat16 it rounds away
    a part of what small adapters have learned, which RL's evaluation of its start shows.

    Args:
        config: the run of the stage.

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
