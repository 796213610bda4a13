"""Draws from logits: batched, seeded per row, with the log-probs of what was drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def uniforms(seeds: Sequence[int], count: int, device: torch.device) -> Tensor:
    """Return numbers in [0, 1), float64 `[len(seeds), count]`; row i depends on `seeds[i]` alone."""
    rows = [torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(rows).to(device)


def draw(logits: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draw one id per row; return it with its log-prob under the distribution it was drawn from.

    Inverse transform sampling (Devroye, Non-Uniform Random Variate Generation, 1986, III.2.1): the first id at which the
    cumulative distribution exceeds the uniform number. An id of probability 0 is never drawn.

    Args:
        logits: `[B, V]`, any float type; the softmax is taken in float32.
        uniform: float64 `[B]` in [0, 1); unused at temperature 0.
        temperature: the logits' divisor; 0 takes the largest logit, with the log-prob of the untempered distribution.

    Returns:
        ids int64 `[B]` and log-probs float32 `[B]` (NaN where the logits are not finite).
    """
    logits = logits.float()
    logprobs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
    if temperature > 0:
        cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
        target = (uniform * cumulative[:, -1])[:, None]
        ids = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    else:
        ids = logits.argmax(-1, keepdim=True)
    return ids[:, 0], logprobs.gather(1, ids)[:, 0]
