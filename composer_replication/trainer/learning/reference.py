"""Log-probs of preference pairs under the policy that made them: the reference of DPO."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from composer_replication.loss.forward import LogprobCache, evaluating, sequence_logprobs, unwrapped, weights_digest
from composer_replication.types import Pair
from composer_replication.types.errors import ModelError

__all__ = ["with_reference_logprobs"]


def with_reference_logprobs(model: nn.Module, pairs: Sequence[Pair], cache: LogprobCache) -> list[Pair]:
    """The pairs with both sides' summed log-probs under `model` as it is, without dropout; what `cache` has is not scored again.

    Raises ModelError when the device runs out of memory.
    """
    policy = weights_digest(unwrapped(model))
    return [
        dataclasses.replace(
            pair,
            ref_chosen_logprob=_score(model, policy, pair.prompt_ids, pair.chosen_ids, cache),
            ref_rejected_logprob=_score(model, policy, pair.prompt_ids, pair.rejected_ids, cache),
        )
        for pair in pairs
    ]


def _score(model: nn.Module, policy: str, prompt: tuple[int, ...], continuation: tuple[int, ...], cache: LogprobCache) -> float:
    ids = torch.tensor([[*prompt, *continuation]], device=next(model.parameters()).device)
    wanted = torch.zeros_like(ids)
    wanted[:, len(prompt) :] = 1
    try:
        with evaluating(model):
            score = partial(sequence_logprobs, model)
            return float(cache.logprobs(score, policy, ids, torch.ones_like(ids), wanted).sum())
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"the device ran out of memory while scoring a preference pair of {ids.shape[1]} tokens: {error}",
            fix="lower rollout.context_tokens or the teachers' max_tokens",
        ) from error
