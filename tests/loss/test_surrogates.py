"""GSPO, CISPO, DPPO and penalties against references written from the papers, in float64 numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from composer_replication.policy_gradient import (
    THRESHOLDS,
    Effort,
    EffortWeights,
    concave_penalty,
    effort_penalty,
    kl_k1_penalty,
    sequence_weights,
    surrogate,
    surrogate_of,
)

LOW, HIGH = 0.2, 0.28


def tokens(seed, sequences=3, longest=5):
    """Log-probs now and when sampled, advantages, and each token's sequence, flat."""
    rng = np.random.default_rng(seed)
    sequence = np.repeat(np.arange(sequences), rng.integers(1, longest + 1, sequences))
    n = len(sequence)
    return rng.normal(-1.5, 0.5, n), rng.normal(-1.5, 0.5, n), rng.normal(0, 1, n), sequence


def found(kind, seed):
    logp, old, advantages, sequence = tokens(seed)
    leaf = torch.tensor(logp, requires_grad=True)
    result = surrogate(
        kind,
        leaf,
        torch.tensor(old),
        torch.tensor(advantages),
        epsilon_low=LOW,
        epsilon_high=HIGH,
        sequence=torch.tensor(sequence),
    )
    (gradient,) = torch.autograd.grad(result.loss.sum(), leaf)
    return result, gradient.numpy()


@pytest.mark.parametrize("seed", range(5))
def test_gspo(seed):
    logp, old, advantages, sequence = tokens(seed)
    expected, slopes = np.empty_like(logp), np.empty_like(logp)
    for i in range(len(logp)):
        mine = sequence == sequence[i]
        s = math.exp((logp - old)[mine].mean())
        clipped = min(max(s, 1 - LOW), 1 + HIGH)
        expected[i] = -min(s * advantages[i], clipped * advantages[i])
        slopes[i] = -s * advantages[i] if s * advantages[i] <= clipped * advantages[i] else 0.0  # d s_t / d logp_t = s
    result, gradient = found("gspo", seed)
    assert_allclose(result.loss.detach().numpy(), expected, rtol=1e-12)
    assert_allclose(gradient, slopes, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_gspo_with_one_advantage_per_sequence_is_the_gradient_of_the_sequence_form(seed):
    """Equation 5 of the paper: the mean over tokens of s A is s A, whose gradient spreads evenly over the sequence."""
    logp, old, _, sequence = tokens(seed)
    per_sequence = torch.tensor(np.random.default_rng(seed).normal(0, 1, sequence.max() + 1))
    at = torch.tensor(sequence)
    counts = torch.bincount(at).double()
    leaf = torch.tensor(logp, requires_grad=True)
    s = (torch.zeros(len(counts)).double().index_add(0, at, leaf - torch.tensor(old)) / counts).exp()
    whole = -torch.minimum(s * per_sequence, s.clamp(1 - LOW, 1 + HIGH) * per_sequence).sum()
    (expected,) = torch.autograd.grad(whole, leaf)
    options = {"epsilon_low": LOW, "epsilon_high": HIGH, "sequence": at}
    result = surrogate("gspo", leaf, torch.tensor(old), per_sequence[at], **options)
    (gradient,) = torch.autograd.grad((result.loss / counts[at]).sum(), leaf)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("seed", range(5))
def test_cispo(seed):
    logp, old, advantages, _ = tokens(seed)
    weight = np.clip(np.exp(logp - old), 1 - LOW, 1 + HIGH)
    result, gradient = found("cispo", seed)
    assert_allclose(result.loss.detach().numpy(), -weight * advantages * logp, rtol=1e-12)
    assert_allclose(gradient, -weight * advantages, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_dppo(seed):
    logp, old, advantages, _ = tokens(seed)
    moved = np.exp(logp) - np.exp(old)
    keep = ~np.where(advantages > 0, moved > HIGH, moved < -LOW)
    ratio = np.exp(logp - old)
    result, gradient = found("dppo", seed)
    assert_allclose(result.loss.detach().numpy(), -1.0 * keep * ratio * advantages + 1e-3 * (logp - old) ** 2, rtol=1e-12)
    assert_allclose(gradient, -1.0 * keep * ratio * advantages + 2e-3 * (logp - old), rtol=1e-12)
    assert (result.clipped.numpy() == ~keep).all()


@pytest.mark.parametrize("seed", range(3))
def test_gradcheck_where_the_value_moves_as_the_gradient_says(seed):
    """DPPO, and GSPO as the mean over a sequence's tokens; CISPO's weight is held fixed, so its value does not."""
    logp, old, advantages, at = (torch.tensor(values) for values in tokens(seed))
    logp.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: surrogate("dppo", x, old, advantages).loss, (logp,))
    counts, one_each = torch.bincount(at).double(), advantages[: int(at.max()) + 1][at]

    def gspo(x):
        return (surrogate("gspo", x, old, one_each, epsilon_low=LOW, epsilon_high=HIGH, sequence=at).loss / counts[at]).sum()

    assert torch.autograd.gradcheck(gspo, (logp,))


def test_dppo_drops_some_tokens():
    assert any(found("dppo", seed)[0].clipped.any() for seed in range(5))


def test_unknown_names_and_missing_sequences_are_refused():
    x = torch.zeros(2)
    with pytest.raises(ValueError, match="unknown surrogate 'reinforce'"):
        surrogate("reinforce", x, x, x)
    with pytest.raises(ValueError, match="needs `sequence`"):
        surrogate("gspo", x, x, x)


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("ppo", 0.2, 0.28), ("gspo", 3e-4, 4e-4), ("cispo", 1.0, 4.0), ("dppo", 0.2, 0.2)]
)
def test_every_surrogate_has_thresholds_of_its_own(kind, low, high):
    """One epsilon may be given without the other."""
    logp, old, advantages, sequence = (torch.tensor(values) for values in tokens(0))
    assert THRESHOLDS[kind] == (low, high)
    spread = {"logprobs": logp - 0.1, "old_logprobs": 3 * old, "advantages": advantages, "sequence": sequence}
    expected = surrogate(kind, **spread, epsilon_low=low, epsilon_high=high).loss
    for options in ({}, {"epsilon_low": low}, {"epsilon_high": high}):
        assert torch.equal(surrogate(kind, **spread, **options).loss, expected)
    assert not torch.equal(surrogate(kind, **spread, epsilon_low=0.1, epsilon_high=0.1).loss, expected)


