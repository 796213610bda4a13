"""A frozen copy in bfloat16, or in the machine's memory, teaches what a whole one teaches, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from composer_replication.distillation import FrozenTeacher, make_self_teacher
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.forward import evaluating, sequence_logprobs, set_compute_dtype

ALL_ON: dict[str, Any] = {"alpha_sdpo": 0.5, "beta_replay": 0.3, "strict": True}


@pytest.fixture
def batch(new_maker):
    return collate(*new_maker(0).everything(), pad_id=0)


def bytes_of(model: nn.Module) -> int:
    return sum(parameter.numel() * parameter.itemsize for parameter in model.parameters())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["frozen", "trust_region"])
def test_a_rounded_copy_computes_the_same_bits_under_autocast(new_model, batch, tied, kind):
    model = new_model(tied=tied)
    set_compute_dtype(model, torch.bfloat16)
    whole, rounded = make_self_teacher(kind, model), make_self_teacher(kind, model, rounded_to=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    found = []
    for teacher in (whole, rounded):
        loss = compose_loss(model, batch, **ALL_ON, self_teacher=teacher)
        found.append((loss.sdpo_jsd.item(), torch.autograd.grad(loss.total, list(model.parameters()))))
    assert found[0][0] == found[1][0] != 0
    assert all(map(torch.equal, found[0][1], found[1][1]))
    sizes = [bytes_of(teacher.parts(model)[0].model) for teacher in (whole, rounded)]
    assert sizes[1] < 0.85 * sizes[0], "the embedding stays: a third of this model"


def test_a_copy_in_the_machines_memory_returns_there_and_leaves_what_it_computed(new_model, batch):
    """The head's weights too, which the loss reads afterwards."""
    model = new_model()
    expected = compose_loss(model, batch, **ALL_ON, self_teacher=FrozenTeacher(model))
    teacher = FrozenTeacher(model, on_cpu=True)
    (part,) = teacher.parts(model)
    at_home = {name: parameter.data_ptr() for name, parameter in part.model.named_parameters()}
    seen = []
    part.model.register_forward_hook(lambda *_: seen.append(next(part.model.parameters()).data_ptr()))
    rows = batch["input_ids"], batch["attention_mask"], batch["response_mask"]
    with part.context(), evaluating(part.model):
        scored = sequence_logprobs(part.model, *rows)
    found = compose_loss(model, batch, **ALL_ON, self_teacher=teacher)
    assert found.sdpo_jsd.item() == expected.sdpo_jsd.item()
    assert {name: parameter.data_ptr() for name, parameter in part.model.named_parameters()} == at_home
    assert seen
    with evaluating(part.model):
        assert torch.equal(sequence_logprobs(part.model, *rows), scored)


@pytest.mark.parametrize("kind", ["frozen", "ema", "trust_region"])
def test_a_copy_has_no_gradient_no_hooks_of_precision_lost_and_moves_apart(new_model, kind):
    model = new_model()
    set_compute_dtype(model, torch.bfloat16)
    part = make_self_teacher(kind, model, on_cpu=True).parts(model)[0]
    assert not any(parameter.requires_grad for parameter in part.model.parameters())
    shared = {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in part.model.parameters()}
    assert not shared
    assert part.model.lm_head.weight is part.model.model.embed_tokens.weight
    with evaluating(part.model):
        assert torch.is_autocast_enabled("cpu")
