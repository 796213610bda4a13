"""Change a loss from step to step: TAID's clock, the entropy bonus, the brake on preference losses, the caps on channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from composer_replication.config import LossConfig, RunConfig
from composer_replication.distillation import TAIDScheduler
from composer_replication.policy_gradient import EntropyControl
from composer_replication.trainer.learning.brake import ReplayBrake
from composer_replication.trainer.learning.pull_cap import PullCap


@dataclass(frozen=True, slots=True)
class Controls:
    """The controls that a run has; None for those that it does not ask for."""

    taid: TAIDScheduler | None
    entropy: EntropyControl | None
    brake: ReplayBrake | None
    caps: Mapping[str, PullCap]
    """By channel."""

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Return the controls of a run at its start."""
        rlvr, hint, replay = config.loss.rlvr, config.loss.hint, config.loss.replay
        return cls(
            TAIDScheduler(config.steps) if hint.form == "taid" else None,
            None if rlvr.entropy_target is None else EntropyControl(rlvr.entropy_bonus, rlvr.entropy_target, rlvr.entropy_step),
            ReplayBrake() if replay.weight > 0 and replay.compares else None,
            {
                name: PullCap(name, most)
                for name, most in (("hint", hint.max_pull), ("replay", replay.max_pull))
                if most is not None
            },
        )

    @property
    def taid_t(self) -> float | None:
        """The present t of TAID's clock."""
        return None if self.taid is None else self.taid.t

    def options(self, loss: LossConfig) -> LossConfig:
        """Return the options of the loss in the present step."""
        if self.entropy is not None:
            rlvr = loss.rlvr.model_copy(update={"entropy_bonus": self.entropy.applied})
            loss = loss.model_copy(update={"rlvr": rlvr})
        if self.brake is not None:
            replay, share = loss.replay, self.brake.share  # less of the preferences, and as much of the anchor as before
            braked = replay.model_copy(update={"weight": replay.weight * share, "anchor": replay.anchor / share})
            loss = loss.model_copy(update={"replay": braked})
        for name, cap in self.caps.items():
            channel = getattr(loss, name)
            capped = channel.model_copy(update={"weight": channel.weight * cap.share})
            loss = loss.model_copy(update={name: capped})
        return loss

    def follow(self, metrics: Mapping[str, float], step: int) -> dict[str, float]:
        """Follow a step (1-based) that had these metrics, and return what was applied in it."""
        applied: dict[str, float] = {}
        if self.taid is not None:
            applied["hint/taid_t"] = self.taid.t
            self.taid.update_t(metrics.get("hint/loss", 0.0), global_step=step)
        if self.entropy is not None and "rlvr/entropy/mean" in metrics:
            applied["rlvr/entropy/bonus"] = self.entropy.applied
            self.entropy.update(metrics["rlvr/entropy/mean"])
        if self.brake is not None and "replay/pairs" in metrics:
            applied["replay/preference_share"] = self.brake.share
            self.brake.follow(metrics)
        for name, cap in self.caps.items():
            applied[f"{name}/weight_share"] = cap.share
            cap.follow(metrics)
        return applied

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {name: None if control is None else control.state_dict() for name, control in self._named()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, among other things."""
        for name, control in self._named():
            if control is not None and state.get(name) is not None:
                control.load_state_dict(state[name])

    def _named(self) -> list[tuple[str, TAIDScheduler | EntropyControl | ReplayBrake | PullCap | None]]:
        caps = [(f"{name}_cap", cap) for name, cap in self.caps.items()]
        return [("taid", self.taid), ("entropy", self.entropy), ("brake", self.brake), *caps]
