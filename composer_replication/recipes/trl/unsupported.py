"""What TRL cannot express, for people; `options.check` refuses it."""

from __future__ import annotations

__all__ = ["CANNOT"]

CANNOT = (
    "loss.rlvr.objective = dppo, and loss.rlvr.epsilon_low with cispo: TRL has no such surrogate",
    "rollout.refills, reward.kl_weight and loss.hint.useful_only: a step takes so many rollouts, and scores them in one pass",
    "reward.prm.weight: a rollout has one advantage, and process rewards give each turn its own (local, monarch and ray can)",
    "rollout.timeout_s: TRL samples the turns of all rollouts together (local can)",
    "rollout.engine = vllm and sglang: TRL's vLLM server mode is for ComposerReplicationTrainer (local can)",
    "optimizer.micro_batch_size that does not divide the rollouts of a step: one optimizer step is one generation batch",
    "several processes: use ComposerReplicationTrainer in a script of yours",
)
