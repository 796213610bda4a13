from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence

from composer_replication.distillation import generalized_jsd_loss, generalized_jsd_per_token

BETAS = [0.0, 0.1, 0.5, 0.8, 1.0]
INF = float("inf")


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def kl(p, q):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, p * np.log(p / q), 0.0).sum(-1)


def reference(z_s, z_t, beta, temperature=1.0):
    """GKD equation 1 in float64: forward KL at 0, reverse KL at 1, else b KL(T||M) + (1-b) KL(S||M) with M = (1-b) S + b T."""
    s, t = softmax(np.asarray(z_s, np.float64) / temperature), softmax(np.asarray(z_t, np.float64) / temperature)
    if beta == 0:
        return kl(t, s)
    if beta == 1:
        return kl(s, t)
    m = (1 - beta) * s + beta * t
    return beta * kl(t, m) + (1 - beta) * kl(s, m)


def pair(seed, rows=4, v=11, spread=2.0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, spread, (rows, v)), rng.normal(0, spread, (rows, v))


def both(seed, **kw):
    s, t = pair(seed, **kw)
    return torch.tensor(s), torch.tensor(t)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.5])
@pytest.mark.parametrize("spread", [0.1, 3.0, 40.0])
def test_per_token_matches_the_reference(beta, temperature, spread):
    z_s, z_t = pair(1, spread=spread)
    got = generalized_jsd_per_token(torch.tensor(z_s), torch.tensor(z_t), beta=beta, temperature=temperature)
    np.testing.assert_allclose(got.numpy(), reference(z_s, z_t, beta, temperature), rtol=1e-9, atol=1e-14)


def test_ends_against_torch_distributions():
    s, t = both(2)
    student, teacher = Categorical(logits=s), Categorical(logits=t)
    torch.testing.assert_close(generalized_jsd_per_token(s, t, beta=0.0), kl_divergence(teacher, student))
    torch.testing.assert_close(generalized_jsd_per_token(s, t, beta=1.0), kl_divergence(student, teacher))


def test_trl_scale_jumps_and_continuous_scale_does_not():
    s, t = both(3)
    forward, reverse = (generalized_jsd_per_token(s, t, beta=b) for b in (0.0, 1.0))
    for end, near in ((forward, 1e-6), (reverse, 1 - 1e-6)):
        with pytest.warns(UserWarning, match="far weaker"):
            assert (generalized_jsd_per_token(s, t, beta=near) < 1e-4 * end).all()
        torch.testing.assert_close(generalized_jsd_per_token(s, t, beta=near, scale="continuous"), end, rtol=1e-3, atol=1e-8)
    half = generalized_jsd_per_token(s, t, beta=0.5)
    torch.testing.assert_close(generalized_jsd_per_token(s, t, beta=0.5, scale="continuous"), 4 * half)


@pytest.mark.parametrize("beta", BETAS)
def test_tiny_divergences_keep_their_digits_in_float32(beta):
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, (2, 5000)).astype(np.float32)
    nudged = z + rng.normal(0, 1e-3, z.shape).astype(np.float32)
    got = generalized_jsd_per_token(torch.tensor(z), torch.tensor(nudged), beta=beta)
    truth = reference(z, nudged, beta)
    assert (truth < 1e-6).all()
    np.testing.assert_allclose(got.numpy(), truth, rtol=5e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("beta", BETAS)
def test_half_precision_is_computed_in_float32(dtype, beta):
    s, t = (x.to(dtype) for x in both(4))
    got = generalized_jsd_per_token(s, t, beta=beta)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), reference(s.double().numpy(), t.double().numpy(), beta), rtol=2e-5)


# --- properties ------------------------------------------------------------------------------------------------------

SEEDS = st.integers(0, 10**6)


@given(SEEDS, st.sampled_from(BETAS), st.sampled_from([0.01, 1.0, 30.0]))
def test_non_negative_and_zero_only_at_equality(seed, beta, spread):
    s, t = both(seed, spread=spread)
    assert (generalized_jsd_per_token(s, t, beta=beta) > 0).all()
    torch.testing.assert_close(generalized_jsd_per_token(s, s, beta=beta), torch.zeros(4, dtype=s.dtype), rtol=0, atol=1e-16)


