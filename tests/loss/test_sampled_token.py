"""Distillation on sampled tokens, and the forms of the hint channel's loss that are not one divergence: against float64 loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from composer_replication.config import HintConfig, LossConfig, ReplayConfig
from composer_replication.distillation import (
    EntropyGatedOPD,
    GatedForwardKL,
    SampledToken,
    TopKJSD,
    fused_entropy_gated,
    sampled_token_per_token,
)
from composer_replication.kernels import Head, TeacherRows, fused_teacher_logprobs, one_pass
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.channels.hint import divergence_form
from composer_replication.loss.forward import FusedRows, PlainRows, divergence_of

N, H, V = 7, 5, 23


@pytest.fixture
def sides():
    torch.manual_seed(0)
    new = lambda *shape: torch.randn(*shape, dtype=torch.float64)  # noqa: E731
    student = FusedRows(new(N, H).requires_grad_(), Head(new(V, H).requires_grad_()))
    teacher = [(0.7, FusedRows(new(N, H), Head(new(V, H)))), (0.3, FusedRows(new(N, H), Head(new(V, H), new(V), softcap=2.0)))]
    return student, teacher, torch.randint(V, (N,)), torch.rand(N, dtype=torch.float64)


def log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def tables(student, teacher, temperature):
    mixed = sum(share * rows.logits().detach().numpy() for share, rows in teacher)
    return log_softmax(student.logits().detach().numpy() / temperature), log_softmax(mixed / temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_gradient_is_that_of_the_policy_gradient(sides, temperature):
    """sum_t w_t (log s - log t) d log s(y) / dz = (log s - log t) (onehot - s) / temperature."""
    student, teacher, tokens, weights = sides
    log_s, log_t = tables(student, teacher, temperature)
    value, found = divergence_of(student, teacher, tokens, SampledToken(), weights, temperature)
    chosen = np.arange(N), tokens.numpy()
    advantage = log_t[chosen] - log_s[chosen]
    assert value.item() == pytest.approx(-(weights.numpy() * advantage * log_s[chosen]).sum(), rel=1e-9)
    np.testing.assert_allclose(found.numpy(), -advantage, rtol=1e-9)
    slope = (np.eye(V)[tokens] - np.exp(log_s)) * (-advantage * weights.numpy())[:, None] / temperature
    d_hidden, d_weight = torch.autograd.grad(value, (student.hidden, student.head.weight))
    np.testing.assert_allclose(d_hidden.numpy(), slope @ student.head.weight.detach().numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(d_weight.numpy(), slope.T @ student.hidden.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_over_all_tokens_it_is_the_reverse_kl():
    """E_{y ~ s} of the estimate is KL(s || t), and of its gradient the KL's gradient."""
    torch.manual_seed(0)
    z = torch.randn(V, dtype=torch.float64, requires_grad=True)
    log_s, log_t = z.log_softmax(-1), torch.randn(V, dtype=torch.float64).log_softmax(-1)
    (expected,) = torch.autograd.grad((log_s.exp() * (log_s - log_t)).sum(), z, retain_graph=True)
    (found,) = torch.autograd.grad((log_s.exp().detach() * sampled_token_per_token(log_s, log_t)).sum(), z)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("tau", [0.0, 1.9, 10.0])
def test_the_papers_form_adds_a_term_where_the_teacher_is_unsure(sides, tau):
    student, teacher, tokens, weights = sides
    log_s, log_t = tables(student, teacher, 0.9)
    value, found = divergence_of(student, teacher, tokens, EntropyGatedOPD(tau, 4, 0.5), weights, 0.9)
    total, gates = 0.0, []
    for i in range(N):
        advantage = log_t[i, tokens[i]] - log_s[i, tokens[i]]
        best = np.argsort(-log_t[i])[:4]
        q = np.exp(log_t[i, best]) / np.exp(log_t[i, best]).sum()
        gates.append(-(np.exp(log_t[i]) * log_t[i]).sum() >= tau)
        added = 0.5 * gates[-1] * (q * (np.log(q) - log_s[i, best])).sum()
        total += float(weights[i]) * (-advantage * log_s[i, tokens[i]] + added)
        assert found[i].item() == pytest.approx(-advantage + added, rel=1e-9)
    assert value.item() == pytest.approx(total, rel=1e-9)
    assert {0.0: all(gates), 1.9: any(gates) and not all(gates), 10.0: not any(gates)}[tau]


@pytest.mark.parametrize(
    "form", [SampledToken(), EntropyGatedOPD(1.0), GatedForwardKL(1.0), TopKJSD(5, 0.5), TopKJSD(5, 0.0, tail=False)]
)
def test_plain_logits_give_the_same(sides, form):
    student, teacher, tokens, weights = sides
    inputs = (student.hidden, student.head.weight)
    plain = [(share, PlainRows(rows.logits())) for share, rows in teacher]
    results = [
        divergence_of(ours, theirs, tokens, form, weights, 1.3)
        for ours, theirs in ((student, teacher), (PlainRows(student.logits()), plain), (student, [teacher[0], plain[1]]))
    ]
    expected = torch.autograd.grad(results[0][0], inputs)
    for value, found in results[1:]:
        torch.testing.assert_close(value, results[0][0])
        torch.testing.assert_close(found, results[0][1])
        for a, b in zip(torch.autograd.grad(value, inputs), expected, strict=True):
            torch.testing.assert_close(a, b)


