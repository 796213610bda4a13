"""A mixture's tokens go through the experts that they are given: beside a router written by hand, however rows are read."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from exact_norms import with_exact_norms
from mixtures import CHOSEN, EXPERTS, mixture_config
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3MoeForCausalLM

from composer_replication.loss import compose_loss
from composer_replication.loss.forward import (
    checkpointing_options,
    enable_checkpointing,
    enable_router_replay,
    forward,
    replays_routers,
    routing,
    sequence_logprobs,
    set_router_balance,
    update_mode,
    why_no_tree,
)
from composer_replication.loss.micro_batches import split
from composer_replication.types.errors import ModelError
from composer_replication.types.routed_experts import UNKNOWN

LAYERS = 2
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 11, 12], [20, 21, 22, 23, 0, 0]])
MASK = (IDS != 0).long()


def mixture(attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    model: Any = with_exact_norms(Qwen3MoeForCausalLM(mixture_config()).double()).eval()
    model.set_experts_implementation("eager")  # the grouped product has no float64
    model.set_attn_implementation(attention)
    return model


def drawn(*, alike: bool, seed: int = 1) -> Tensor:
    """Experts for every token, two of six; those of the common prefix of two rows are the same where they are `alike`."""
    made = torch.rand((*IDS.shape, LAYERS, EXPERTS), generator=torch.Generator().manual_seed(seed)).argsort(-1)[..., :CHOSEN]
    if alike:
        made[1, :4] = made[0, :4]
    return made.to(torch.int16)


def batch(experts: Tensor | None = None) -> dict[str, Tensor]:
    made = {"input_ids": IDS, "attention_mask": MASK, "labels": torch.where((MASK == 1) & (MASK.cumsum(-1) > 3), IDS, -100)}
    return made if experts is None else made | {"routed_experts": experts}


def route_by_hand(model: Any, experts: Tensor) -> None:
    """Have the routers of a Qwen3-MoE choose what they are given, by their formula written anew, for rows that are padded."""
    for number, layer in enumerate(model.model.layers):
        given = experts[:, :, number].flatten(0, 1).long()

        def chosen(self: Any, hidden: Tensor, given: Tensor = given) -> tuple[Tensor, Tensor, Tensor]:
            logits = hidden.reshape(-1, hidden.shape[-1]) @ self.weight.T
            own = logits.topk(CHOSEN, -1).indices
            fits = len(given) == len(logits)  # a proof of the head reads other tokens
            indices = torch.where(given == UNKNOWN, own, given) if fits else own
            weights = torch.softmax(logits.float(), -1).gather(-1, indices)
            weights = weights / weights.sum(-1, keepdim=True) if model.config.norm_topk_prob else weights
            return logits, weights.to(logits.dtype), indices

        layer.mlp.gate.forward = MethodType(chosen, layer.mlp.gate)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "computed twice"])
@pytest.mark.parametrize("alike", [True, False], ids=["one prefix", "two prefixes"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"], ids=["padded rows", "a tree"])
def test_values_and_gradients_are_those_of_a_router_written_by_hand(attention: str, alike: bool, checkpointing: bool) -> None:
    experts = drawn(alike=alike)
    experts[0, 2] = experts[2, 1, 0, 0] = UNKNOWN
    by_hand = mixture("eager")
    known = torch.where((experts == UNKNOWN).any(-1, keepdim=True), UNKNOWN, experts)
    if alike:
        known[1, 2] = experts[1, 2] = UNKNOWN
    route_by_hand(by_hand, known)
    expected = compose_loss(by_hand, batch()).total
    wanted = gradients(by_hand, expected)
    model = mixture(attention)
    enable_router_replay(model)
    if checkpointing:
        enable_checkpointing(model, **checkpointing_options(model))
        update_mode(model)
    assert (why_no_tree(model) is None) == (attention == "sdpa")
    for some in (experts, None, experts):  # nothing of one pass is left in the next
        made = compose_loss(model, batch(some))
        found = gradients(model, made.total)
        if some is None:
            assert not torch.allclose(made.total, expected)
            continue
        torch.testing.assert_close(made.total, expected, rtol=1e-6, atol=1e-8)
        assert found.keys() == wanted.keys()
        for name, gradient in wanted.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    positions = {True: 12, False: 16}[alike] if attention == "sdpa" else IDS.numel()
    assert made.positions == positions, "what goes through other experts is read apart"


def test_what_is_recorded_is_what_the_router_chooses_and_changes_nothing_when_it_is_given() -> None:
    model = mixture()
    logits = model(input_ids=IDS, attention_mask=MASK, output_router_logits=True).router_logits
    chosen = torch.stack([layer.topk(CHOSEN, -1).indices for layer in logits], dim=1)
    plain = compose_loss(model, batch()).total
    enable_router_replay(model)
    with routing() as seen:
        forward(model, IDS, MASK)
    assert seen.experts().dtype == torch.int16
    assert seen.experts().equal(chosen.to(torch.int16))
    recorded = seen.experts().unflatten(0, IDS.shape)
    made = compose_loss(model, batch(recorded))
    assert made.total.equal(plain)
    assert made.metrics["routing/changed"] == 0.0
    other = compose_loss(model, batch(drawn(alike=True)))
    assert 0.0 < other.metrics["routing/changed"] <= 1.0


def test_the_share_that_is_changed_is_that_of_tokens_and_layers() -> None:
    model = mixture("eager")
    enable_router_replay(model)
    with routing() as seen:
        forward(model, IDS, MASK)
    given = seen.experts().unflatten(0, IDS.shape)
    given[0, 0, 1] = torch.tensor([expert for expert in range(EXPERTS) if expert not in given[0, 0, 1]][:CHOSEN])
    given[0, 1, 0] = given[0, 1, 0].flip(-1)  # the same experts
    given[2, 4:] = 0  # padding
    given[2, 3] = UNKNOWN
    assert compose_loss(model, batch(given)).metrics["routing/changed"] == pytest.approx(1 / (LAYERS * 15))


def test_a_copy_and_the_load_balancing_loss_go_with_it() -> None:
    model = mixture()
    enable_router_replay(model)
    twin = copy.deepcopy(model)
    assert replays_routers(twin)
    set_router_balance(twin, 0.5)
    experts = drawn(alike=True)
    plain, made = compose_loss(model, batch(experts)), compose_loss(twin, batch(experts))
    assert plain.total.item() == pytest.approx(made.total.item() - 0.5 * made.metrics["router/balance"])


def test_parts_of_a_batch_add_up() -> None:
    model = mixture()
    enable_router_replay(model)
    whole = {**batch(drawn(alike=False)), "rlvr_denominator": torch.tensor(7.0)}
    expected = compose_loss(model, whole).total
    for shared_prefixes in (True, False):
        parts = split(whole, 8, shared_prefixes=shared_prefixes)
        assert len(parts) > 1
        total = torch.stack([compose_loss(model, part).total for part in parts]).sum()
        torch.testing.assert_close(total, expected)
        assert all(part["routed_experts"].shape[:2] == part["input_ids"].shape for part in parts)


def test_log_probs_of_sequences_are_read_with_them() -> None:
    model, experts = mixture(), drawn(alike=True)
    by_hand = mixture("eager")
    route_by_hand(by_hand, experts)
    enable_router_replay(model)
    wanted = MASK * (MASK.cumsum(-1) > 1)
    with torch.no_grad():
        found = sequence_logprobs(model, IDS, MASK, wanted, 0.7, experts)
        expected = sequence_logprobs(by_hand, IDS, MASK, wanted, 0.7)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
SMALL |= {"num_key_value_heads": 2, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 6, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "mlp_only_layers": [0],
    },
    "gpt_oss": {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16},
    "granitemoe": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 2,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
    },
    "glm4_moe": {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 16, "n_group": 1},
    "ernie4_5_moe": {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 16, "moe_layer_start_index": 1},
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}


@pytest.mark.parametrize("kind", MIXTURES)
def test_every_kind_of_router_takes_other_experts(kind: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL, **MIXTURES[kind])).eval()
    enable_router_replay(model)
    with torch.no_grad():
        with routing() as seen:
            plain = forward(model, IDS, MASK).last_logits()
        own = seen.experts()
        again = forward(model, IDS, MASK, experts=own.unflatten(0, IDS.shape)).last_logits()
        torch.testing.assert_close(again, plain)
        other = (own + 1) % (8 if kind == "deepseek_v3" else 6)
        with routing(other) as changed:
            shifted = forward(model, IDS, MASK).last_logits()
    assert changed.experts().equal(other)
    assert not torch.allclose(shifted, plain, atol=1e-3)
    if kind in ("qwen2_moe", "deepseek_v3", "ernie4_5_moe"):  # a server names its dense blocks too
        assert own.shape[1] == 2
        named = torch.cat([torch.zeros_like(own[:, :1]), other], dim=1)
        with torch.no_grad():
            found = forward(model, IDS, MASK, experts=named.unflatten(0, IDS.shape)).last_logits()
        torch.testing.assert_close(found[:2], shifted[:2])


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        ("doge", {"is_moe": True, "num_experts": 16, "num_experts_per_tok": 2}, "products of keys"),
        (
            "deepseek_v2",
            {
                **{name: value for name, value in MIXTURES["deepseek_v3"].items() if name != "first_k_dense_replace"},
                "topk_method": "group_limited_greedy",
                "topk_group": 1,
                "first_k_dense_replace": 1,
            },
            "no weight",
        ),
        ("phimoe", {"num_local_experts": 6, "num_experts_per_tok": 2}, "has no router"),
    ],
)
def test_routers_that_choose_otherwise_are_refused(kind: str, options: dict[str, Any], why: str) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL, **options)).eval()
    with pytest.raises(ModelError, match=why):
        enable_router_replay(model)
    assert not replays_routers(model)


def test_it_is_enabled_once_and_threads_do_not_meet() -> None:
    model = mixture()
    enable_router_replay(model)
    enable_router_replay(model)
    found: dict[int, list[Tensor]] = {0: [], 1: []}

    def record(number: int) -> None:
        for _ in range(8):
            with torch.no_grad(), routing() as seen:
                model(input_ids=IDS[number : number + 1])
            found[number].append(seen.experts())

    threads = [threading.Thread(target=record, args=(number,)) for number in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for some in found.values():
        assert len(some) == 8
        assert all(one.equal(some[0]) for one in some)
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_checkpointed_graph_is_read_twice() -> None:
    model = mixture()
    enable_router_replay(model)
    enable_checkpointing(model, **checkpointing_options(model))
    update_mode(model)
    loss = compose_loss(model, batch(drawn(alike=True))).total
    weights = [model.model.layers[0].mlp.gate.weight]
    (once,) = torch.autograd.grad(loss, weights, retain_graph=True)
    (again,) = torch.autograd.grad(loss, weights)
    torch.testing.assert_close(once, again)


def test_what_does_not_fit_is_refused() -> None:
    dense = LlamaForCausalLM(
        LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    with pytest.raises(ModelError, match="has no router"):
        enable_router_replay(dense)
    assert not replays_routers(dense)
    model = mixture()
    enable_router_replay(model)
    experts = drawn(alike=True)
    for wrong in (EXPERTS, -2):
        odd = experts.clone()
        odd[0, 0, 0, 0] = wrong
        with pytest.raises(ModelError, match="not 2 different numbers below 6"):
            compose_loss(model, batch(odd))
    twice = experts.clone()
    twice[0, 0, 0] = 3
    with pytest.raises(ModelError, match="not 2 different numbers below 6"):
        compose_loss(model, batch(twice))
    with pytest.raises(ModelError, match="loaded without router_replay"):
        compose_loss(mixture(), batch(experts))
    with pytest.raises(ValueError, match="leave one of them out"):
        compose_loss(model, batch(experts), student=forward(model, IDS, MASK))
    cuts: list[Callable[[Tensor], Tensor]] = [lambda e: e[:, :, :1], lambda e: e[..., :1]]
    for cut in cuts:
        with pytest.raises(ModelError, match="the sampler's tokens go through"):
            compose_loss(model, batch(cut(experts)))
    with (
        pytest.raises(ModelError, match="a router reads 18 tokens where the experts of 12 are given"),
        routing(experts[:2].flatten(0, 1)),
    ):
        model(input_ids=IDS)
    compose_loss(model, batch(experts)).total.backward()  # an error leaves nothing behind