@given(SEEDS, st.floats(0.06, 0.94))
def test_symmetry_and_upper_bound(seed, beta):
    s, t = both(seed, spread=8.0)
    torch.testing.assert_close(generalized_jsd_per_token(s, t, beta=beta), generalized_jsd_per_token(t, s, beta=1 - beta))
    binary_entropy = -beta * math.log(beta) - (1 - beta) * math.log(1 - beta)
    assert (generalized_jsd_per_token(s, t, beta=beta) <= binary_entropy + 1e-12).all()


@given(SEEDS, st.sampled_from(BETAS), st.floats(-50, 50))
def test_shifting_the_logits_changes_nothing(seed, beta, shift):
    s, t = both(seed)
    torch.testing.assert_close(
        generalized_jsd_per_token(s + shift, t - 2 * shift, beta=beta), generalized_jsd_per_token(s, t, beta=beta)
    )


# --- gradients -------------------------------------------------------------------------------------------------------


def analytic_gradient(z_s, z_t, beta):
    s, t = softmax(z_s), softmax(z_t)
    if beta == 0:
        return s - t
    if beta == 1:
        return s * (np.log(s / t) - kl(s, t)[:, None])
    m = (1 - beta) * s + beta * t
    return (1 - beta) * s * (np.log(s / m) - kl(s, m)[:, None])


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("spread", [0.3, 3.0, 30.0])
def test_gradient_matches_the_closed_form_and_sums_to_zero(beta, spread):
    z_s, z_t = pair(6, spread=spread)
    s = torch.tensor(z_s, requires_grad=True)
    generalized_jsd_per_token(s, torch.tensor(z_t), beta=beta).sum().backward()
    np.testing.assert_allclose(s.grad.numpy(), analytic_gradient(z_s, z_t, beta), rtol=1e-8, atol=1e-13)
    np.testing.assert_allclose(s.grad.sum(-1).numpy(), 0.0, atol=1e-12)


@pytest.mark.parametrize("beta", BETAS)
def test_gradcheck_including_equal_entries(beta):
    s = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.5, -1.0, 2.0, 0.0]], dtype=torch.float64)
    t = torch.tensor([[0.0, 1.0, 3.0, 2.0], [0.5, -1.0, 2.0, 0.0]], dtype=torch.float64)
    ratio = t.log_softmax(-1) - s.log_softmax(-1)
    assert (ratio == 0).sum() == 6, "log-ratios of exactly 0, where the branches meet, beside others that are not"
    s.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: generalized_jsd_per_token(x, t, beta=beta), (s,))
    s, t = both(7)
    s.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: generalized_jsd_per_token(x, t, beta=beta, temperature=1.3), (s,))


@pytest.mark.parametrize("beta", BETAS)
def test_gradcheck_of_the_reduced_loss(beta):
    s, t = both(8)
    labels = torch.tensor([1, -100, 3, 2])
    s.requires_grad_()
    for options in ({}, {"top_k": 5}, {"reduction": "mean"}, {"token_clip": 0.3}):
        assert torch.autograd.gradcheck(lambda x, o=options: generalized_jsd_loss(x, t, labels, beta=beta, **o), (s,))


def test_the_teacher_never_has_a_gradient():
    s, t = both(9)
    s.requires_grad_()
    t.requires_grad_()
    for beta in BETAS:
        (generalized_jsd_per_token(s, t, beta=beta).sum() + generalized_jsd_loss(s, t, beta=beta)).backward()
    assert t.grad is None


def test_a_confident_wrong_student_is_moved_by_the_forward_kl_only():
    z_s, z_t = torch.tensor([[40.0, 0.0, 0.0]]), torch.tensor([[0.0, 40.0, 0.0]])
    size = {}
    for beta in (0.0, 0.5, 1.0):
        s = z_s.clone().requires_grad_()
        generalized_jsd_per_token(s, z_t, beta=beta).sum().backward()
        size[beta] = s.grad.abs().max().item()
    assert size[0.0] == pytest.approx(1.0)
    assert size[0.5] < 1e-6
    assert size[1.0] < 1e-6


