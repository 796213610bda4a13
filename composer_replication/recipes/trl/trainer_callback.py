"""A callback that keeps the self-teacher, TAID's clock and the step's metrics in step with the policy that TRL trains."""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch
from transformers import TrainerCallback

from composer_replication.distillation import SelfTeacher, TAIDScheduler
from composer_replication.loss import LossComponents
from composer_replication.loss.metrics import merge_metrics
from composer_replication.types.errors import CheckpointError

_STATE_FILE = "composer.pt"


def state_path(checkpoint: str) -> str:
    """Return the path of the self-teacher's state in a checkpoint of TRL's. Raises CheckpointError when there is none."""
    path = os.path.join(checkpoint, _STATE_FILE)
    if not os.path.isfile(path):
        raise CheckpointError(f"{path} is missing: the self-teacher cannot go on", fix="resume from another checkpoint")
    return path


class _TrainerState(Protocol):
    """The part of a `ComposerReplicationTrainer` that the callback reads and writes."""

    accelerator: Any
    model: Any
    parts: list[LossComponents]
    channel_metrics: dict[str, float]
    off: dict[str, str]
    resumed_from: str | None
    self_teacher: SelfTeacher | None
    taid: TAIDScheduler | None

    def state_of_teachers(self) -> dict[str, Any]: ...


class TeacherCallback(TrainerCallback):
    """A callback that updates the self-teacher and TAID's clock after every step, and keeps both in TRL's checkpoints."""

    def __init__(self, trainer: _TrainerState) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the callback's signature
        trainer, parts = self.trainer, self.trainer.parts
        trainer.channel_metrics = merge_metrics([part.metrics for part in parts])
        trainer.off = {
            channel: why
            for channel, why in (parts[0].off.items() if parts else ())
            if channel != "rlvr" and all(channel in part.off for part in parts)
        }
        if trainer.self_teacher is not None:
            trainer.self_teacher.update(trainer.accelerator.unwrap_model(trainer.model))
        if trainer.taid is not None:
            trainer.channel_metrics["hint/taid_t"] = trainer.taid.t
            own = torch.tensor(trainer.channel_metrics.get("hint/loss", 0.0), device=args.device)
            whole = trainer.accelerator.reduce(own, reduction="sum")  # one clock for all processes
            trainer.taid.update_t(float(whole), global_step=state.global_step)
        parts.clear()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        found = self.trainer.state_of_teachers()
        if found and state.is_world_process_zero:
            torch.save(found, os.path.join(args.output_dir, f"checkpoint-{state.global_step}", _STATE_FILE))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        wanted = self.trainer.state_of_teachers()
        if self.trainer.resumed_from is None or not wanted:
            return
        found = torch.load(state_path(self.trainer.resumed_from), map_location=args.device, weights_only=True)
        for name, owner in (("self_teacher", self.trainer.self_teacher), ("taid", self.trainer.taid)):
            if name in wanted and owner is not None:
                owner.load_state_dict(found[name])
