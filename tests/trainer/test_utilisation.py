"""The operations that an update needs, by the kind of model, and those that a device attains."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from composer_replication.trainer.learning.utilisation import attainable, operations_per_token

TOKENS = 8
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def counted(model: PreTrainedModel) -> float:
    """The operations of a forward and a backward pass, by torch's own count, for each token."""
    ids = torch.arange(TOKENS)[None]
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids).logits.sum().backward()
    return float(counter.get_total_flops()) / TOKENS


@pytest.mark.parametrize("tied", [False, True])
def test_a_dense_model_needs_what_torch_counts(tied: bool) -> None:
    """Scores of eight tokens and the gradient to the embeddings are little beside the matrices."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=256, tie_word_embeddings=tied))
    assert operations_per_token(model) == pytest.approx(counted(model), rel=0.05)


def test_frozen_weights_need_no_gradient_of_their_own() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=256))
    every = operations_per_token(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("q_proj" in name)
    rest = counted(model)
    assert operations_per_token(model) < 0.75 * every
    assert operations_per_token(model) == pytest.approx(rest, rel=0.1)


def test_of_a_mixture_the_experts_count_that_a_token_goes_through() -> None:
    mixture: dict[str, Any] = {"head_dim": 32, "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **mixture, intermediate_size=256))
    experts = 2 * 8 * 3 * 128 * 128
    dense = sum(
        p.numel() for n, p in model.named_parameters() if p.dim() > 1 and ".experts." not in n and "embed_tokens" not in n
    )
    assert operations_per_token(model) == 6 * (dense + experts / 4)


def test_a_device_attains_what_a_product_takes() -> None:
    cpu = torch.device("cpu")
    found = attainable(cpu, torch.float32)
    matrix = torch.ones(512, 512)
    began = time.perf_counter()
    for _ in range(20):
        matrix @ matrix
    assert found > 0.5 * 20 * 2 * 512**3 / (time.perf_counter() - began), "the fastest of a few is no slower than many on average"
    assert attainable(cpu, torch.float32) == found
