"""The head's gradient is one buffer for all losses of a call, and right for each of them, however they are used."""

from __future__ import annotations

import copy

import pytest
import torch

from composer_replication.config import HintConfig, LossConfig, ReplayConfig, RlvrConfig
from composer_replication.distillation import GeneralizedJSD, fused_divergence
from composer_replication.kernels import (
    Head,
    TeacherRows,
    fused_logprobs,
    fused_token_loss,
    one_pass,
    one_weight_gradient,
    weight_gradient,
)
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate

ALL_ON = LossConfig(hint=HintConfig(weight=0.3), replay=ReplayConfig(weight=0.7))
FACTORS = [(1, 1, 1), (3, 3, 3), (1, 0.5, 2), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, -1), (2, 0, 1)]


@pytest.fixture
def batch(new_maker):
    return collate(*new_maker(0).everything(), pad_id=0)


@pytest.fixture
def rows():
    torch.manual_seed(0)
    return {
        "hidden": torch.randn(7, 4, dtype=torch.float64, requires_grad=True),
        "weight": torch.randn(11, 4, dtype=torch.float64, requires_grad=True),
        "bias": torch.randn(11, dtype=torch.float64, requires_grad=True),
    }


def terms(rows, *, late_first=True):
    """A loss whose derivative is known late, and two whose gradients are formed in the forward pass."""
    hidden, head = rows["hidden"], Head(rows["weight"], rows["bias"])
    teacher = [TeacherRows(hidden.detach()[:4].flip(0), Head(rows["weight"].detach()))]

    def late():
        return fused_logprobs(hidden, head, torch.arange(7)).logprobs.square().sum()

    first = late() if late_first else None
    token, _ = fused_token_loss(hidden[2:], head, torch.arange(5), lambda logprobs, _: -logprobs.exp(), rows_per_chunk=2)
    divergence, _ = fused_divergence(hidden[:4], head, teacher, GeneralizedJSD(0.5), torch.rand(4).double())
    return (late() if first is None else first), token, divergence


def weighted(factors, losses):
    return sum(factor * loss for factor, loss in zip(factors, losses, strict=True) if factor)


@pytest.mark.parametrize("late_first", [True, False])
@pytest.mark.parametrize("others_before", [True, False])
@pytest.mark.parametrize("factors", FACTORS, ids=str)
def test_any_use_of_the_losses_has_its_own_gradient(rows, factors, late_first, others_before):
    """As with a buffer for each; a first pass and one over the retained graph, also after passes over other parts of it."""
    inputs = list(rows.values())
    torch.manual_seed(1)
    expected = torch.autograd.grad(weighted(factors, terms(rows)), inputs)
    torch.manual_seed(1)
    with one_weight_gradient():
        losses = terms(rows, late_first=late_first)
    total = weighted(factors, losses)
    if others_before:
        torch.autograd.grad(losses[0], inputs, retain_graph=True)
        torch.autograd.grad(sum(losses), rows["hidden"], retain_graph=True)
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(total, inputs, retain_graph=True), expected)


@pytest.mark.parametrize("most", [1, 2, 8])
def test_many_losses_share_and_each_may_be_used_alone(rows, most, monkeypatch):
    monkeypatch.setattr(weight_gradient, "_MOST", most)

    def losses():
        head = Head(rows["weight"])
        return [
            fused_token_loss(rows["hidden"], head, torch.full((7,), i), lambda logprobs, _: logprobs.square())[0]
            for i in range(5)
        ]

    apart = losses()
    with one_weight_gradient():
        shared = losses()
    for chosen in ([0], [4], [0, 1, 2, 3, 4], [1, 3]):
        expected = torch.autograd.grad(sum(apart[i] for i in chosen), rows["weight"], retain_graph=True)
        found = torch.autograd.grad(sum(shared[i] for i in chosen), rows["weight"], retain_graph=True)
        torch.testing.assert_close(found, expected)