# --- missing mass ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", BETAS)
def test_a_column_without_mass_on_both_sides_does_not_exist(beta):
    s, t = both(10)
    wide_s = torch.cat([s, torch.full((4, 2), -INF, dtype=s.dtype)], -1).requires_grad_()
    wide_t = torch.cat([t, torch.full((4, 2), -INF, dtype=s.dtype)], -1)
    narrow = s.clone().requires_grad_()
    got, expected = (generalized_jsd_per_token(x, y, beta=beta) for x, y in ((wide_s, wide_t), (narrow, t)))
    torch.testing.assert_close(got, expected)
    got.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(wide_s.grad[:, :-2], narrow.grad)
    assert (wide_s.grad[:, -2:] == 0).all()


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("side", ["student", "teacher"])
def test_mass_that_only_one_side_has(beta, side):
    z_s, z_t = pair(11)
    (z_s if side == "student" else z_t)[:, 3] = -INF
    s = torch.tensor(z_s, requires_grad=True)
    got = generalized_jsd_per_token(s, torch.tensor(z_t), beta=beta)
    if (side, beta) in {("student", 0.0), ("teacher", 1.0)}:
        assert (got == INF).all()
        return
    np.testing.assert_allclose(got.detach().numpy(), reference(z_s, z_t, beta), rtol=1e-9)
    got.sum().backward()
    assert torch.isfinite(s.grad).all()


@pytest.mark.parametrize("beta", BETAS)
def test_extreme_float32_logits_stay_finite(beta):
    s = torch.tensor([[1e4, 0.0, -1e4], [-300.0, 0.0, 300.0]], requires_grad=True)
    t = torch.tensor([[-1e4, 0.0, 1e4], [300.0, 0.0, -300.0]])
    got = generalized_jsd_per_token(s, t, beta=beta)
    got.sum().backward()
    assert torch.isfinite(got).all()
    assert torch.isfinite(s.grad).all()


# --- the reduced loss ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", BETAS)
def test_reductions(beta):
    rng = np.random.default_rng(12)
    z_s, z_t = rng.normal(0, 2, (2, 3, 7)), rng.normal(0, 2, (2, 3, 7))
    s, t = torch.tensor(z_s), torch.tensor(z_t)
    rows = reference(z_s, z_t, beta)
    labels = torch.tensor([[5, -100, 2], [-100, -100, 0]])
    kept = rows[labels.numpy() != -100].sum()
    assert generalized_jsd_loss(s, t, beta=beta).item() == pytest.approx(rows.sum() / 2)  # first dimension, not tokens
    assert generalized_jsd_loss(s, t, labels, beta=beta).item() == pytest.approx(kept / 3)
    assert generalized_jsd_loss(s, t, labels, beta=beta, reduction="sum").item() == pytest.approx(kept)
    assert generalized_jsd_loss(s, t, labels, beta=beta, reduction="mean").item() == pytest.approx(kept / 21)
    terms = generalized_jsd_loss(s, t, labels, beta=beta, reduction="none")
    assert terms.shape == (3, 7)
    assert terms.sum().item() == pytest.approx(kept)


def test_default_beta_is_one_half():
    s, t = both(13)
    assert generalized_jsd_loss(s, t).item() == pytest.approx(reference(s.numpy(), t.numpy(), 0.5).sum() / 4)


@pytest.mark.parametrize("beta", BETAS)
def test_top_k_is_the_teachers_and_renormalised(beta):
    z_s, z_t = pair(14)
    support = np.argsort(-z_t, -1)[:, :4]
    expected = reference(np.take_along_axis(z_s, support, -1), np.take_along_axis(z_t, support, -1), beta).sum() / 4
    assert generalized_jsd_loss(torch.tensor(z_s), torch.tensor(z_t), beta=beta, top_k=4).item() == pytest.approx(expected)


def test_token_clip_limits_each_vocabulary_entry():
    z_s, z_t = pair(15)
    s, t = softmax(z_s), softmax(z_t)
    expected = np.minimum(t * np.log(t / s), 0.05).sum() / 4
    got = generalized_jsd_loss(torch.tensor(z_s), torch.tensor(z_t), beta=0.0, token_clip=0.05)
    assert got.item() == pytest.approx(expected)
    assert got < generalized_jsd_loss(torch.tensor(z_s), torch.tensor(z_t), beta=0.0)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("alone", ["student", "teacher"])
