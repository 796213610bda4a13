"""Models are read as trees only where that gives what their rows give one by one, at every length and in every mode."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from peft import LoraConfig, get_peft_model
from ranks import on_ranks, tree_verdict
from transformers import (
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from composer_replication.loss.forward import (
    Rows,
    evaluating,
    read_rows,
    set_compute_dtype,
    tree_attention,
    tree_proof,
    why_no_tree,
)

SIZES: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
SIZES |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "initializer_range": 0.3}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
IDS = torch.cat([torch.arange(1, 25).expand(4, 24), torch.arange(24).view(4, 6)], dim=1)
"""Four rows of 30 tokens, the first 24 of them shared."""


def llama(**options: Any) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **options)).eval()


def mixtral(**options: Any) -> Any:
    torch.manual_seed(0)
    return MixtralForCausalLM(MixtralConfig(**SIZES, **EXPERTS, **options)).eval()


def phimoe(**options: Any) -> Any:
    torch.manual_seed(0)
    return PhimoeForCausalLM(PhimoeConfig(**SIZES, **EXPERTS, **options)).eval()


def windowed() -> Any:
    """Its layers are called full, but see no farther than the window."""
    return phimoe(sliding_window=6, layer_types=["full_attention"] * 2)


def windowed_mixtral() -> Any:
    return mixtral(sliding_window=6, layer_types=["full_attention"] * 2)


def switching() -> Any:
    """Its rotary embeddings are larger in a batch that reaches a certain length."""
    scale = {"factor": 4.0, "original_max_position_embeddings": 16, "short_mscale": 1.0, "long_mscale": 1.3}
    return phimoe(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, **scale})


def tuned() -> Any:
    """Its attention is scaled by the place of a token in the batch."""
    torch.manual_seed(0)
    options = {"head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 48, "no_rope_layers": [1, 0]}
    config = Llama4TextConfig(**SIZES, **options, floor_scale=8, attn_scale=0.5, layer_types=["full_attention"] * 2)
    return Llama4ForCausalLM(config).eval()


def with_activated_lora() -> Any:
    options = {"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "alora_invocation_tokens": [5, 6]}
    with warnings.catch_warnings(action="ignore"):  # peft asks transformers by an old name
        model = get_peft_model(llama(), LoraConfig(**options)).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, 0, 0.3)
    return model


def read_alone(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Log-probs of rows [B, T, V], each read in a pass of its own."""
    plain = copy.deepcopy(model)
    with evaluating(plain):
        return torch.cat([plain(input_ids=row[None], use_cache=False).logits for row in ids]).log_softmax(-1)


def read(model: Any, ids: torch.Tensor) -> tuple[bool, torch.Tensor]:
    """Whether rows are read as a tree, and their log-probs [B, T, V]."""
    with evaluating(model):
        (found,) = read_rows(model, [Rows(ids)])
        rows, positions = torch.meshgrid(torch.arange(len(ids)), torch.arange(1, ids.shape[1] + 1), indexing="ij")
        values = found.rows(rows.flatten(), positions.flatten()).logits().log_softmax(-1)
    return found.places is not None, values.view(*ids.shape, -1)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (windowed, "attend to more or less"),
        (windowed_mixtral, "attention over a tree has no sliding_window"),
        (switching, "depend on the length of the whole sequence"),
        (tuned, "attn_temperature_tuning"),
        (with_activated_lora, "activated LoRA"),
    ],
)
def test_what_shows_only_in_longer_rows_forbids_a_tree(make: Callable[[], Any], why: str) -> None:
    model = make()
    kept = model.config._attn_implementation
    expected = read_alone(model, IDS)
    assert why in (why_no_tree(model) or "")
    assert model.config._attn_implementation == kept
    as_tree, found = read(model, IDS)
    assert not as_tree
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_a_window_that_no_layer_has_forbids_no_tree() -> None:
    """Its masks are made all the same."""
    torch.manual_seed(0)
    sizes = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**SIZES, **sizes)).eval()
    assert model.config.sliding_window is not None
    assert why_no_tree(model) is None