def test_two_weights_do_not_mix(rows):
    other = rows["weight"].detach().clone().requires_grad_()
    with one_weight_gradient():
        scores = [
            fused_token_loss(rows["hidden"], Head(weight), torch.arange(7), lambda logprobs, _, by=by: by * logprobs)[0]
            for weight, by in ((rows["weight"], 1.0), (other, 2.0))
        ]
    sum(scores).backward()
    torch.testing.assert_close(other.grad, 2 * rows["weight"].grad)


def test_a_weight_that_was_changed_is_not_read_again(rows):
    with one_weight_gradient():
        losses = terms(rows)
    with torch.no_grad():
        rows["weight"].add_(1.0)
    for loss in losses:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.parametrize("objective", ["dapo", "gspo"])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_all_channels_and_both_sides_of_a_pair_form_one_buffer(new_model, batch, monkeypatch, objective, factor):
    """Which becomes the weight's gradient without a copy, and a factor on the total costs no product."""
    model = new_model(tied=False)
    buffers, formed = set(), []
    outer, product = one_pass._add_outer, one_pass._mm
    monkeypatch.setattr(one_pass, "_add_outer", lambda total, *rest: (buffers.add(total.data_ptr()), outer(total, *rest)))
    monkeypatch.setattr(one_pass, "_mm", lambda a, b, *, out: formed.append(b.shape) or product(a, b, out=out))
    options = ALL_ON.model_copy(update={"rlvr": RlvrConfig(objective=objective)})
    (factor * compose_loss(model, batch, options, strict=True).total).backward()
    assert buffers == {model.lm_head.weight.grad.data_ptr()}
    assert len(formed) == {"dapo": 2, "gspo": 3}[objective] + 3 + 3 + 1, "one for the teacher's entropy over a few rows"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_are_added_up_in_float32(rows, dtype):
    """Many small parts of a bf16 weight's gradient do not vanish beside a large one."""
    weight, hidden = rows["weight"].detach().to(dtype).requires_grad_(), rows["hidden"].detach().to(dtype)
    with one_weight_gradient():
        losses = [
            fused_token_loss(hidden, Head(weight), torch.arange(7), lambda logprobs, _, by=by: by * logprobs)[0]
            for by in (1.0, *[1 / 1024] * 7)
        ]
    sum(losses).backward()
    wide = weight.detach().float().requires_grad_()
    value, _ = fused_token_loss(hidden.float(), Head(wide), torch.arange(7), lambda logprobs, _: (1 + 7 / 1024) * logprobs)
    value.backward()
    torch.testing.assert_close(weight.grad, wide.grad.to(dtype), rtol=0 if dtype == torch.bfloat16 else 1e-5, atol=0)


USES = {
    "total": lambda loss: loss.total,
    "scaled": lambda loss: 8.0 * loss.total,
    "first": lambda loss: loss.lm_ce,
    "hint": lambda loss: loss.sdpo_jsd,
    "replay": lambda loss: loss.trace_replay_dpo,
    "mixed": lambda loss: loss.total + 0.5 * loss.sdpo_jsd - loss.trace_replay_dpo,
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("hint", [{}, {"form": "entropy_gated", "entropy_tau": 1.0}], ids=str)
def test_every_component_has_the_gradient_of_plain_logits(new_model, batch, tied, hint):
    options = ALL_ON.model_copy(update={"hint": HintConfig(weight=0.3, **hint)})
    model = new_model(dtype=torch.float64, tied=tied)
    plain = copy.deepcopy(model)
    plain.lm_head = torch.nn.Sequential(plain.lm_head)
    for name, use in USES.items():
        found = []
        for either in (model, plain):
            either.zero_grad()
            loss = compose_loss(either, batch, options, strict=True)
            use(loss).backward()
            found.append([None if p.grad is None else p.grad.clone() for p in either.parameters()])
        for ours, expected in zip(*found, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")
