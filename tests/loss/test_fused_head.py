"""Losses fused with the head: the same values and gradients as by ordinary operations, whatever the chunks."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.distillation import TAID, EntropyAwareOPD, GatedForwardKL, GeneralizedJSD, TopKJSD, fused_divergence
from composer_replication.kernels import Head, TeacherRows, blocks, by_triton, fused_logprobs, fused_token_loss, one_pass

DIVERGENCES = [
    GeneralizedJSD(0.0),
    GeneralizedJSD(1.0),
    GeneralizedJSD(0.5),
    GeneralizedJSD(0.3, "continuous"),
    GeneralizedJSD(0.0, token_clip=0.05),
    GeneralizedJSD(1.0, token_clip=0.05),
    GeneralizedJSD(0.7, token_clip=0.01),
    TAID(0.0),
    TAID(0.6),
    TAID(1.0),
    EntropyAwareOPD(2.0),
    EntropyAwareOPD(),
    TopKJSD(4, 0.5),
    TopKJSD(4, 1.0, tail=False, support="teacher"),
    TopKJSD(1000, 0.0),
    GatedForwardKL(tau=1.2, k=4),
]
HEADS = [(False, 1.0, None), (True, 1.5, None), (True, 0.5, 3.0)]


def head_of(vocabulary, hidden, *, bias=False, scale=1.0, softcap=None, dtype=torch.float64):
    weight = torch.randn(vocabulary, hidden, dtype=dtype, requires_grad=True)
    return Head(weight, torch.randn(vocabulary, dtype=dtype, requires_grad=True) if bias else None, scale, softcap)


def inputs_of(head):
    return [x for x in (head.weight, head.bias) if x is not None]


def detached(head):
    return Head(head.weight.detach(), None if head.bias is None else head.bias.detach(), head.scale, head.softcap)


@pytest.mark.parametrize("kind", HEADS, ids=str)
@pytest.mark.parametrize("rows_per_chunk", [1, 5, 64, None])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_token_loss_is_that_of_the_logits(kind, rows_per_chunk, temperature):
    torch.manual_seed(0)
    bias, scale, softcap = kind
    head = head_of(31, 8, bias=bias, scale=scale, softcap=softcap)
    hidden = torch.randn(13, 8, dtype=torch.float64, requires_grad=True)
    targets, weights = torch.randint(31, (13,)), torch.rand(13, dtype=torch.float64)

    def loss(logprobs, rows):
        return weights[rows] * (2 * logprobs.exp() - logprobs**2)

    distribution = torch.distributions.Categorical(logits=head.logits(hidden) / temperature)
    expected = loss(distribution.log_prob(targets), slice(None)).sum()
    inputs = [hidden, *inputs_of(head)]
    gradients = torch.autograd.grad(expected, inputs, retain_graph=True)
    options = {"temperature": temperature, "rows_per_chunk": rows_per_chunk}

    value, scores = fused_token_loss(hidden, head, targets, loss, **options)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(scores.logprobs, distribution.log_prob(targets))
    torch.testing.assert_close(scores.entropy, distribution.entropy())
    torch.testing.assert_close(torch.autograd.grad(value, inputs), gradients)

    scores = fused_logprobs(hidden, head, targets, **options)
    torch.testing.assert_close(scores.logprobs, distribution.log_prob(targets))
    torch.testing.assert_close(torch.autograd.grad(loss(scores.logprobs, slice(None)).sum(), inputs), gradients)


@pytest.mark.parametrize("kind", HEADS, ids=str)
@pytest.mark.parametrize("rows_per_chunk", [5, None])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_weighted_entropies_are_those_of_the_logits(kind, rows_per_chunk, temperature):
    """Beside a token loss, and beside differentiable log-probs; a column of -inf has no part in them."""
    torch.manual_seed(0)
    bias, scale, softcap = kind
    head = head_of(31, 8, bias=bias, scale=scale, softcap=softcap)
    if bias and softcap is None:
        head.bias.data[3] = -math.inf
    hidden = torch.randn(13, 8, dtype=torch.float64, requires_grad=True)
    targets, weights = torch.randint(4, 31, (13,)), torch.randn(13, dtype=torch.float64)
    logprobs = (head.logits(hidden) / temperature).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs.clamp(min=-1e4)).sum(-1)
    own = logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    inputs = [hidden, *inputs_of(head)]
    expected = (own**2 + weights * entropy).sum()
    gradients = torch.autograd.grad(expected, inputs)
    options = {"temperature": temperature, "rows_per_chunk": rows_per_chunk}

    value, scores = fused_token_loss(hidden, head, targets, lambda x, _: x**2, entropy_weights=weights, **options)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(scores.entropy, entropy)
    torch.testing.assert_close(torch.autograd.grad(value, inputs), gradients)

    scores = fused_logprobs(hidden, head, targets, **options)
    mixed = (scores.logprobs**2 + weights * scores.entropy).sum()
    torch.testing.assert_close(torch.autograd.grad(mixed, inputs, retain_graph=True), gradients)
    of_entropy = torch.autograd.grad((weights * scores.entropy).sum(), inputs)
    alone, _ = fused_token_loss(hidden, head, targets, lambda x, _: 0.0 * x, entropy_weights=weights, **options)
    torch.testing.assert_close(torch.autograd.grad(alone, inputs), of_entropy)

    with torch.no_grad():
        still, _ = fused_token_loss(hidden, head, targets, lambda x, _: x**2, entropy_weights=weights, **options)
    torch.testing.assert_close(still, expected.detach())


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
@pytest.mark.parametrize("kind", HEADS, ids=str)
@pytest.mark.parametrize("rows_per_chunk", [1, 5, None])
def test_a_divergence_is_that_of_the_logits(divergence, kind, rows_per_chunk):
    """The teacher is a mixture of two models, one of them with a hidden size of its own."""
    torch.manual_seed(0)
    bias, scale, softcap = kind
    head = head_of(31, 8, bias=bias, scale=scale, softcap=softcap)
    hidden = torch.randn(13, 8, dtype=torch.float64, requires_grad=True)
    other = Head(torch.randn(31, 5, dtype=torch.float64))
    teacher = [
        TeacherRows(torch.randn(13, 8, dtype=torch.float64), detached(head), 0.3),
        TeacherRows(torch.randn(13, 5, dtype=torch.float64), other, 0.7),
    ]
    weights = torch.rand(13, dtype=torch.float64)
    taught = sum(part.coefficient * part.head.logits(part.hidden) for part in teacher)
    per_row = divergence.per_token(head.logits(hidden) / 0.7, taught / 0.7)
    inputs = [hidden, *inputs_of(head)]
    expected = torch.autograd.grad((weights * per_row).sum(), inputs)
    value, found = fused_divergence(hidden, head, teacher, divergence, weights, temperature=0.7, rows_per_chunk=rows_per_chunk)
    torch.testing.assert_close(found, per_row.detach())
    torch.testing.assert_close(value, (weights * per_row).sum())
    torch.testing.assert_close(torch.autograd.grad(value, inputs), expected)


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
def test_gradients_are_those_of_the_value(divergence):
    """By finite differences; TAID's target holds the student still, which differences cannot."""
    if isinstance(divergence, TAID):
        divergence = TAID(1.0)
    torch.manual_seed(1)
    taught = [TeacherRows(torch.randn(3, 4, dtype=torch.float64), Head(torch.randn(6, 4, dtype=torch.float64)))]
    weights = torch.rand(3, dtype=torch.float64)

    def value(hidden, weight):
        return fused_divergence(hidden, Head(weight, None, 1.3, 5.0), taught, divergence, weights, rows_per_chunk=2)[0]

    hidden = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, (hidden, torch.randn(6, 4, dtype=torch.float64, requires_grad=True)))


