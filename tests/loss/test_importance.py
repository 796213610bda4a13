"""Importance weights for another sampler: by themselves, and in the loss of every surrogate against a loop over tokens in float64
numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from composer_replication.config import HintConfig, LossConfig, ReplayConfig, RlvrConfig
from composer_replication.loss import compose_loss, sequence_logprobs
from composer_replication.loss.batch import collate
from composer_replication.loss.micro_batches import split
from composer_replication.policy_gradient import importance_weights

LOW, HIGH = 0.7, 1.3
EPSILONS = {"ppo": (0.1, 0.15), "gspo": (0.02, 0.03), "cispo": (0.1, 0.15), "dppo": (0.001, 0.001)}
"""So narrow that each clips some of the tokens below."""


def weight_of(kind, ratio):
    if kind == "tis":
        return min(ratio, HIGH)
    return ratio if LOW <= ratio <= HIGH else 0.0


def alone(**fields):
    """The first channel alone, with these fields of `loss.rlvr`."""
    return LossConfig(rlvr=RlvrConfig(**fields), hint=HintConfig(weight=0.0), replay=ReplayConfig(weight=0.0))


@pytest.mark.parametrize("by_sequence", [False, True])
def test_importance_weights(by_sequence):
    rng = np.random.default_rng(3)
    sequence = np.array([0, 0, 0, 1, 2, 2])
    trainer, sampler = rng.normal(-1.5, 0.3, (2, 6))
    differences = trainer - sampler
    if by_sequence:
        differences = np.array([differences[sequence == i].sum() for i in sequence])
    inputs = (torch.tensor(trainer, requires_grad=True), torch.tensor(sampler))
    for kind in ("tis", "icepop"):
        found = importance_weights(*inputs, kind, low=LOW, high=HIGH, sequence=torch.tensor(sequence) if by_sequence else None)
        expected = [weight_of(kind, math.exp(d)) for d in differences]
        assert not found.requires_grad
        assert_allclose(found.numpy(), expected, rtol=1e-12)
        assert len({*expected} - {0.0, HIGH}) not in (0, len({*differences})), "some weights are cut, and some are not"


def test_bad_intervals_are_refused():
    x = torch.zeros(1)
    with pytest.raises(ValueError, match="unknown importance correction 'none'"):
        importance_weights(x, x, "none")
    for low, high in ((2.0, 1.0), (1.0, 1.0), (-0.1, 1.0), (math.nan, 1.0)):
        with pytest.raises(ValueError, match=f"need 0 <= low < high, got low={low}, high={high}"):
            importance_weights(x, x, "icepop", low=low, high=high)
    with pytest.raises(ValueError, match=r"need high > 0, got high=0\.0"):
        importance_weights(x, x, "tis", high=0.0)
    assert importance_weights(x, x, "tis", low=0.5, high=0.4).item() == pytest.approx(0.4), "which has no lower bound"


def by_hand(kind, correction, now, old, sampler, advantages, sequence):
    """Each token's loss and its derivative by the token's log-prob, one token at a time, from the papers."""
    low, high = EPSILONS[kind]
    losses, slopes = [], []
    for i, (lp, before, a) in enumerate(zip(now, old, advantages, strict=True)):
        r = math.exp(lp - before)
        if kind == "gspo":
            mine = [math.log(math.exp(now[j] - old[j])) for j in range(len(now)) if sequence[j] == sequence[i]]
            r = math.exp(sum(mine) / len(mine))
        clipped = min(max(r, 1 - low), 1 + high)
        if kind in ("ppo", "gspo"):
            loss, slope = -min(r * a, clipped * a), -r * a if r * a <= clipped * a else 0.0
        elif kind == "cispo":
            loss, slope = -clipped * a * lp, -clipped * a
        else:
            moved = math.exp(lp) - math.exp(before)
            keep = moved <= high if a > 0 else moved >= -low
            loss = -keep * r * a + 1e-3 * (lp - before) ** 2
            slope = -keep * r * a + 2e-3 * (lp - before)
        w = weight_of(correction, math.exp(before - sampler[i]))
        losses.append(w * loss)
        slopes.append(w * slope)
    return np.array(losses), np.array(slopes)


@pytest.fixture(scope="module")
def model(new_model):
    return new_model(dtype=torch.float64)


@pytest.fixture
def batch(model, new_maker):
    """With the log-probs of a trainer that has moved a little, and of another sampler; in float64 throughout."""
    made = collate(*new_maker(0).everything()[:2], pad_id=0)
    made |= {key: made[key].double() for key in ("advantages", "rlvr_weights", "rlvr_denominator")}
    with torch.no_grad():
        now = sequence_logprobs(model, made["input_ids"], made["attention_mask"], made["response_mask"])
    torch.manual_seed(0)
    made["old_logprobs"] = now + 0.2 * torch.randn_like(now)
    made["sampler_logprobs"] = made["old_logprobs"] + 0.4 * torch.randn_like(now)
    return made


@pytest.mark.parametrize("correction", ["tis", "icepop"])
@pytest.mark.parametrize("known", ["trainer and sampler", "sampler"])
@pytest.mark.parametrize("kind", ["ppo", "gspo", "cispo", "dppo"])
def test_the_correction_weighs_the_surrogate(model, batch, correction, known, kind):
    """Value, gradient and metrics; a token that is rejected stays in the denominator and in GSPO's mean. Without `old_logprobs`
    the policy that scores is the present one. Micro-batches keep the sampler's stream."""
    now = sequence_logprobs(model, batch["input_ids"], batch["attention_mask"], batch["response_mask"])
    row, position = batch["rlvr_weights"].nonzero(as_tuple=True)
    if known == "sampler":
        del batch["old_logprobs"]
    streams = (now.detach(), batch.get("old_logprobs", now.detach()), batch["sampler_logprobs"], batch["advantages"])
    current, old, sampler, advantages = (stream[row, position].tolist() for stream in streams)
    losses, slopes = by_hand(kind, correction, current, old, sampler, advantages, row.tolist())
    weights, denominator = batch["rlvr_weights"][row, position], float(batch["rlvr_denominator"])
    interval = {"importance_high": HIGH} | ({"importance_low": LOW} if correction == "icepop" else {})
    epsilons = dict(zip(("epsilon_low", "epsilon_high"), EPSILONS[kind], strict=True))
    options = alone(objective={"ppo": "dapo"}.get(kind, kind), importance=correction, **interval, **epsilons)
    got = compose_loss(model, batch, options)
    assert got.rlvr.item() == pytest.approx((weights.numpy() * losses).sum() / denominator, rel=1e-12)
    parameters = list(model.parameters())
    expected = torch.autograd.grad((weights * torch.tensor(slopes) * now[row, position]).sum() / denominator, parameters)
    for ours, theirs in zip(torch.autograd.grad(got.total, parameters), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    ratios = [weight_of(correction, math.exp(a - b)) for a, b in zip(old, sampler, strict=True)]
    assert got.metrics["rlvr/importance/max"] == pytest.approx(max(ratios))
    assert got.metrics["rlvr/importance/mean"] == pytest.approx(np.mean(ratios))
    if known != "sampler":
        assert got.metrics["rlvr/clip_frac"] > 0.0, "nothing is clipped, so that the clip is not tested"
    torch.testing.assert_close(sum(compose_loss(model, part, options).total for part in split(batch, 40)), got.total)


def test_a_correction_needs_the_samplers_log_probs(model, batch):
    del batch["sampler_logprobs"]
    with pytest.raises(ValueError, match="an importance correction needs sampler_logprobs"):
        compose_loss(model, batch, alone(importance="tis"))