def test_attention_that_depends_on_a_tokens_own_position_is_read_as_a_tree() -> None:
    torch.manual_seed(0)
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8}
    rope |= {"llama_4_scaling_beta": 0.5, "max_position_embeddings": 8}
    model = Ministral3ForCausalLM(Ministral3Config(**SIZES, head_dim=8, sliding_window=None, rope_parameters=rope)).eval()
    expected = read_alone(model, IDS)
    as_tree, found = read(model, IDS)
    assert as_tree
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def deep() -> Any:
    """A model of many layers whose products are rounded another way for another number of tokens, as kernels of GPUs do."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(head_dim=8, **SIZES | {"num_hidden_layers": 12, "num_key_value_heads": 4})).eval()

    def rounded(_module: Any, _given: Any, output: torch.Tensor) -> torch.Tensor:
        signs = torch.randint(0, 2, output.shape, generator=torch.Generator().manual_seed(output.shape[1])) * 2 - 1
        return output * (1 + torch.finfo(output.dtype).eps * signs).to(output.dtype)

    for layer in model.model.layers:
        layer.mlp.down_proj.register_forward_hook(rounded)
        layer.self_attn.o_proj.register_forward_hook(rounded)
    return model


@pytest.mark.parametrize("how", ["autocast", "outside", "bfloat16", "accelerate"])
def test_rounding_in_many_layers_forbids_no_tree(how: str) -> None:
    model = deep()
    if how == "autocast":
        set_compute_dtype(model, torch.bfloat16)
    if how == "bfloat16":
        model = model.to(torch.bfloat16)
    if how == "accelerate":
        AcceleratorState._reset_state(reset_partial_state=True)
        try:
            model = Accelerator(cpu=True, mixed_precision="bf16").prepare(model)
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)
    with torch.autocast("cpu", torch.bfloat16) if how == "outside" else nullcontext():
        assert why_no_tree(model) is None


def test_layers_that_do_nothing_yet_forbid_no_tree() -> None:
    """Output projections begin with zeros in some initialisations: positions count all the same."""
    model = llama()
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    assert why_no_tree(model) is None


def test_a_lack_of_memory_is_an_error_and_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()

    def lacking(*_given: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(tree_proof, "forward_tree", lacking)
        with pytest.raises(torch.OutOfMemoryError):
            why_no_tree(model)
    assert model.config._attn_implementation == "sdpa"
    assert why_no_tree(model) is None


def test_outputs_that_are_not_finite_are_not_remembered() -> None:
    model = llama()
    weight = model.model.layers[0].mlp.up_proj.weight
    kept = weight.detach().clone()
    torch.nn.init.constant_(weight, torch.nan)
    assert why_no_tree(model) == "its outputs are not finite"
    weight.data.copy_(kept)
    assert why_no_tree(model) is None


def with_router_losses(model: Any) -> None:
    model.config.output_router_logits = True


def looking_ahead(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.is_causal = False


@pytest.mark.parametrize("change", [with_router_losses, looking_ahead])
def test_options_that_change_later_are_tried_anew(change: Callable[[Any], None]) -> None:
    model = mixtral()
    before = copy.deepcopy(model)
    assert why_no_tree(model) is None
    change(model)
    assert why_no_tree(model) is not None
    change(before)
    as_tree, found = read(model, IDS)
    assert not as_tree
    torch.testing.assert_close(found, read_alone(before, IDS))


def test_another_attention_is_noticed_and_so_is_the_way_back() -> None:
    model = llama()
    assert why_no_tree(model) is None
    model.set_attn_implementation("eager")
    assert "its attention is eager" in (why_no_tree(model) or "")
    model.set_attn_implementation("sdpa")
    assert why_no_tree(model) is None


def opt(**options: Any) -> Any:
    sizes = {"vocab_size": 61, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"word_embed_proj_dim": 32, "dropout": 0.0, "max_position_embeddings": 64}
    return OPTForCausalLM(OPTConfig(**(sizes | options)))


@pytest.mark.parametrize(
    "make",
    [lambda: opt(dropout=0.3), lambda: opt(layerdrop=0.3), lambda: mixtral(router_jitter_noise=0.3)],
    ids=["dropout", "layers that are left out", "a router's jitter"],
)
def test_noise_without_a_module_forbids_a_tree_while_it_is_drawn(make: Callable[[], Any]) -> None:
    model = make().train()
    torch.manual_seed(3)
    assert "draws other numbers for each row" in (why_no_tree(model) or "")
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3), drawn), "asking draws nothing"
    assert why_no_tree(model.eval()) is None
    assert why_no_tree(model.train()) is not None


def test_training_without_noise_allows_a_tree() -> None:
    assert why_no_tree(opt().train()) is None
    assert why_no_tree(llama().train()) is None


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_batches_without_tokens_are_refused(shape: tuple[int, int]) -> None:
    empty = torch.zeros(shape, dtype=torch.int64)
    with pytest.raises(ValueError, match="a batch of rows holds no token"):
        read_rows(llama(), [Rows(IDS), Rows(empty)])


def test_a_model_that_is_compiled_whole_says_so() -> None:
    assert "torch.compile" in (why_no_tree(torch.compile(llama(), backend="eager")) or "")


def test_the_branches_of_a_tree_are_found_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    assert why_no_tree(model) is None
    made: list[int] = []
    real = tree_attention._branches
    monkeypatch.setattr(tree_attention, "_branches", lambda segments: made.append(len(segments)) or real(segments))
    (found,) = read_rows(model, [Rows(IDS, None)])
    found.output.sum().backward()
    assert len(made) == 1


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_ranks_agree(tmp_path: Any, how: str) -> None:
    """One rank's layers do not hand their masks on."""
    said = on_ranks(tmp_path, tree_verdict, llama(), how)
    assert said == ["another rank cannot read it as a tree", "its layers do not take the tree in place of a mask"]
