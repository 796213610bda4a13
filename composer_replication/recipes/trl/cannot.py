"""What TRL cannot express, for people; `options.check` refuses it."""

from __future__ import annotations

__all__ = ["CANNOT"]

CANNOT = (
    "loss.rlvr.objective = dppo, and loss.rlvr.epsilon_low with cispo: TRL has no such surrogate",
    "rollout.refills, reward.kl_weight and loss.hint.useful_only: a step takes so many rollouts, and scores them in one pass",
    "several processes: use ComposerReplicationTrainer in a script of yours",
)