def test_teacher_log_probs_do_not_depend_on_the_chunk(sides):
    _, teacher, tokens, _ = sides
    parts = [TeacherRows(rows.hidden, rows.head, share) for share, rows in teacher]
    whole = fused_teacher_logprobs(parts, tokens, temperature=0.8)
    for rows in (1, 3, N):
        torch.testing.assert_close(fused_teacher_logprobs(parts, tokens, temperature=0.8, rows_per_chunk=rows), whole)
    assert fused_teacher_logprobs(parts, tokens[:0], temperature=0.8).shape == (0,)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        fused_teacher_logprobs(parts, tokens, temperature=0.0)


def test_compose_loss_takes_any_form(new_model, new_maker):
    batch = collate(*new_maker(0).everything(), pad_id=0)
    model = new_model()
    for hint in (HintConfig(form="sampled_token"), HintConfig(form="entropy_gated"), HintConfig(form="top_k_jsd", top_k=10)):
        loss = compose_loss(model, batch, LossConfig(hint=hint, replay=ReplayConfig(weight=0.0)))
        assert math.isfinite(loss.metrics[f"hint/{divergence_form(hint, None).name}/mean"])
        loss.total.backward()


@pytest.mark.parametrize("rows_per_chunk", [1, 3, None])
def test_the_papers_form_is_one_pass(sides, monkeypatch, rows_per_chunk):
    """Against autograd on plain logits: a head with a scale, rows of no weight, a column that is impossible on both sides."""
    student, teacher, tokens, weights = sides
    bias = torch.randn(V, dtype=torch.float64).index_fill(0, torch.tensor([V - 1]), -math.inf)
    tokens, weights = tokens % (V - 1), weights * torch.tensor([1, 0, 1, 1, 0, 1, 1])
    parts = [TeacherRows(rows.hidden, Head(rows.head.weight, bias)) for _, rows in teacher[:1]]
    still = student.hidden.detach()
    with torch.no_grad():
        advantage = (
            fused_teacher_logprobs(parts, tokens, temperature=0.9)
            - ((Head(student.head.weight, bias, 1.3).logits(still) / 0.9).log_softmax(-1))[torch.arange(N), tokens]
        )

    def surrogate(hidden, weight):
        """What has the loss's gradient where the advantage is held still."""
        log_s = (Head(weight, bias, 1.3).logits(hidden) / 0.9).log_softmax(-1)
        log_t = (parts[0].head.logits(parts[0].hidden) / 0.9).log_softmax(-1)
        gated = GatedForwardKL(1.9, 4).per_token(log_s, log_t)
        return (weights * (0.5 * gated - advantage * log_s[torch.arange(N), tokens])).sum()

    inputs = (student.hidden, student.head.weight)
    expected = torch.autograd.grad(surrogate(*inputs), inputs)
    head = Head(student.head.weight, bias, 1.3)
    form = EntropyGatedOPD(1.9, 4, 0.5)
    products, real = [], one_pass._mm
    monkeypatch.setattr(one_pass, "_mm", lambda a, b, *, out: products.append(b.shape) or real(a, b, out=out))
    value, found = fused_entropy_gated(
        student.hidden, head, parts, tokens, form, weights, temperature=0.9, rows_per_chunk=rows_per_chunk
    )
    assert len(products) == 3 * math.ceil(N / (rows_per_chunk or N))
    torch.testing.assert_close(value, surrogate(*inputs))
    assert torch.isfinite(found).all()
    for ours, theirs in zip(torch.autograd.grad(value, inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("alpha", "products"), [(1.0, 3), (0.0, 3)])
def test_the_papers_form_costs_four_products(sides, monkeypatch, alpha, products):
    """Student, teacher, hidden states, and the weight's; where nothing is added, nothing of it is computed."""
    student, teacher, tokens, weights = sides
    formed, real, outer = [], one_pass._mm, one_pass._add_outer
    monkeypatch.setattr(one_pass, "_mm", lambda a, b, *, out: formed.append("mm") or real(a, b, out=out))
    monkeypatch.setattr(one_pass, "_add_outer", lambda *args: formed.append("outer") or outer(*args))
    if alpha == 0.0:
        monkeypatch.setattr(Tensor, "topk", lambda *_, **__: pytest.fail("a term of weight 0 was computed"))
    value, found = divergence_of(student, teacher[:1], tokens, EntropyGatedOPD(0.0, alpha=alpha), weights, 1.0)
    value.backward()
    assert sorted(formed) == ["mm"] * products + ["outer"]
    if alpha == 0.0:
        expected, same = divergence_of(student, teacher[:1], tokens, SampledToken(), weights, 1.0)
        assert torch.equal(value, expected)
        assert torch.equal(found, same)


def test_rows_of_the_papers_form_must_agree(sides):
    student, teacher, tokens, weights = sides
    parts = [TeacherRows(rows.hidden, rows.head, share) for share, rows in teacher]
    with pytest.raises(ValueError, match=r"expected hidden \[N, H\], tokens \[N\] and weights \[N\]"):
        fused_entropy_gated(student.hidden, student.head, parts, tokens[1:], EntropyGatedOPD(), weights)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        fused_entropy_gated(student.hidden, student.head, parts, tokens, EntropyGatedOPD(), weights, temperature=0.0)
