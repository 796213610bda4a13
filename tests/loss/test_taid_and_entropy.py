from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.distillation import (
    TAIDScheduler,
    entropy_aware_opd_loss,
    entropy_aware_opd_per_token,
    generalized_jsd_per_token,
    taid_loss,
    taid_per_token,
    teacher_entropy,
)

INF = float("inf")


def log_softmax(z):
    z = np.asarray(z, np.float64)
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def taid_reference(z_s, z_t, t):
    """TAID paper, section 3: cross-entropy against the softmax of the mixed logits."""
    return -(np.exp(log_softmax((1 - t) * z_s + t * z_t)) * log_softmax(z_s)).sum(-1)


def opd_reference(z_s, z_t, h_max):
    log_s, log_t = log_softmax(z_s), log_softmax(z_t)
    s, t = np.exp(log_s), np.exp(log_t)
    w = np.clip(-(t * log_t).sum(-1) / h_max, 0, 1)
    return w * (t * (log_t - log_s)).sum(-1) + (1 - w) * (s * (log_s - log_t)).sum(-1)


def pair(seed, shape=(2, 3, 7), spread=2.0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, spread, shape), rng.normal(0, spread, shape)


# --- TAID ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [0.0, 0.1, 0.4, 0.5, 0.9, 1.0])
def test_taid_matches_the_reference(t):
    z_s, z_t = pair(0)
    np.testing.assert_allclose(
        taid_per_token(torch.tensor(z_s), torch.tensor(z_t), t=t).numpy(), taid_reference(z_s, z_t, t), rtol=1e-11
    )
    mask = np.array([[1, 0, 1], [0, 0, 2]])
    expected = (mask * taid_reference(z_s, z_t, t)).sum() / mask.sum()
    assert taid_loss(torch.tensor(z_s), torch.tensor(z_t), torch.tensor(mask), t=t).item() == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True")
def test_taid_loss_t_zero_target_matches_detached_student():
    """The user guide's test, word for word."""
    s1 = torch.randn(1, 2, 4, requires_grad=True)
    teacher_a = torch.zeros(1, 2, 4)
    teacher_a[..., 0] = 10.0
    teacher_b = torch.zeros(1, 2, 4)
    teacher_b[..., 3] = 10.0
    mask = torch.ones(1, 2)
    loss_a = taid_loss(s1, teacher_a, mask, t=0.0)
    loss_b = taid_loss(s1, teacher_b, mask, t=0.0)
    # Two completely different teachers must give the same loss at t=0.
    assert abs(float(loss_a) - float(loss_b)) < 1e-6


def test_taid_at_zero_has_no_gradient_even_if_the_teacher_has_no_mass_somewhere():
    z_s, z_t = (torch.tensor(x) for x in pair(1))
    z_t[..., 2] = -INF
    z_s.requires_grad_()
    taid_loss(z_s, z_t, t=0.0).backward()
    torch.testing.assert_close(z_s.grad, torch.zeros_like(z_s), rtol=0, atol=1e-15)


def test_taid_loss_t_one_is_pure_forward_kl():
    z_s, z_t = (torch.tensor(x) for x in pair(2))
    a, b = z_s.clone().requires_grad_(), z_s.clone().requires_grad_()
    loss = taid_loss(a, z_t, t=1.0)
    by_hand = -(torch.softmax(z_t, -1) * torch.log_softmax(z_s, -1)).sum(-1).mean()
    torch.testing.assert_close(loss.detach(), by_hand)
    loss.backward()
    generalized_jsd_per_token(b, z_t, beta=0.0).mean().backward()
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("t", [0.3, 1.0])
def test_taid_gradient_is_student_minus_target(t):
    z_s, z_t = pair(3)
    s = torch.tensor(z_s, requires_grad=True)
    taid_per_token(s, torch.tensor(z_t), t=t).sum().backward()
    np.testing.assert_allclose(
        s.grad.numpy(), np.exp(log_softmax(z_s)) - np.exp(log_softmax((1 - t) * z_s + t * z_t)), atol=1e-13
    )


