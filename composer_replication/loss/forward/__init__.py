"""Reading a Hugging Face causal LM for losses: forward passes that stop before the head, and shared prefixes."""

from __future__ import annotations

from composer_replication.loss.forward.action_entropy import action_entropies
from composer_replication.loss.forward.forward import Forward, forward, overheard, why_plain
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
from composer_replication.loss.forward.read import (
    Rows,
    fallbacks,
    read_rows,
    sequence_logprobs,
)
from composer_replication.loss.forward.router_replay import (
    checkpointing_options,
    enable_router_replay,
    experts_per_token,
    experts_tensor,
    padded_experts,
    raw_experts,
    replays_routers,
    routing,
)
from composer_replication.loss.forward.routers import balance_of, router_balance, set_router_balance
from composer_replication.loss.forward.rows import FusedRows, HintLoss, PlainRows, concatenated, divergence_of
from composer_replication.loss.forward.tree_proof import caches_attention_only, why_no_tree

__all__ = [
    "Forward",
    "FusedRows",
    "HintLoss",
    "LogprobCache",
    "PlainRows",
    "Rows",
    "action_entropies",
    "arguments_of",
    "balance_of",
    "cache_argument",
    "caches_attention_only",
    "checkpointing_options",
    "compute_dtype",
    "computing",
    "concatenated",
    "divergence_of",
    "enable_checkpointing",
    "enable_router_replay",
    "evaluating",
    "experts_per_token",
    "experts_tensor",
    "fallbacks",
    "forward",
    "in_lockstep",
    "overheard",
    "padded_experts",
    "raw_experts",
    "read_rows",
    "replays_routers",
    "router_balance",
    "routing",
    "sequence_logprobs",
    "set_compute_dtype",
    "set_router_balance",
    "unwrapped",
    "update_mode",
    "weights_digest",
    "whole_weights",
    "why_no_tree",
    "why_plain",
]
