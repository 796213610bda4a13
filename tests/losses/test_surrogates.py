"""GSPO, CISPO, DPPO, importance weights and penalties against references written from the papers, in float64 numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from composer_replication.batch import collate, split
from composer_replication.loss import compose_loss, sequence_logprobs
from composer_replication.policy_gradient import (
    Effort,
    EffortWeights,
    concave_penalty,
    effort_penalty,
    importance_weights,
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


def test_dppo_drops_some_tokens():
    assert any(found("dppo", seed)[0].clipped.any() for seed in range(5))


def test_unknown_names_and_missing_sequences_are_refused():
    x = torch.zeros(2)
    with pytest.raises(ValueError, match="unknown surrogate 'reinforce'"):
        surrogate("reinforce", x, x, x, epsilon_low=0.2, epsilon_high=0.2)
    with pytest.raises(ValueError, match="needs `sequence`"):
        surrogate("gspo", x, x, x, epsilon_low=0.2, epsilon_high=0.2)


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


@pytest.mark.parametrize("by_sequence", [False, True])
def test_importance_weights(by_sequence):
    trainer, sampler, _, sequence = tokens(3)
    ratio = np.exp(trainer - sampler)
    if by_sequence:
        ratio = np.array([np.exp((trainer - sampler)[sequence == i].sum()) for i in sequence])
    given_sequence = torch.tensor(sequence) if by_sequence else None
    inputs = (torch.tensor(trainer, requires_grad=True), torch.tensor(sampler))
    truncated = importance_weights(*inputs, "tis", high=1.3, sequence=given_sequence)
    masked = importance_weights(*inputs, "icepop", low=0.7, high=1.3, sequence=given_sequence)
    assert not truncated.requires_grad
    assert_allclose(truncated.numpy(), np.minimum(ratio, 1.3), rtol=1e-12)
    assert_allclose(masked.numpy(), np.where((ratio >= 0.7) & (ratio <= 1.3), ratio, 0.0), rtol=1e-12)
    with pytest.raises(ValueError, match="unknown importance correction"):
        importance_weights(*inputs, "none")
    with pytest.raises(ValueError, match="low < high"):
        importance_weights(*inputs, "tis", low=2.0, high=1.0)


@pytest.mark.parametrize("kind", ["tis", "icepop"])
@pytest.mark.parametrize("known", ["trainer and sampler", "sampler"])
@pytest.mark.parametrize("kind_of_surrogate", ["ppo", "gspo"])
def test_the_correction_weighs_the_surrogate(new_model, new_maker, kind, known, kind_of_surrogate):
    """Without `old_logprobs` the policy that scores is the present one; micro-batches keep the sampler's stream."""
    model = new_model(dtype=torch.float64)
    batch = collate(*new_maker(0).everything()[:2], pad_id=0)
    row, position = batch["rlvr_weights"].nonzero(as_tuple=True)
    with torch.no_grad():
        now = sequence_logprobs(model, batch["input_ids"], batch["attention_mask"], batch["response_mask"])
    torch.manual_seed(0)
    batch["old_logprobs"] = now + 0.1 * torch.randn_like(now)
    batch["sampler_logprobs"] = batch["old_logprobs"] + 0.5 * torch.randn_like(now)
    if known == "sampler":
        del batch["old_logprobs"]
    scored = batch.get("old_logprobs", now)
    ratio = (scored - batch["sampler_logprobs"]).exp()[row, position]
    expected_weights = ratio.clamp(max=1.3) if kind == "tis" else torch.where((ratio >= 0.7) & (ratio <= 1.3), ratio, 0.0)
    weighed = dict(batch, rlvr_weights=batch["rlvr_weights"].double().index_put((row, position), expected_weights))
    options = {"surrogate": kind_of_surrogate, "importance": kind, "importance_low": 0.7, "importance_high": 1.3}
    got = compose_loss(model, batch, **options)
    plain = {key: value for key, value in weighed.items() if key != "sampler_logprobs"}
    if kind_of_surrogate == "ppo":  # gspo's ratio is of all tokens, also of those that weigh nothing here
        torch.testing.assert_close(got.rlvr, compose_loss(model, plain).rlvr)
    assert got.metrics["rlvr/importance/max"] == pytest.approx(expected_weights.max().item())
    assert got.metrics["rlvr/importance/mean"] == pytest.approx(expected_weights.mean().item())
    parts = [compose_loss(model, part, **options).total for part in split(batch, 2)]
    torch.testing.assert_close(sum(parts), got.total)


def test_a_correction_needs_the_samplers_log_probs(new_model, new_maker):
    batch = collate(*new_maker(0).everything()[:2], pad_id=0)
    with pytest.raises(ValueError, match="an importance correction needs sampler_logprobs"):
        compose_loss(new_model(), batch, importance="tis")


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