def test_taid_gradcheck_at_fixed_target():
    """The anchor is the detached student: at t = 1 it plays no role and the numerical gradient applies."""
    z_s, z_t = (torch.tensor(x) for x in pair(4))
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]])
    assert torch.autograd.gradcheck(lambda x: taid_loss(x, z_t, mask, t=1.0), (z_s.requires_grad_(),))


@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(-30, 30))
def test_taid_ignores_shifts_of_the_logits(seed, t, shift):
    z_s, z_t = (torch.tensor(x) for x in pair(seed))
    torch.testing.assert_close(taid_per_token(z_s + shift, z_t - shift, t=t), taid_per_token(z_s, z_t, t=t))


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sides", ["both", "student", "teacher"])
def test_taid_with_missing_mass_is_finite(t, sides):
    z_s, z_t = (torch.tensor(x) for x in pair(5))
    if sides != "teacher":
        z_s[..., 1] = -INF
    if sides != "student":
        z_t[..., 1] = -INF
    z_s.requires_grad_()
    loss = taid_loss(z_s, z_t, t=t)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(z_s.grad).all()


def test_bad_t_raises():
    with pytest.raises(ValueError, match="t must be in"):
        taid_loss(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2), t=1.01)


# --- the scheduler ---------------------------------------------------------------------------------------------------


def paper_schedule(losses, total, start, end, alpha, beta):
    """Algorithm 1 of the paper, with the authors' two details: the first loss is stored, and a linear ramp is the floor."""
    t, momentum, previous, seen = start, 0.0, None, []
    for step, loss in enumerate(losses):
        if previous is not None:
            momentum = beta * momentum + (1 - beta) * (previous - loss) / (previous + 1e-15)
            t = min(end, max(start + (end - start) * step / total, t + alpha / (1 + math.exp(-momentum)) * (1 - t)))
        previous = loss
        seen.append(t)
    return seen


def run(scheduler, losses, first=0):
    return [scheduler.update_t(loss, global_step=first + i) for i, loss in enumerate(losses)]


LOSSES = [3.0, 2.5, 2.6, 1.0, 0.9, 0.95, 0.2, 0.1]


@pytest.mark.parametrize("alpha", [5e-4, 0.2])
def test_scheduler_follows_the_paper(alpha):
    got = run(TAIDScheduler(1000, alpha=alpha), LOSSES)
    assert got == pytest.approx(paper_schedule(LOSSES, 1000, 0.4, 1.0, alpha, 0.99), rel=1e-14)
    assert got == sorted(got)


def test_scheduler_defaults_and_end():
    scheduler = TAIDScheduler(num_train_steps=10)
    assert scheduler.t == 0.4
    assert run(scheduler, [1.0] * 30)[-1] == 1.0


def test_linear_schedule_ignores_the_loss():
    scheduler = TAIDScheduler(10, t_start=0.2, disable_adaptive=True)
    got = [scheduler.update_t(torch.rand(()), global_step=i) for i in range(12)]
    assert got == pytest.approx([0.2 + 0.8 * min(1, i / 10) for i in range(12)])


def test_an_off_channel_leaves_no_mark():
    """A loss of 0 would otherwise be divided by, and the momentum would never recover."""
    scheduler, calm = TAIDScheduler(1000, alpha=0.1), TAIDScheduler(1000, alpha=0.1)
    run(scheduler, [2.0, 1.5, 0.0, 0.0])
    run(calm, [2.0, 1.5])
    assert scheduler.state_dict() == calm.state_dict()


def test_resumed_scheduler_goes_on_identically():
    whole, first = TAIDScheduler(50), TAIDScheduler(50)
    expected = run(whole, LOSSES)[4:]
    run(first, LOSSES[:4])
    second = TAIDScheduler(50)
    second.load_state_dict(first.state_dict())
    assert run(second, LOSSES[4:], first=4) == expected


def test_scheduler_takes_a_tensor_with_graph():
    loss = torch.ones((), requires_grad=True) * 2
    assert TAIDScheduler(5).update_t(loss, global_step=0) == 0.4


