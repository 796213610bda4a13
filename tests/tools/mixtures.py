"""A small mixture of experts."""

from __future__ import annotations

from transformers import Qwen3MoeConfig

EXPERTS, CHOSEN = 6, 2


def mixture_config() -> Qwen3MoeConfig:
    """Return two layers of six experts, of which a token goes through two."""
    return Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        initializer_range=0.3,
    )