def test_every_objective_has_its_average():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    per_sequence = {"grpo", "gspo"}
    for objective in ("grpo", "gspo", "dapo", "bnpo", "cispo", "dppo"):
        weights, denominator = sequence_weights(mask, objective)
        expected = [[0.5, 0.5, 0], [1, 0, 0]] if objective in per_sequence else [[1, 1, 0], [1, 0, 0]]
        assert weights.tolist() == expected
        assert denominator == (2 if objective in per_sequence else 3)
    names = ("grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo", "dppo")
    assert [surrogate_of(name) for name in names] == ["ppo"] * 4 + ["gspo", "cispo", "dppo"]


def test_k1_counts_only_the_mask():
    now, reference = torch.tensor([[-1.0, -2.0, float("nan")]]), torch.tensor([[-1.5, -1.0, 0.0]])
    assert kl_k1_penalty(now, reference, torch.tensor([[1, 1, 0]])).tolist() == [-0.5]


@given(k=st.floats(1e-3, 10), q=st.floats(0, 3), x=st.floats(0, 1e5), more=st.floats(1e-3, 1e5))
def test_the_effort_penalty_rises_ever_more_slowly(k, q, x, more):
    here, there, beyond = (concave_penalty(v, k=k, q=q) for v in (x, x + more, x + 2 * more))
    assert 0 <= here <= there <= beyond
    assert beyond - there <= (there - here) * (1 + 1e-9) + 1e-9 * beyond


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 2.0])
def test_the_effort_penalty_is_the_formula(q):
    k, x = 0.3, 7.0
    expected = math.log(1 + k * x) / k if q == 1 else ((1 + k * x) ** (1 - q) - 1) / (k * (1 - q))
    assert concave_penalty(x, k=k, q=q) == pytest.approx(expected, rel=1e-12)
    assert concave_penalty(x, k=k, q=1 + 1e-9) == pytest.approx(concave_penalty(x, k=k, q=1.0), rel=1e-6)
    effort = Effort(thinking_tokens=3, tool_calls=2, turns=5)
    weights = EffortWeights(thinking_tokens=1.0, tool_calls=1.5, turns=0.2)
    assert effort_penalty(effort, weights=weights, k=k, q=q) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="concave_penalty needs"):
        concave_penalty(-1.0, k=k, q=q)
