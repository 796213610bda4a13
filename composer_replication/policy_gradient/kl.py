"""Estimates of the KL divergence between two policies from the log-probs of sampled tokens (http://joschu.net/blog/kl-approx.html).

As a number each of them is an estimate of KL(policy || reference). As a term of the LOSS they differ, because the gradient does
not go through the sampling. On tokens that the policy itself has drawn, the expected gradient is

- `k3`: that of KL(reference || policy), which covers what the reference does and hardly punishes what it never does
- `k2` and `unbiased`: that of KL(policy || reference)

Off-policy only `unbiased` keeps its expectation, as it weights each token by the ratio to the policy that sampled it.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from composer_replication.policy_gradient.surrogates import MAX_LOG_RATIO

KlEstimator: TypeAlias = Literal["k3", "k2", "unbiased"]


def kl_to_reference(
    logprobs: Tensor, ref_logprobs: Tensor, estimator: KlEstimator = "k3", *, sampled_logprobs: Tensor | None = None
) -> Tensor:
    """Return the KL term of the loss per token, in nats; gradient flows through `logprobs` only.

    - `k3`: exp(d) - 1 - d with d = reference - policy, the term of GRPO (arXiv:2402.03300, equation 4)
    - `k2`: d^2 / 2
    - `unbiased`: r k3 with r = exp(logprobs - sampled_logprobs), through which gradient flows too (DeepSeek-V3.2,
      arXiv:2512.02556)

    `sampled_logprobs` are those of the policy that sampled the tokens; None means the present one, and r = 1. Raises ValueError
    on an unknown estimator.
    """
    if estimator == "k3":
        return kl_k3(logprobs, ref_logprobs)
    if estimator == "k2":
        return 0.5 * (ref_logprobs.detach() - logprobs) ** 2
    if estimator == "unbiased":
        sampled = logprobs if sampled_logprobs is None else sampled_logprobs
        ratio = (logprobs - sampled.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        return ratio * kl_k3(logprobs, ref_logprobs)
    raise ValueError(f"unknown KL estimator {estimator!r}: expected 'k3', 'k2' or 'unbiased'")


def kl_k3(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """Return the k3 estimate of KL(pi || other) on tokens drawn from pi: exp(d) - 1 - d >= 0 with d = other - pi.

    Element-wise, in nats. Above d = 20 the exponential goes on as its tangent, so that it stays finite and still pulls. Gradient
    flows through `logprobs` only.
    """
    difference = other_logprobs.detach() - logprobs
    beyond = (difference - MAX_LOG_RATIO).clamp(min=0.0)
    return torch.expm1(difference.clamp(max=MAX_LOG_RATIO)) + math.exp(MAX_LOG_RATIO) * beyond - difference


def kl_k1_penalty(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Sum over the tokens in `mask` [B, T] (non-zero) of log pi - log ref [B, T]: the k1 estimate of a sequence's KL(pi || ref),
    without gradient, [B].

    Unbiased and possibly negative. Times a coefficient it is subtracted from the REWARD, before advantages are taken, where
    `kl_to_reference` belongs in the loss.
    """
    return torch.where(mask != 0, logprobs - ref_logprobs, 0.0).detach().sum(-1)