def test_a_clipped_term_that_would_be_infinite_has_no_gradient(beta, alone):
    """As if its column's term were the clip, whatever the other columns do."""
    s, t = (torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(2))
    (t if alone == "student" else s)[0, 3] = -torch.inf
    s.requires_grad_()
    found = generalized_jsd_per_token(s, t, beta=beta, token_clip=0.02)
    (gradient,) = torch.autograd.grad(found.sum(), s)
    assert torch.isfinite(found).all()
    assert torch.isfinite(gradient).all()
    torch.testing.assert_close(gradient.sum(-1), torch.zeros(2, dtype=torch.float64))
    if beta == 1.0 and alone == "student":
        p, log_t = s.softmax(-1), t.log_softmax(-1)
        others = [i for i in range(7) if i != 3]
        terms = (p[0, others] * (p[0, others].log() - log_t[0, others])).clamp(max=0.02)
        expected = terms.sum() + 0.02
        torch.testing.assert_close(found[0], expected)
        torch.testing.assert_close(gradient[0], torch.autograd.grad(expected, s)[0][0])


def test_probabilities_instead_of_logits():
    z_s, z_t = pair(16)
    got = generalized_jsd_loss(torch.tensor(softmax(z_s)), torch.tensor(softmax(z_t)), logits_are_probs=True)
    assert got.item() == pytest.approx(reference(z_s, z_t, 0.5).sum() / 4)
    with pytest.raises(ValueError, match="temperature 1"):
        generalized_jsd_loss(torch.ones(1, 2), torch.ones(1, 2), logits_are_probs=True, temperature=2.0)


@pytest.mark.parametrize("beta", BETAS)
def test_a_probability_of_0_has_a_gradient(beta):
    s = torch.tensor([[0.7, 0.3, 0.0]], requires_grad=True)
    generalized_jsd_loss(s, torch.tensor([[0.5, 0.3, 0.2]]), beta=beta, logits_are_probs=True).backward()
    assert torch.isfinite(s.grad).all()
    assert s.grad[0, :2].any()


@pytest.mark.parametrize("reduction", ["batchmean", "sum", "mean"])
@pytest.mark.parametrize("beta", BETAS)
def test_all_masked_is_zero_with_zero_gradients_even_next_to_garbage(reduction, beta):
    s = torch.tensor([[[float("nan"), 1.0], [INF, 2.0]]], requires_grad=True)
    got = generalized_jsd_loss(s, torch.randn(1, 2, 2), torch.full((1, 2), -100), beta=beta, reduction=reduction)
    assert got.item() == 0.0
    got.backward()
    assert torch.equal(s.grad, torch.zeros(1, 2, 2))


def test_masked_rows_have_exactly_no_gradient_and_padding_changes_nothing():
    s, t = both(17)
    labels = torch.tensor([1, -100, 1, -100])
    s.requires_grad_()
    loss = generalized_jsd_loss(s[None], t[None], labels[None], beta=0.5)
    loss.backward()
    assert (s.grad[[1, 3]] == 0).all()
    order = torch.tensor([2, 0])
    torch.testing.assert_close(generalized_jsd_loss(s[order][None], t[order][None], labels[order][None], beta=0.5), loss)


def test_bad_arguments_raise():
    s, t = both(18)
    with pytest.raises(ValueError, match="differ in shape"):
        generalized_jsd_loss(s, t[:, :-1])
    with pytest.raises(ValueError, match="beta"):
        generalized_jsd_per_token(s, t, beta=1.5)
    with pytest.raises(ValueError, match="scale"):
        generalized_jsd_per_token(s, t, beta=0.5, scale="other")
    with pytest.raises(ValueError, match="temperature"):
        generalized_jsd_per_token(s, t, beta=0.5, temperature=0.0)
    with pytest.raises(ValueError, match="reduction"):
        generalized_jsd_loss(s, t, reduction="median")
    with pytest.raises(ValueError, match="labels"):
        generalized_jsd_loss(s, t, torch.zeros(3))