def test_a_frozen_head_and_a_second_backward_pass():
    torch.manual_seed(0)
    head = detached(head_of(11, 4))
    hidden = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    value, _ = fused_token_loss(hidden, head, torch.arange(5), lambda logprobs, _rows: -logprobs)
    (3.0 * value).backward(retain_graph=True)
    first = hidden.grad.clone()
    value.backward()
    torch.testing.assert_close(hidden.grad, first + first / 3.0)
    assert head.weight.grad is None


def test_no_rows_are_a_zero_with_zero_gradients():
    head = head_of(11, 4)
    hidden = torch.zeros(0, 4, dtype=torch.float64, requires_grad=True)
    none = torch.zeros(0, dtype=torch.int64)
    value, _ = fused_token_loss(hidden, head, none, lambda logprobs, _rows: -logprobs)
    other, _ = fused_divergence(hidden, head, [TeacherRows(hidden.detach(), detached(head))], GeneralizedJSD(), none.double())
    (value + other).backward()
    assert value.item() == other.item() == 0.0
    assert not head.weight.grad.any()


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_columns_that_are_impossible_for_both_sides_do_nothing(beta):
    """A vocabulary padded with a bias of -inf: no NaN, and no gradient at the padding."""
    torch.manual_seed(0)
    weight = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(9, dtype=torch.float64).index_fill(0, torch.tensor([7, 8]), -math.inf)
    hidden, other = torch.randn(2, 5, 4, dtype=torch.float64)
    weights = torch.ones(5, dtype=torch.float64)
    padded, _ = fused_divergence(
        hidden, Head(weight, bias), [TeacherRows(other, Head(weight.detach(), bias))], GeneralizedJSD(beta), weights
    )
    short = weight.detach()[:7].requires_grad_()
    expected, _ = fused_divergence(hidden, Head(short), [TeacherRows(other, Head(short.detach()))], GeneralizedJSD(beta), weights)
    torch.testing.assert_close(padded, expected)
    padded.backward()
    expected.backward()
    torch.testing.assert_close(weight.grad[:7], short.grad)
    assert not weight.grad[7:].any()
    scored, scores = fused_token_loss(hidden, Head(weight, bias), torch.arange(5), lambda logprobs, _rows: -logprobs)
    assert torch.isfinite(scored)
    assert torch.isfinite(scores.entropy).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_multiplied_in_float32(dtype):
    """As if weight and hidden states had been widened first; only the gradients are rounded to their types."""
    torch.manual_seed(0)
    weight = torch.randn(20_000, 16).to(dtype).requires_grad_()
    hidden = torch.randn(6, 16).to(dtype).requires_grad_()
    taught = [TeacherRows(torch.randn(6, 16).to(dtype), Head(weight.detach()))]
    wide, wide_hidden = weight.detach().float().requires_grad_(), hidden.detach().float().requires_grad_()
    wide_taught = [TeacherRows(taught[0].hidden.float(), Head(wide.detach()))]
    value, found = fused_divergence(hidden, Head(weight), taught, GeneralizedJSD(0.5), torch.ones(6))
    expected, per_row = fused_divergence(wide_hidden, Head(wide), wide_taught, GeneralizedJSD(0.5), torch.ones(6))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, per_row)
    value.backward()
    expected.backward()
    assert weight.grad.dtype == dtype
    torch.testing.assert_close(weight.grad, wide.grad.to(dtype))
    torch.testing.assert_close(hidden.grad, wide_hidden.grad.to(dtype))


