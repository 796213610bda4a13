"""Log-probs of preference pairs under the policy that made them: the reference of DPO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from composer_replication.loss.forward import (
    LogprobCache,
    action_entropies,
    evaluating,
    in_lockstep,
    sequence_logprobs,
    unwrapped,
    weights_digest,
)
from composer_replication.types import Pair, Trajectory
from composer_replication.types.errors import ModelError


@dataclass(frozen=True, slots=True)
class PolicyScorer:
    """Log-probs of pairs and entropies of trajectories under a policy as it is now, without dropout."""

    model: nn.Module
    cache: LogprobCache
    """Log-probs of the answers of pairs, which are not computed again."""

    def with_reference_logprobs(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs with the summed log-probs of their answers, 0 for a missing one: the policy becomes their reference.

        Raises ModelError when the device runs out of memory.
        """
        policy = weights_digest(unwrapped(self.model))
        return [
            replace(
                pair,
                ref_chosen_logprob=_score(self.model, policy, pair.prompt_ids, pair.chosen_ids, self.cache),
                ref_rejected_logprob=_score(self.model, policy, pair.prompt_ids, pair.rejected_ids, self.cache),
                ref_unmatched_logprob=_score(self.model, policy, pair.prompt_ids, pair.unmatched_ids, self.cache),
            )
            for pair in pairs
        ]

    def action_entropies(self, trajectories: Sequence[Trajectory]) -> dict[str, list[float | None]]:
        """Return the mean entropy in nats of each turn's action, by trajectory id."""
        return action_entropies(self.model, trajectories)


def with_unmatched(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs, each with the chosen or the rejected answer, in turns, of the next one that has another prompt: what KTO
    estimates its reference point on. Without any other prompt there is no such answer."""
    found = []
    for number, pair in enumerate(pairs):
        others = (pairs[(number + ahead) % len(pairs)] for ahead in range(1, len(pairs)))
        other = next((one for one in others if one.prompt_ids != pair.prompt_ids and one.rejected_ids), None)
        answer = () if other is None else (other.chosen_ids, other.rejected_ids)[number % 2]
        found.append(replace(pair, unmatched_ids=answer))
    return found


def _score(model: nn.Module, policy: str, prompt: tuple[int, ...], continuation: tuple[int, ...], cache: LogprobCache) -> float:
    if not continuation:
        return 0.0
    ids = torch.tensor([[*prompt, *continuation]], device=next(model.parameters()).device)
    wanted = torch.zeros_like(ids)
    wanted[:, len(prompt) :] = 1
    try:
        with evaluating(model):
            score = partial(sequence_logprobs, model)
            if in_lockstep(model):  # what is known must not decide how many passes a rank makes
                return float(score(ids, torch.ones_like(ids), wanted).sum())
            return float(cache.logprobs(score, policy, ids, torch.ones_like(ids), wanted).sum())
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"the device ran out of memory while scoring a preference pair of {ids.shape[1]} tokens: {error}",
            fix="lower rollout.context_tokens or the teachers' max_tokens",
        ) from error
