"""Under gradient checkpointing prefixes are still read once, gradients are the same, and little is kept for the backward pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from composer_replication.distillation import make_self_teacher
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.forward import enable_checkpointing, update_mode, why_no_tree

ALL_ON: dict[str, Any] = {"alpha_sdpo": 0.5, "beta_replay": 0.3, "strict": True}


@pytest.fixture
def batch(new_maker):
    return collate(*new_maker(0).everything(), pad_id=0)


def checkpointed(model: Any) -> Any:
    enable_checkpointing(model)
    update_mode(model)
    return model


@pytest.mark.parametrize("teacher", ["live", "frozen"])
def test_the_gradients_are_those_without(new_model, batch, teacher):
    plain = new_model(dtype=torch.float64)
    found = []
    for model in (plain, checkpointed(copy.deepcopy(plain))):
        loss = compose_loss(model, batch, **ALL_ON, self_teacher=make_self_teacher(teacher, model))
        found.append((loss.total, torch.autograd.grad(loss.total, list(model.parameters())), loss.fallbacks))
    torch.testing.assert_close(found[0][0], found[1][0])
    for a, b in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(a, b)
    assert found[1][2] == {}


def test_prefixes_are_read_once(new_model, batch):
    """As often as without checkpointing, and the backward pass reads everything that has a gradient once more."""
    tokens = []
    for enable in (False, True):
        model = checkpointed(new_model()) if enable else new_model().eval()
        counted = {"forward": 0, "all": 0}

        def count(_module: Any, inputs: Any, counted: dict[str, int] = counted) -> None:
            counted["all"] += inputs[0].shape[0] * inputs[0].shape[1]

        assert why_no_tree(model) is None
        model.model.layers[0].mlp.register_forward_pre_hook(count)
        loss = compose_loss(model, batch, **ALL_ON)
        counted["forward"] = counted["all"]
        loss.total.backward()
        tokens.append(counted)
    assert tokens[1]["forward"] == tokens[0]["forward"] == tokens[0]["all"]
    assert tokens[0]["all"] < tokens[1]["all"] <= 2 * tokens[0]["all"]


def test_little_is_kept(new_model, batch):
    kept = []
    for enable in (False, True):
        model = checkpointed(new_model()) if enable else new_model().eval()
        seen: dict[int, int] = {}

        def pack(tensor: torch.Tensor, seen: dict[int, int] = seen) -> torch.Tensor:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = compose_loss(model, batch, **ALL_ON)
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept.append(sum(size for place, size in seen.items() if place not in weights))
        loss.total.backward()
    assert kept[1] < 0.5 * kept[0]