@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("peak", [6.0, 9.0, 12.0])
def test_a_product_that_rounds_its_operands_rounds_the_gradient_of_a_likely_token_no_more(monkeypatch, softcap, peak):
    """As on CUDA with bfloat16 weights: 1 - probability is formed before it is rounded, not left to a difference of products."""

    def rounding(a, b, *, out):
        return out.copy_(a.bfloat16().double() @ b.bfloat16().double())

    torch.manual_seed(0)
    weight = torch.randn(64, 16).bfloat16().double()
    targets = torch.arange(8)
    hidden = (peak * weight[targets] / weight[targets].norm(dim=-1, keepdim=True) ** 2 * 2).bfloat16().double().requires_grad_()
    head = Head(weight, softcap=softcap)
    exact = -torch.log_softmax(head.logits(hidden), -1).gather(-1, targets.unsqueeze(-1)).sum()
    (expected,) = torch.autograd.grad(exact, hidden)
    monkeypatch.setattr(one_pass, "_mm", rounding)
    value, _ = fused_token_loss(hidden, head, targets, lambda logprobs, _rows: -logprobs)
    (found,) = torch.autograd.grad(value, hidden)
    error = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < 2**-7


@pytest.mark.parametrize("how", [torch.no_grad, torch.inference_mode])
def test_losses_are_the_same_where_no_gradient_is_wanted(how):
    torch.manual_seed(0)
    head, hidden, targets = head_of(31, 8, softcap=3.0), torch.randn(5, 8, dtype=torch.float64), torch.arange(5)
    expected, _ = fused_token_loss(hidden, head, targets, lambda logprobs, _rows: logprobs**2)
    with how():
        factors = torch.ones(5, dtype=torch.float64)
        value, scores = fused_token_loss(hidden, head, targets, lambda logprobs, rows: factors[rows] * logprobs**2)
        assert torch.equal(scores.logprobs, fused_logprobs(hidden, head, targets).logprobs)
    assert not value.requires_grad
    assert torch.equal(value, expected.detach())


