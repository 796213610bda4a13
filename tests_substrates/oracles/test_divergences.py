"""Divergences and log-probs beside TRL's and liger's: values and gradients at float32 rounding, plain and fused."""

from __future__ import annotations

import pytest
import torch
from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss
from torch.testing import assert_close
from trl.experimental.gkd import GKDTrainer
from trl.experimental.sdpo import loss_utils
from trl.kernels.chunked_divergence import ChunkedDivergenceFunction
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from composer_replication.distillation import (
    GeneralizedJSD,
    SampledToken,
    fused_divergence,
    generalized_jsd_loss,
    generalized_jsd_per_token,
    top_k_jsd_per_token,
)
from composer_replication.kernels import Head, TeacherRows, fused_logprobs, fused_token_loss
from composer_replication.loss.forward import FusedRows, divergence_of

BETAS = [0.0, 0.3, 0.5, 1.0]
ROWS, HIDDEN, VOCABULARY = 24, 16, 503


@pytest.fixture
def rows():
    """Student hidden states and weight with gradient, teacher's without."""
    torch.manual_seed(0)
    hidden = torch.randn(ROWS, HIDDEN, requires_grad=True)
    weight = (torch.randn(VOCABULARY, HIDDEN) / 2).requires_grad_()
    return hidden, weight, torch.randn(ROWS, HIDDEN), torch.randn(VOCABULARY, HIDDEN) / 2


@pytest.fixture
def logits():
    torch.manual_seed(1)
    return torch.randn(3, 8, VOCABULARY, requires_grad=True), torch.randn(3, 8, VOCABULARY)


def fused(rows, beta, weights=None):
    hidden, weight, taught, taught_weight = rows
    weights = torch.ones(len(hidden)) if weights is None else weights
    value, per_row = fused_divergence(
        hidden, Head(weight), [TeacherRows(taught, Head(taught_weight))], GeneralizedJSD(beta), weights, rows_per_chunk=7
    )
    return value, per_row, torch.autograd.grad(value, (hidden, weight))


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_gkd(logits, beta, temperature):
    student, teacher = logits
    labels = torch.randint(0, 2, student.shape[:-1]) * 7 - 100 * (torch.rand(student.shape[:-1]) < 0.3)
    labels = torch.where(labels < 0, -100, labels)
    for options in ({"labels": labels}, {}):
        ours = generalized_jsd_loss(student, teacher, beta=beta, temperature=temperature, **options)
        theirs = GKDTrainer.generalized_jsd_loss(student, teacher, beta=beta, temperature=temperature, **options)
        assert_close(ours, theirs)
        assert_close(*(torch.autograd.grad(loss, student)[0] for loss in (ours, theirs)))


@pytest.mark.parametrize("alpha", BETAS)
def test_sdpo_full(logits, alpha):
    student, teacher = logits
    theirs = loss_utils.compute_full_logit_self_distillation_loss(student, teacher, distillation_alpha=alpha)
    assert_close(generalized_jsd_per_token(student, teacher, beta=alpha), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", BETAS)
@pytest.mark.parametrize("tail", [True, False])
def test_sdpo_top_k(logits, alpha, tail):
    student, teacher = logits
    ours = top_k_jsd_per_token(student, teacher, k=20, beta=alpha, tail=tail)
    theirs = loss_utils.compute_topk_self_distillation_loss(
        student, teacher, distillation_topk=20, distillation_alpha=alpha, distillation_add_tail=tail
    )
    assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert_close(*(torch.autograd.grad(loss.sum(), student)[0] for loss in (ours, theirs)))


def test_sdpo_sampled_token(rows):
    hidden, weight, taught, taught_weight = rows
    targets = torch.randint(VOCABULARY, (ROWS,))
    student, teacher = FusedRows(hidden, Head(weight)), FusedRows(taught, Head(taught_weight))
    value, _ = divergence_of(student, [(1.0, teacher)], targets, SampledToken(), torch.ones(ROWS), 1.0)
    theirs = loss_utils.compute_sampled_token_self_distillation_loss(
        (hidden @ weight.T)[None], (taught @ taught_weight.T)[None], targets[None], distillation_alpha=1.0
    ).sum()
    assert_close(value, theirs)
    assert_close(*(torch.autograd.grad(loss, (hidden, weight)) for loss in (value, theirs)))


@pytest.mark.parametrize("beta", BETAS)
def test_trl_chunked_divergence(rows, beta):
    hidden, weight, taught, taught_weight = rows
    _, per_row, gradients = fused(rows, beta)
    theirs, _ = ChunkedDivergenceFunction.apply(hidden, weight, None, taught, taught_weight, None, beta, 1.0)
    assert_close(per_row, theirs.detach(), rtol=1e-5, atol=1e-6)
    assert_close(gradients, torch.autograd.grad(theirs.sum(), (hidden, weight)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beta", BETAS)
def test_liger_jsd(rows, beta):
    hidden, weight, taught, taught_weight = rows
    value, _, gradients = fused(rows, beta, torch.full((ROWS,), 1.0 / ROWS))
    loss = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=beta, temperature=1.0, compiled=False)
    theirs = loss(hidden, weight, taught, taught_weight, torch.zeros(ROWS, dtype=torch.int64))
    assert_close(value, theirs, rtol=1e-5, atol=1e-6)
    assert_close(gradients, torch.autograd.grad(theirs, (hidden, weight)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_trl_chunked_logprob(rows, softcap):
    hidden, weight, *_ = rows
    targets = torch.randint(VOCABULARY, (ROWS,))
    head = Head(weight, None, 0.5, softcap)
    scores = fused_logprobs(hidden, head, targets, temperature=0.8, rows_per_chunk=5)
    theirs, entropy, *_ = ChunkedLogProbFunction.apply(hidden, weight, None, targets, 0.8, 128, softcap, 0.5, ("entropy",))
    assert_close(scores.logprobs, theirs)
    assert_close(scores.entropy, entropy.detach(), rtol=1e-5, atol=1e-5)
    weights = torch.rand(ROWS)
    ours, _ = fused_token_loss(hidden, head, targets, lambda lp, at: -weights[at] * lp, temperature=0.8, rows_per_chunk=5)
    assert_close(*(torch.autograd.grad(loss, (hidden, weight)) for loss in (ours, (-weights * theirs).sum())))
