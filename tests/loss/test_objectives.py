from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.policy_gradient import clipped_surrogate, kl_k3, sequence_weights, token_logprobs


def reference_surrogate(logp, old, adv, low, high):
    """PPO's clipped objective, negated, one token at a time."""
    out = np.empty_like(logp)
    for i in np.ndindex(logp.shape):
        r = np.exp(logp[i] - old[i])
        out[i] = -min(r * adv[i], min(max(r, 1 - low), 1 + high) * adv[i])
    return out


def streams(seed, b=3, t=5):
    rng = np.random.default_rng(seed)
    return rng.normal(-2, 0.6, (b, t)), rng.normal(-2, 0.6, (b, t)), rng.normal(0, 1, (b, t)), rng.random((b, t)) < 0.7


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.1, 5.0)])
def test_surrogate_matches_the_reference(low, high):
    logp, old, adv, _ = streams(0)
    got = clipped_surrogate(*map(torch.tensor, (logp, old, adv)), epsilon_low=low, epsilon_high=high)
    np.testing.assert_allclose(got.loss.numpy(), reference_surrogate(logp, old, adv, low, high), rtol=1e-12)
    np.testing.assert_allclose(got.ratio.numpy(), np.exp(logp - old), rtol=1e-12)


def test_clipped_tokens_have_no_gradient_and_are_flagged():
    logp = torch.tensor([0.5, -0.5, 0.5, -0.5, 0.1], dtype=torch.float64, requires_grad=True)
    adv = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    got = clipped_surrogate(logp, torch.zeros(5, dtype=torch.float64), adv)
    got.loss.sum().backward()
    assert got.clipped.tolist() == [True, True, False, False, False]
    assert (logp.grad == 0).tolist() == [True, True, False, False, False]


def test_clip_higher_is_asymmetric():
    logp = torch.log(torch.tensor([1.25, 1 / 1.25]))
    adv = torch.tensor([1.0, -1.0])
    assert clipped_surrogate(logp, torch.zeros(2), adv, epsilon_low=0.15, epsilon_high=0.28).clipped.tolist() == [False, True]


def test_masked_tokens_have_ratio_one_and_no_influence():
    logp = torch.tensor([[-1.0, float("nan"), -700.0]], requires_grad=True)
    old = torch.tensor([[-1.2, -1.0, float("-inf")]])
    adv = torch.tensor([[1.0, float("nan"), 1.0]])
    got = clipped_surrogate(logp, old, adv, mask=torch.tensor([[1, 0, 0]]))
    assert got.ratio[0, 1:].tolist() == [1.0, 1.0]
    assert got.loss[0, 1:].tolist() == [0.0, 0.0]
    got.loss.sum().backward()
    assert logp.grad[0, 1:].tolist() == [0.0, 0.0]
    assert torch.isfinite(logp.grad).all()


def test_only_the_current_policy_has_a_gradient():
    x = [torch.randn(4, requires_grad=True) for _ in range(3)]
    (clipped_surrogate(*x[:2], torch.ones(4)).loss + kl_k3(x[0], x[2])).sum().backward()
    assert [a.grad is None for a in x] == [False, True, True]


def test_log_ratio_is_clamped():
    got = clipped_surrogate(torch.tensor([300.0, -300.0]), torch.zeros(2), torch.tensor([-1.0, 1.0]))
    assert torch.isfinite(got.loss).all()
    assert got.ratio.tolist() == pytest.approx([np.exp(20.0), np.exp(-20.0)], rel=1e-5)


def test_gradcheck():
    logp, old, adv, mask = (torch.tensor(x) for x in streams(3))
    logp.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: clipped_surrogate(x, old, adv, mask=mask).loss, (logp,))
    assert torch.autograd.gradcheck(lambda x: kl_k3(x, old), (logp,))


def test_k3_matches_the_formula_and_estimates_the_kl():
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))
    k3 = kl_k3(torch.tensor(np.log(p)), torch.tensor(np.log(q))).numpy()
    np.testing.assert_allclose(k3, q / p - np.log(q / p) - 1, rtol=1e-10)
    assert (p * k3).sum() == pytest.approx((p * np.log(p / q)).sum(), rel=1e-10)  # unbiased: its mean under p is KL(p || q)


def test_the_gradient_of_k3_is_exact_in_float32():
    logprobs = torch.linspace(-3, 0, 50, requires_grad=True)
    other = torch.linspace(-1, -2, 50)
    (gradient,) = torch.autograd.grad(kl_k3(logprobs, other).sum(), logprobs)
    torch.testing.assert_close(gradient, 1 - (other - logprobs.detach()).exp())


