"""What verl cannot express, for people; `overrides.check` refuses it."""

from __future__ import annotations

__all__ = ["CANNOT"]

CANNOT = (
    "optimizer.type = muon: verl builds its own AdamW (local, trl, monarch and ray can)",
    "curriculum.enabled: its data set is in order before the run begins (local can)",
    "rollout.timeout_s: its agent loops wait for every rollout (local can)",
    "rollout.refills: its filter throws groups away with their hints (local can)",
    "rollout.engine = vllm and sglang: its own servers sample (local can)",
    "SGLang as its own server: it takes no list of ending tokens beside ignore_eos (vLLM does)",
    "LoRA: the hint channel's self-teacher and what is saved are of whole weights (trl can)",
    "loss.rlvr.importance = none with CUDA: its server's log-probs are not the trainer's (tis and icepop weigh by both)",
    "reward.prm.weight: its agent loops are processes without the process reward model (local, monarch and ray can)",
    "reward.kl_weight: its advantage estimators see rewards, and no verdict apart from them (local can)",
    "loss.rlvr.kl_beta without CUDA: its reference policy wants pinned memory (local can)",
    "loss.hint.generators judge and consensus: its agent loops are processes without the run's ledger (local can)",
    "loss.hint.useful_only: its agent loops have no weights to ask (local can)",
    "loss.hint.shuffle: its agent loops see one task's trajectories, and the control needs other tasks' hints (local can)",
    "model.device = cuda:N: Ray places its workers (local can)",
)
