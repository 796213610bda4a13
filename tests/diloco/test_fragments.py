"""Fragments: every trainable parameter exactly once, strided over blocks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.diloco.fragments import split_into_fragments
from composer_replication.types.errors import ConfigError


def policy(layers=5, *, tied=True):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=tied,
    )
    return Qwen3ForCausalLM(config)


def names(fragment):
    return [name.replace("/", ".") for name, _ in fragment.named_parameters()]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_every_parameter_is_in_exactly_one_fragment_as_the_same_object(n, tied):
    model = policy(tied=tied)
    found = [p for fragment in split_into_fragments(model, n) for p in fragment.parameters()]
    assert len(found) == len({id(p) for p in found})
    assert {id(p) for p in found} == {id(p) for p in model.parameters()}


def test_blocks_are_strided():
    fragments = split_into_fragments(policy(5), 3)
    layers = [sorted({int(name.split(".")[2]) for name in names(f) if ".layers." in name}) for f in fragments]
    assert layers == [[0, 3], [1, 4], [2]]


def test_what_lies_outside_the_blocks_fills_up_the_smallest_fragment():
    fragments = split_into_fragments(policy(5), 3)
    assert "model.embed_tokens.weight" in names(fragments[2])
    with_heads = split_into_fragments(policy(4, tied=False), 2)
    assert [("model.embed_tokens.weight" in names(f)) + ("lm_head.weight" in names(f)) for f in with_heads] == [1, 1]


def test_the_cut_depends_on_the_model_alone():
    once, again = (list(map(names, split_into_fragments(policy(), 3))) for _ in range(2))
    assert once == again


def test_frozen_parameters_are_left_out():
    model = policy(2)
    model.model.layers[0].requires_grad_(False)
    found = [name for f in split_into_fragments(model, 1) for name in names(f)]
    assert found
    assert not any(".layers.0." in name for name in found)


def test_a_model_without_module_list_is_cut_by_its_sequential():
    fragments = split_into_fragments(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), 2)
    assert [names(f) for f in fragments] == [["0.weight", "0.bias"], ["2.weight", "2.bias"]]


def test_blocks_that_share_their_weights_are_one_block():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, layer)
    assert [names(f) for f in split_into_fragments(model, 1)] == [["0.weight", "0.bias"]]
    with pytest.raises(ConfigError, match="has 1 blocks"):
        split_into_fragments(model, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_that_are_not_float32_are_refused(dtype):
    with pytest.raises(ConfigError, match=r"parameter weight is .*16|float64"):
        split_into_fragments(nn.Linear(2, 2).to(dtype), 1)


def test_a_frozen_model_is_refused():
    with pytest.raises(ConfigError, match="no trainable parameter"):
        split_into_fragments(nn.Linear(2, 2).requires_grad_(False), 1)


@pytest.mark.parametrize(("model", "n", "says"), [(nn.Linear(2, 2), 2, "has 0 blocks"), (nn.Linear(2, 2), 0, "fragments = 0")])
def test_more_fragments_than_blocks_are_refused(model, n, says):
    with pytest.raises(ConfigError, match=says):
        split_into_fragments(model, n)


def test_a_sharded_parameter_is_refused(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Linear(2, 2)
        mesh = DeviceMesh("cpu", [0])
        model.weight = nn.Parameter(DTensor.from_local(model.weight.detach(), mesh, [Replicate()]))
        with pytest.raises(ConfigError, match="weight is sharded"):
            split_into_fragments(model, 1)
    finally:
        torch.distributed.destroy_process_group()
