"""The load-balancing loss of a mixture of experts: beside transformers' own, on padded rows and trees, whole and in parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from exact_norms import with_exact_norms
from mixtures import CHOSEN, EXPERTS, mixture_config
from ranks import gradient_of, on_ranks
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from composer_replication.loss import compose_loss
from composer_replication.loss.forward import enable_checkpointing, router_balance, set_router_balance, why_no_tree
from composer_replication.loss.forward.routers import balance_loss
from composer_replication.loss.micro_batches import mini_batches, split
from composer_replication.types.errors import ModelError


def mixture() -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    model: Qwen3MoeForCausalLM = with_exact_norms(Qwen3MoeForCausalLM(mixture_config()).double())
    model.set_experts_implementation("eager")  # the grouped product has no float64
    return model


def rows() -> dict[str, Tensor]:
    """Three rows, of which two begin alike, one with padding behind it."""
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 11, 12], [20, 21, 22, 23, 0, 0]])
    mask = (ids != 0).long()
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.where(mask.cumsum(-1) > 3, ids, -100) * mask - 100 * (1 - mask),
    }


def by_hand(model: Qwen3MoeForCausalLM, batch: dict[str, Tensor]) -> Tensor:
    """The mean over layers of what transformers computes of one."""
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    logits = model(**inputs, output_router_logits=True).router_logits
    layers = [load_balancing_loss_func((layer,), EXPERTS, CHOSEN, batch["attention_mask"]) for layer in logits]
    return torch.stack(layers).mean()


def gradients(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("attention", ["eager", "sdpa"], ids=["padded rows", "a tree"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_loss_is_what_transformers_computes_of_each_layer(attention: str, checkpointing: bool) -> None:
    model, batch = mixture(), rows()
    model.set_attn_implementation(attention)
    if checkpointing:
        enable_checkpointing(model)
    assert (why_no_tree(model) is None) == (attention == "sdpa")
    plain = compose_loss(model, batch)
    expected = plain.total + 0.5 * by_hand(model, batch)
    wanted = gradients(model, expected)
    set_router_balance(model, 0.5)
    made = compose_loss(model, batch)
    torch.testing.assert_close(made.total, expected)
    assert made.metrics["router/balance"] == pytest.approx(float(by_hand(model, batch).detach()))
    assert made.metrics["router/tokens"] == 16
    found = gradients(model, made.total)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, msg=name)
    assert found["model.layers.0.mlp.gate.weight"].norm() > 0


def test_experts_in_balance_cost_their_number_for_a_token_and_one_alone_costs_them_all() -> None:
    even = torch.zeros(EXPERTS, EXPERTS) - 1e3 * (1 - torch.eye(EXPERTS)).float()
    assert balance_loss([even], 1) == pytest.approx(1.0)
    assert balance_loss([even[:1].expand(EXPERTS, -1)], 1) == pytest.approx(EXPERTS)
    assert balance_loss([even, even[:1].expand(EXPERTS, -1)], 1) == pytest.approx((1 + EXPERTS) / 2), "no layer for another"


@pytest.mark.parametrize("shared_prefixes", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_shares_of_micro_batches_are_those_of_their_tokens(shared_prefixes: bool, ranks: int) -> None:
    batch = {**rows(), "rlvr_denominator": torch.tensor(7.0), "router_share": torch.tensor(1.0)}
    parts = [part for rank in range(ranks) for part in split(batch, 6, shared_prefixes=shared_prefixes, rank=rank, ranks=ranks)]
    tokens = [int(part["attention_mask"].sum()) if "attention_mask" in part else 0 for part in parts]
    assert [float(part["router_share"]) for part in parts] == pytest.approx([count / 16 for count in tokens])
    minis = mini_batches(batch, 2, seed=0)
    assert [float(mini["router_share"]) for mini in minis] == [1.0, 1.0], "each is a step of its own"


@pytest.mark.parametrize("how", ["ddp", "fsdp2, root only"])
def test_a_rank_without_rows_adds_nothing(tmp_path: Path, how: str) -> None:
    """Of three rows in parts of one, the first rank has two, and the second part of the other is empty."""
    model = mixture()
    set_router_balance(model, 0.5)
    batch = {**rows(), "rlvr_denominator": torch.tensor(7.0), "router_share": torch.tensor(1.0)}
    parts = [split(batch, 6, rank=rank, ranks=2) for rank in range(2)]
    assert [len(mine) for mine in parts] == [2, 2]
    assert "input_ids" not in parts[1][1]
    expected = gradients(model, torch.stack([compose_loss(model, part).total for part in (*parts[0], *parts[1])]).sum())
    for found in on_ranks(tmp_path, gradient_of, model, parts, how):
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, msg=name)


def test_a_part_counts_with_its_share() -> None:
    model = mixture()
    plain = compose_loss(model, rows()).total
    set_router_balance(model, 0.5)
    made = compose_loss(model, {**rows(), "router_share": torch.tensor(0.25)})
    torch.testing.assert_close(made.total, plain + 0.25 * 0.5 * by_hand(model, rows()))
    with torch.no_grad():
        torch.testing.assert_close(compose_loss(model, rows()).total, plain, msg="nothing is asked of an evaluation")


def test_a_model_without_a_router_is_refused() -> None:
    dense = LlamaForCausalLM(
        LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    with pytest.raises(ModelError, match="has no router"):
        set_router_balance(dense, 0.001)
    set_router_balance(dense, 0.0)
    assert router_balance(dense) == 0.0