def test_scheduler_errors():
    with pytest.raises(ValueError, match="t_start"):
        TAIDScheduler(10, t_start=0.9, t_end=0.5)
    with pytest.raises(ValueError, match="finite"):
        TAIDScheduler(10).update_t(float("nan"), global_step=0)
    with pytest.raises(KeyError):
        TAIDScheduler(10).load_state_dict({"t": 0.5})


# --- entropy-aware OPD -----------------------------------------------------------------------------------------------


def test_teacher_entropy_one_hot_is_zero():
    assert teacher_entropy(torch.tensor([0.0, 1000.0, 0.0])).item() == 0.0
    assert teacher_entropy(torch.tensor([-INF, 1.0, -INF])).item() == 0.0


def test_teacher_entropy_uniform_is_log_v():
    assert teacher_entropy(torch.full((2, 9), 3.0)).tolist() == pytest.approx([math.log(9)] * 2, rel=1e-6)


def test_teacher_entropy_has_no_gradient():
    assert not teacher_entropy(torch.randn(2, 3, requires_grad=True)).requires_grad


@pytest.mark.parametrize("h_max", [None, 0.5, 1.5, 100.0])
def test_opd_matches_the_reference(h_max):
    z_s, z_t = pair(6)
    expected = opd_reference(z_s, z_t, math.log(7) if h_max is None else h_max)
    got = entropy_aware_opd_per_token(torch.tensor(z_s), torch.tensor(z_t), h_max=h_max)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-10)
    mask = np.array([[1, 0, 1], [0, 0, 2]])
    assert entropy_aware_opd_loss(torch.tensor(z_s), torch.tensor(z_t), torch.tensor(mask), h_max=h_max).item() == pytest.approx(
        (mask * expected).sum() / mask.sum()
    )


def test_opd_ends():
    z_s, z_t = (torch.tensor(x) for x in pair(7))
    uniform, sure = torch.zeros_like(z_t), 500 * torch.nn.functional.one_hot(z_t.argmax(-1), 7).double()
    torch.testing.assert_close(entropy_aware_opd_per_token(z_s, uniform), generalized_jsd_per_token(z_s, uniform, beta=0.0))
    torch.testing.assert_close(entropy_aware_opd_per_token(z_s, sure), generalized_jsd_per_token(z_s, sure, beta=1.0))


@given(st.integers(0, 10**6))
def test_entropy_aware_opd_zero_when_distributions_match(seed):
    z_s, z_t = (torch.tensor(x) for x in pair(seed))
    assert entropy_aware_opd_loss(z_s, z_s + 3.0).item() == pytest.approx(0.0, abs=1e-14)
    assert entropy_aware_opd_loss(z_s, z_t).item() > 0


def test_opd_gradcheck_and_no_teacher_gradient():
    z_s, z_t = (torch.tensor(x) for x in pair(8))
    z_t.requires_grad_()
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]])
    assert torch.autograd.gradcheck(lambda x: entropy_aware_opd_loss(x, z_t, mask), (z_s.requires_grad_(),))
    entropy_aware_opd_loss(z_s, z_t, mask).backward()
    assert z_t.grad is None
    assert (z_s.grad[mask == 0] == 0).all()


# --- both ------------------------------------------------------------------------------------------------------------


def taid_half(student, teacher, mask=None):
    return taid_loss(student, teacher, mask, t=0.5)


@pytest.mark.parametrize("loss", [taid_half, entropy_aware_opd_loss])
def test_all_masked_is_zero_with_zero_gradients(loss):
    s = torch.full((1, 2, 3), float("nan"), requires_grad=True)
    got = loss(s, torch.zeros(1, 2, 3), torch.zeros(1, 2))
    assert got.item() == 0.0
    got.backward()
    assert torch.equal(s.grad, torch.zeros(1, 2, 3))


@pytest.mark.parametrize("loss", [taid_half, entropy_aware_opd_loss])
def test_shape_mismatch_raises(loss):
    with pytest.raises(ValueError, match="differ in shape"):
        loss(torch.zeros(1, 2, 3), torch.zeros(1, 2, 4))
    with pytest.raises(ValueError, match="mask"):
        loss(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3), torch.zeros(2))
