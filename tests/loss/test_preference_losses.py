from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.distillation import dpo_loss, simpo_loss


def softplus(x):
    return np.logaddexp(0.0, x)


def dpo_reference(pc, pr, rc, rr, beta):
    """DPO equation 7: -log sigmoid(x) = log(1 + e^-x)."""
    return softplus(-beta * ((pc - rc) - (pr - rr)))


def simpo_reference(c, r, beta, gamma):
    """SimPO equation 6."""
    return softplus(-(beta * c - beta * r - gamma))


def draws(seed, n, pairs=5):
    return list(np.random.default_rng(seed).normal(-20, 8, (n, pairs)))


def tensors(arrays):
    return [torch.tensor(a) for a in arrays]


@pytest.mark.parametrize("beta", [0.05, 0.1, 2.0])
def test_dpo_matches_the_reference(beta):
    x = draws(0, 4)
    expected = dpo_reference(*x, beta)
    np.testing.assert_allclose(dpo_loss(*tensors(x), beta, reduction="none").numpy(), expected, rtol=1e-12)
    assert dpo_loss(*tensors(x), beta=beta).item() == pytest.approx(expected.mean())
    w = np.array([1.0, 0.5, 0.0, 0.25, 1.0])
    assert dpo_loss(*tensors(x), beta, weights=torch.tensor(w)).item() == pytest.approx((w * expected).sum() / w.sum())


@pytest.mark.parametrize(("beta", "gamma"), [(2.0, 1.0), (2.5, 0.0), (10.0, 5.0)])
def test_simpo_matches_the_reference(beta, gamma):
    c, r = draws(1, 2)
    expected = simpo_reference(c / 10, r / 10, beta, gamma)
    got = simpo_loss(*tensors([c / 10, r / 10]), beta=beta, gamma=gamma, reduction="none")
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)
    assert simpo_loss(*tensors([c / 10, r / 10]), beta, gamma).item() == pytest.approx(expected.mean())


def test_simpo_defaults_are_the_papers():
    c, r = torch.tensor([-0.5]), torch.tensor([-1.0])
    assert simpo_loss(c, r).item() == pytest.approx(math.log(1 + math.exp(-(2.0 * 0.5 - 1.0))))


def test_gradcheck():
    x = tensors(draws(2, 4))
    policy = [a.requires_grad_() for a in x[:2]]
    weights = torch.rand(5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda c, r: dpo_loss(c, r, x[2], x[3], 0.1, weights=weights), policy)
    assert torch.autograd.gradcheck(lambda c, r: simpo_loss(c / 10, r / 10, weights=weights), policy)


def test_identical_pairs_lose_log_two_and_their_gradients_cancel():
    logps = torch.tensor([-3.0, -4.0], requires_grad=True)
    loss = dpo_loss(logps, logps, logps.detach(), logps.detach())
    assert loss.item() == pytest.approx(math.log(2))
    loss.backward()
    assert torch.equal(logps.grad, torch.zeros(2))


def test_the_reference_has_no_gradient():
    x = [a.requires_grad_() for a in tensors(draws(3, 4))]
    dpo_loss(*x).backward()
    assert [a.grad is None for a in x] == [False, False, True, True]


@given(st.integers(0, 10**6), st.floats(-100, 100))
def test_only_differences_count_and_order_does_not(seed, shift):
    x = tensors(draws(seed, 4))
    torch.testing.assert_close(dpo_loss(x[0] + shift, x[1] + shift, x[2], x[3]), dpo_loss(*x))
    torch.testing.assert_close(simpo_loss(x[0] + shift, x[1] + shift), simpo_loss(x[0], x[1]))
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(dpo_loss(*(a[order] for a in x)), dpo_loss(*x))


@given(st.integers(0, 10**6))
def test_positive_and_falling_in_the_margin(seed):
    x = tensors(draws(seed, 4))
    better = dpo_loss(x[0] + 1.0, *x[1:], reduction="none")
    assert (better >= 0).all()
    assert (better <= dpo_loss(*x, reduction="none")).all()


def test_simpo_loss_lower_for_better_separation():
    rejected = torch.tensor([-2.0])
    assert simpo_loss(torch.tensor([-0.2]), rejected) < simpo_loss(torch.tensor([-1.5]), rejected)


def test_simpo_loss_differentiable():
    chosen = torch.tensor([-1.0], requires_grad=True)
    rejected = torch.tensor([-2.0], requires_grad=True)
    simpo_loss(chosen, rejected).backward()
    assert chosen.grad is not None
    assert chosen.grad.item() < 0 < rejected.grad.item()


def test_extreme_margins_stay_finite():
    big = torch.tensor([1e5], requires_grad=True)
    loss = dpo_loss(-big, big, torch.zeros(1), torch.zeros(1), 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(2e5)
    assert torch.isfinite(big.grad).all()


def test_simpo_loss_shape_mismatch_raises():
    with pytest.raises(ValueError, match="one shape"):
        simpo_loss(torch.zeros(2), torch.zeros(2, 1))


def test_other_shape_mismatches_raise():
    z = torch.zeros(2)
    with pytest.raises(ValueError, match="one shape"):
        dpo_loss(z, z, z, torch.zeros(1))
    with pytest.raises(ValueError, match="weights"):
        dpo_loss(z, z, z, z, weights=torch.ones(3))
    with pytest.raises(ValueError, match="reduction"):
        dpo_loss(z, z, z, z, reduction="sum")


@pytest.mark.parametrize("margin", [math.inf, -math.inf, math.nan])
def test_pairs_of_weight_0_have_no_influence(margin):
    """Not even on the gradient; nothing but such pairs is an attached zero."""
    chosen, rejected = torch.tensor([margin, -1.0], requires_grad=True), torch.tensor([-2.0, -3.0])
    zero = torch.zeros(2)
    for loss_of in (
        lambda w: dpo_loss(chosen, rejected, zero, zero, weights=w),
        lambda w: simpo_loss(chosen, rejected, weights=w),
    ):
        loss = loss_of(torch.tensor([0.0, 2.0]))
        (gradient,) = torch.autograd.grad(loss, chosen)
        assert torch.isfinite(loss)
        assert gradient[0] == 0.0
        assert gradient[1] < 0.0
        nothing = loss_of(torch.zeros(2))
        assert nothing == 0.0
        assert torch.autograd.grad(nothing, chosen)[0].tolist() == [0.0, 0.0]


def test_no_pairs_is_an_attached_zero():
    none = torch.zeros(0, requires_grad=True)
    for loss in (dpo_loss(none, none, none, none), simpo_loss(none, none, weights=torch.zeros(0))):
        assert loss.item() == 0.0
        loss.backward()
