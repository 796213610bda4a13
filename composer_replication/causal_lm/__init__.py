"""Reading a Hugging Face causal LM for losses: forward passes that stop before the head, and shared prefixes."""

from __future__ import annotations

from composer_replication.causal_lm.forward import Forward, evaluating, forward, sequence_logprobs, unwrapped, why_plain
from composer_replication.causal_lm.prefix import Prefix, can_share_prefix, common_prefix, read_on_top, read_prefix
from composer_replication.causal_lm.rows import FusedRows, PlainRows, divergence_of

__all__ = [
    "Forward",
    "FusedRows",
    "PlainRows",
    "Prefix",
    "can_share_prefix",
    "common_prefix",
    "divergence_of",
    "evaluating",
    "forward",
    "read_on_top",
    "read_prefix",
    "sequence_logprobs",
    "unwrapped",
    "why_plain",
]