@settings(max_examples=40)
@given(
    rows=st.integers(1, 12),
    vocabulary=st.integers(2, 300),
    split=st.integers(1, 11),
    divergence=st.sampled_from(DIVERGENCES),
    seed=st.integers(0, 1000),
)
def test_order_chunks_and_splits_change_nothing(rows, vocabulary, split, divergence, seed):
    """A batch in another order, cut into chunks, or cut in two micro-batches adds up to the same value and gradients."""
    torch.manual_seed(seed)
    weight = torch.randn(vocabulary, 3, dtype=torch.float64, requires_grad=True)
    hidden, taught = torch.randn(2, rows, 3, dtype=torch.float64)
    weights = torch.rand(rows, dtype=torch.float64)

    def run(index, chunk):
        teacher = [TeacherRows(taught[index], Head(weight.detach()))]
        value, _ = fused_divergence(hidden[index], Head(weight), teacher, divergence, weights[index], rows_per_chunk=chunk)
        return value, torch.autograd.grad(value, weight)[0]

    value, gradient = run(torch.arange(rows), None)
    for index, chunk in ((torch.randperm(rows), None), (torch.arange(rows), split)):
        other, other_gradient = run(index, chunk)
        torch.testing.assert_close(other, value)
        torch.testing.assert_close(other_gradient, gradient)
    parts = [run(part, None) for part in torch.arange(rows).split(split)]
    torch.testing.assert_close(sum(part for part, _ in parts), value)
    torch.testing.assert_close(sum(part for _, part in parts), gradient)


@settings(max_examples=40)
@given(vocabulary=st.integers(2, 200), beta=st.floats(0.05, 0.95), shift=st.floats(-50, 50), seed=st.integers(0, 1000))
def test_what_a_divergence_is(vocabulary, beta, shift, seed):
    """Non-negative, zero between equals, D_b(s, t) = D_{1-b}(t, s), at most log 2 at b = 1/2, blind to a shift of the logits."""
    torch.manual_seed(seed)
    identity = Head(torch.eye(vocabulary, dtype=torch.float64))
    s, t = 3 * torch.randn(2, 4, vocabulary, dtype=torch.float64)
    ones = torch.ones(4, dtype=torch.float64)

    def divergence(student, teacher, b):
        return fused_divergence(student, identity, [TeacherRows(teacher, identity)], GeneralizedJSD(b), ones)[1]

    for b in (0.0, beta, 1.0):
        assert (divergence(s, t, b) >= 0).all()
        assert divergence(s, s, b).abs().max() < 1e-14
        torch.testing.assert_close(divergence(s + shift, t, b), divergence(s, t, b))
        torch.testing.assert_close(divergence(s, t, b), divergence(t, s, 1.0 - b))
    assert (divergence(s, t, 0.5) <= math.log(2) + 1e-12).all()


def test_a_vocabulary_of_a_hundred_thousand_and_a_divergence_of_a_ten_millionth():
    """In float32, where the sum of s log(s / t) has lost all digits."""
    torch.manual_seed(0)
    weight = torch.randn(100_003, 8)
    hidden = torch.randn(2, 8)
    taught = hidden + 1e-4 * torch.randn(2, 8)
    for beta in (0.0, 0.5, 1.0):
        _, found = fused_divergence(
            hidden, Head(weight), [TeacherRows(taught, Head(weight))], GeneralizedJSD(beta), torch.ones(2)
        )
        double = [TeacherRows(taught.double(), Head(weight.double()))]
        _, exact = fused_divergence(hidden.double(), Head(weight.double()), double, GeneralizedJSD(beta), torch.ones(2).double())
        assert exact.max() < 1e-6
        torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0.0)


def test_without_triton_where_it_is_wanted_one_warning_and_the_same_loss(monkeypatch):
    head, hidden = head_of(7, 3, dtype=torch.float32), torch.randn(4, 3)

    def loss():
        return fused_token_loss(hidden, head, torch.arange(4), lambda logprobs, _rows: -logprobs)[0]

    expected = loss()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    blocks._triton_is_there.cache_clear()
    with pytest.warns(UserWarning, match="triton is not installed.*pip install triton"):
        assert not by_triton(torch.zeros(1, 2))
    assert torch.equal(loss(), expected)  # and no second warning, which would be an error
    blocks._triton_is_there.cache_clear()


def test_bad_shapes_are_refused():
    head = head_of(7, 3)
    hidden = torch.randn(4, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"expected hidden \[N, H\] and targets \[N\]"):
        fused_logprobs(hidden, head, torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match="temperature"):
        fused_logprobs(hidden, head, torch.zeros(4, dtype=torch.int64), temperature=0.0)
    with pytest.raises(ValueError, match="rows disagree"):
        fused_divergence(hidden, head, [TeacherRows(hidden[:2], head)], GeneralizedJSD(), torch.ones(4))