def test_far_from_the_reference_k3_still_pulls_towards_it():
    """Below, linearly; above, where exp would overflow, along the tangent."""
    logprobs = torch.tensor([-1.0, -90.0], dtype=torch.float64, requires_grad=True)
    value = kl_k3(logprobs, torch.tensor([-30.0, -1.0], dtype=torch.float64))
    slope = np.exp(20.0)
    assert value.tolist() == pytest.approx([28.0, slope - 1 + slope * (89 - 20) - 89], rel=1e-9)
    (gradient,) = torch.autograd.grad(value.sum(), logprobs)
    assert gradient.tolist() == pytest.approx([1.0, 1.0 - slope], rel=1e-9)


# --- weight streams --------------------------------------------------------------------------------------------------


def loops(mask, values, objective, max_tokens):
    """The three aggregations as the papers write them."""
    rows = [(m, v) for m, v in zip(mask, values, strict=True) if m.any()]
    if objective == "grpo":
        return np.mean([v[m].mean() for m, v in rows])
    if objective == "dapo":
        return sum(v[m].sum() for m, v in rows) / sum(m.sum() for m, _ in rows)
    return sum(v[m].sum() for m, v in rows) / (len(rows) * max_tokens)


@pytest.mark.parametrize("objective", ["grpo", "dr_grpo", "dapo"])
def test_weights_reproduce_the_aggregation(objective):
    _, _, values, mask = streams(5, b=4)
    mask[2] = False  # an unscored sequence is in no denominator
    weights, denominator = sequence_weights(torch.tensor(mask), objective, max_tokens=9)
    got = (weights.double() * torch.tensor(values)).sum() / denominator
    assert got.item() == pytest.approx(loops(mask, values, objective, 9), rel=1e-6)


@given(st.integers(0, 10_000), st.sampled_from(["grpo", "dr_grpo", "dapo"]))
def test_weights_of_a_part_are_the_parts_of_the_weights(seed, objective):
    mask = torch.tensor(streams(seed, b=5)[3])
    weights, denominator = sequence_weights(mask, objective, max_tokens=9)
    parts = [sequence_weights(mask[i : i + 2], objective, max_tokens=9) for i in range(0, 5, 2)]
    torch.testing.assert_close(torch.cat([w for w, _ in parts]), weights)
    torch.testing.assert_close(sum(n for _, n in parts), denominator)


def test_all_masked_denominator_is_zero_not_one():
    weights, denominator = sequence_weights(torch.zeros(2, 3), "dapo")
    assert weights.sum() == 0
    assert denominator == 0


def test_weight_errors():
    with pytest.raises(ValueError, match="unknown objective"):
        sequence_weights(torch.ones(1, 2), "ppo")
    with pytest.raises(ValueError, match="needs max_tokens"):
        sequence_weights(torch.ones(1, 2), "dr_grpo")
    with pytest.raises(ValueError, match="more than max_tokens=2"):
        sequence_weights(torch.ones(1, 3), "dr_grpo", max_tokens=2)


# --- log-probs -------------------------------------------------------------------------------------------------------


def test_token_logprobs_against_numpy_with_temperature():
    rng = np.random.default_rng(0)
    z, ids = rng.normal(0, 3, (4, 7)), rng.integers(0, 7, 4)
    x = z / 1.7
    logp = x - np.log(np.exp(x).sum(-1, keepdims=True))
    got, entropy = token_logprobs(torch.tensor(z), torch.tensor(ids), temperature=1.7)
    np.testing.assert_allclose(got.numpy(), logp[np.arange(4), ids], rtol=1e-12)
    np.testing.assert_allclose(entropy.numpy(), -(np.exp(logp) * logp).sum(-1), rtol=1e-12)


def test_token_logprobs_upcasts_half_precision_and_survives_inf_columns():
    z = torch.tensor([[1.0, 2.0, float("-inf")]], dtype=torch.bfloat16, requires_grad=True)
    got, entropy = token_logprobs(z, torch.tensor([1]))
    assert got.dtype == torch.float32
    got.sum().backward()
    assert torch.isfinite(z.grad).all()
    assert torch.isfinite(entropy).all()


def test_token_logprobs_of_nothing_is_attached():
    z = torch.randn(3, 4, requires_grad=True)
    got, _ = token_logprobs(z[:0], torch.zeros(0, dtype=torch.long))
    got.sum().backward()
    assert torch.equal(z.grad, torch.zeros(3, 4))


def test_temperature_must_be_positive():
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(torch.zeros(1, 2), torch.tensor([0]), temperature=0.0)
