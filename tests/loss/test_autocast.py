"""Under autocast the fused head multiplies what a linear layer would multiply, rounded operands, and does all else in float32."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from composer_replication.config import HintConfig, LossConfig, ReplayConfig, RlvrConfig
from composer_replication.distillation import TAID, EntropyAwareOPD, GeneralizedJSD, fused_divergence
from composer_replication.kernels import Head, TeacherRows, fused_logprobs, fused_token_loss
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.forward import evaluating

BF16 = torch.autocast("cpu", torch.bfloat16)


@pytest.fixture
def head():
    torch.manual_seed(0)
    return Head(torch.randn(53, 16, requires_grad=True), torch.randn(53, requires_grad=True), 0.5)


@pytest.fixture
def hidden():
    return torch.randn(9, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()


def in_float64(hidden, head):
    """Operands as bf16 holds them, in a type in which nothing more is lost."""
    hidden, weight = (x.detach().bfloat16().double().requires_grad_() for x in (hidden, head.weight))
    return hidden, Head(weight, head.bias.detach().double().requires_grad_(), head.scale)


def gradients(value, hidden, head):
    return [x.double() for x in torch.autograd.grad(value, [hidden, head.weight, head.bias])]


@pytest.mark.parametrize("divergence", [GeneralizedJSD(0.5), TAID(0.6), EntropyAwareOPD(3.0)], ids=str)
def test_a_divergence_loses_only_the_rounding_of_its_operands(hidden, head, divergence):
    weights = torch.rand(9)
    taught = torch.randn(9, 16)
    with BF16:
        value, per_row = fused_divergence(hidden, head, [TeacherRows(taught, head)], divergence, weights)
    found = gradients(value, hidden, head)
    hidden, head = in_float64(hidden, head)
    logits = head.logits(taught.bfloat16().double()).detach()
    expected = divergence.per_token(head.logits(hidden), logits)
    torch.testing.assert_close(per_row.double(), expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(found, gradients((weights * expected).sum(), hidden, head), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["loss", "log-probs"])
def test_log_probs_lose_only_the_rounding_of_their_operands(hidden, head, form):
    """Also where the backward pass, which is outside of autocast, projects again."""
    targets = torch.arange(9)
    with BF16:
        if form == "loss":
            value, scores = fused_token_loss(hidden, head, targets, lambda logprobs, _rows: logprobs.square())
        else:
            scores = fused_logprobs(hidden, head, targets)
            value = scores.logprobs.square().sum()
    found = gradients(value, hidden, head)
    hidden, head = in_float64(hidden, head)
    expected = head.logits(hidden).log_softmax(-1)
    entropy = torch.distributions.Categorical(logits=expected.detach()).entropy()
    torch.testing.assert_close(scores.entropy.double(), entropy, rtol=1e-5, atol=1e-6)
    expected = expected.gather(-1, targets[:, None])
    torch.testing.assert_close(value.double(), expected.square().sum(), rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(found, gradients(expected.square().sum(), hidden, head), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_float64_stays_as_it_is(hidden, head):
    hidden, head = in_float64(hidden, head)
    hidden = (hidden + 1e-9).detach()
    expected = fused_logprobs(hidden, head, torch.arange(9)).logprobs
    with BF16:
        assert torch.equal(fused_logprobs(hidden, head, torch.arange(9)).logprobs, expected)


@pytest.mark.parametrize(("tied", "options"), [(True, ({}, "jsd", None)), (False, ({"objective": "gspo"}, "taid", 0.6))], ids=str)
def test_all_channels_are_close_to_those_of_the_plain_head(new_model, new_maker, tied, options):
    batch = collate(*new_maker(0).everything(), pad_id=0)
    rlvr, form, taid_t = options
    hint, replay = HintConfig(weight=0.5, form=form), ReplayConfig(weight=0.3)
    chosen = {"options": LossConfig(rlvr=RlvrConfig(**rlvr), hint=hint, replay=replay), "taid_t": taid_t, "strict": True}
    model = new_model(tied=tied)
    plain = copy.deepcopy(model)
    plain.lm_head = torch.nn.Sequential(plain.lm_head)
    exact = compose_loss(model, batch, **chosen).total
    expected = torch.autograd.grad(exact, list(model.parameters()))
    errors = []
    for one in (copy.deepcopy(model), plain):
        with BF16:
            loss = compose_loss(one, batch, **chosen)
        assert loss.total.dtype == torch.float32
        assert loss.total.item() == pytest.approx(exact.item(), rel=0.02)
        found = torch.autograd.grad(loss.total, list(one.parameters()))  # raises where a parameter has none
        errors.append(sum((a - b).square().sum() for a, b in zip(found, expected, strict=True)).sqrt())
        assert errors[-1] < 0.05 * sum(b.square().sum() for b in expected).sqrt()
    assert errors[0] < 1.1 * errors[1]


def test_a_pass_without_gradient_leaves_nothing_to_later_ones(monkeypatch):
    """Autocast keeps the casts of weights; those made without gradient would cut the graph of a pass that needs one."""
    cleared = []
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: cleared.append(torch.is_grad_enabled()))
    with evaluating(torch.nn.Linear(2, 2)):
        assert not torch.is_grad_enabled()
    assert cleared == [True]


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_the_proof_of_the_head_holds_under_accelerates_mixed_precision(new_model, new_maker, inside):
    """Accelerate casts what the model returns to float32, but the head has rounded it before."""
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        model = accelerator.prepare(new_model())
        batch = collate(*new_maker(0).everything(), pad_id=0)
        with accelerator.autocast() if inside else contextlib.nullcontext():
            found = compose_loss(model, batch, alpha_sdpo=0.5, beta_replay=0.3)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert found.fallbacks == {}
