"""Reading a Hugging Face causal LM for losses: forward passes that stop before the head, and shared prefixes."""

from __future__ import annotations

from composer_replication.loss.forward.action_entropy import action_entropies
from composer_replication.loss.forward.forward import Forward, forward, overheard, sequence_logprobs, why_plain
from composer_replication.loss.forward.logprob_cache import LogprobCache, weights_digest
from composer_replication.loss.forward.modes import (
    arguments_of,
    cache_argument,
    compute_dtype,
    computing,
    enable_checkpointing,
    evaluating,
    in_lockstep,
    set_compute_dtype,
    unwrapped,
    update_mode,
    whole_weights,
)
from composer_replication.loss.forward.prefix import (
    Prefix,
    caches_attention_only,
    common_prefix,
    fallbacks,
    read_on_top,
    read_prefix,
    why_no_prefix,
)
from composer_replication.loss.forward.rows import FusedRows, HintLoss, PlainRows, divergence_of

__all__ = [
    "Forward",
    "FusedRows",
    "HintLoss",
    "LogprobCache",
    "PlainRows",
    "Prefix",
    "action_entropies",
    "arguments_of",
    "cache_argument",
    "caches_attention_only",
    "common_prefix",
    "compute_dtype",
    "computing",
    "divergence_of",
    "enable_checkpointing",
    "evaluating",
    "fallbacks",
    "forward",
    "in_lockstep",
    "overheard",
    "read_on_top",
    "read_prefix",
    "sequence_logprobs",
    "set_compute_dtype",
    "unwrapped",
    "update_mode",
    "weights_digest",
    "whole_weights",
    "why_no_prefix",
    "why_plain",
]
