"""Estimates of a KL divergence as a term of the loss: whose gradient each has, by enumeration of a small vocabulary."""

from __future__ import annotations

import pytest
import torch

from composer_replication.policy_gradient import kl_k3, kl_to_reference

V = 7


@pytest.fixture
def policies():
    """Logits of the policy (a leaf), the reference, and the policy that sampled; float64."""
    torch.manual_seed(3)
    policy, reference, sampler = torch.randn(3, V, dtype=torch.float64).unbind()
    return policy.requires_grad_(), reference, sampler


def kl(p, q):
    return (p.exp() * (p - q)).sum()


def gradients(policy, *values):
    return [torch.autograd.grad(value, policy, retain_graph=True)[0] for value in values]


def expected(estimator, logprobs, reference, sampler):
    """The mean of the loss term over tokens that `sampler` draws, each weighted by its probability."""
    sampled = sampler.detach()
    return (sampled.exp() * kl_to_reference(logprobs, reference, estimator, sampled_logprobs=sampled)).sum()


@pytest.mark.parametrize("estimator", ["k3", "k2", "unbiased"])
def test_whose_gradient_the_term_has_on_the_policys_own_tokens(policies, estimator):
    policy, reference = policies[0], policies[1].log_softmax(-1)
    own = policy.log_softmax(-1)
    found, to_reference, from_reference = gradients(
        policy, expected(estimator, own, reference, own), kl(own, reference), kl(reference, own)
    )
    mine, other = (from_reference, to_reference) if estimator == "k3" else (to_reference, from_reference)
    torch.testing.assert_close(found, mine, rtol=1e-10, atol=1e-12)
    assert (found - other).norm() > 0.1 * other.norm()


@pytest.mark.parametrize(("estimator", "holds"), [("unbiased", True), ("k2", False), ("k3", False)])
def test_only_the_unbiased_term_keeps_its_gradient_on_tokens_of_another_policy(policies, estimator, holds):
    policy, reference, sampler = policies[0], policies[1].log_softmax(-1), policies[2].log_softmax(-1)
    own = policy.log_softmax(-1)
    found, wanted = gradients(policy, expected(estimator, own, reference, sampler), kl(own, reference))
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12) == holds


def test_as_a_number_each_is_near_the_divergence(policies):
    own = policies[0].detach().log_softmax(-1)
    near = (own + 0.05 * policies[1]).log_softmax(-1)
    for estimator in ("k3", "k2", "unbiased"):
        assert float(expected(estimator, own, near, own)) == pytest.approx(float(kl(own, near)), rel=0.1)


def test_without_a_sampler_the_policy_is_taken_as_its_own(policies):
    own, reference = policies[0].log_softmax(-1), policies[1].log_softmax(-1)
    found, known = (
        torch.autograd.grad(kl_to_reference(own, reference, "unbiased", sampled_logprobs=s).sum(), policies[0], retain_graph=True)
        for s in (None, own.detach())
    )
    assert torch.equal(found[0], known[0])
    torch.testing.assert_close(kl_to_reference(own, reference, "unbiased"), kl_k3(own, reference))


def test_far_ratios_stay_finite():
    far = torch.tensor([-1.0, -500.0], dtype=torch.float64, requires_grad=True)
    value = kl_to_reference(far, far.detach().flip(0), "unbiased", sampled_logprobs=far.detach().flip(0))
    assert torch.isfinite(torch.autograd.grad(value.sum(), far)[0]).all()


def test_an_unknown_estimator_is_refused(policies):
    with pytest.raises(ValueError, match="unknown KL estimator 'k4'"):
        kl_to_reference(policies[0], policies[1], "k4")
