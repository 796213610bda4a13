"""Log-probs of tokens under what a learner compares its policy with: frozen copies of it, and the policy before a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from composer_replication.distillation import SelfTeacher
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward import LogprobCache, evaluating, in_lockstep, sequence_logprobs
from composer_replication.loss.micro_batches import passes
from composer_replication.policy_gradient import kl_k1_penalty
from composer_replication.types import Trajectory


def proximal_logprobs(policy: nn.Module, batch: Batch, temperature: float) -> Tensor:
    """Return log-probs [B, T] of the sampled tokens under the present policy, to which the ratios of all updates are taken."""
    rows = batch["input_ids"], batch["attention_mask"], batch["response_mask"]
    with evaluating(policy):
        return sequence_logprobs(policy, *rows, temperature, batch.get("routed_experts"))


def reference_logprobs(
    reference: SelfTeacher, policy: nn.Module, batch: Batch, temperature: float, known: LogprobCache
) -> Tensor:
    """Return log-probs [B, T] of the sampled tokens under the reference; those that are `known` are not computed again."""
    (part,) = reference.parts(policy)
    experts = batch.get("routed_experts")

    def score(ids: Tensor, mask: Tensor, wanted: Tensor) -> Tensor:
        with part.context(), evaluating(part.model):
            return sequence_logprobs(part.model, ids, mask, wanted, temperature, experts)

    rows = batch["input_ids"], batch["attention_mask"], batch["response_mask"]
    if experts is not None or in_lockstep(part.model):  # what is known must not decide how many passes a rank makes
        return score(*rows)
    return known.logprobs(score, "the reference", *rows, temperature)


def kl_to_reference(
    reference: SelfTeacher,
    policy: nn.Module,
    trajectories: Sequence[Trajectory],
    *,
    temperature: float,
    tokens: int,
    known: LogprobCache,
) -> list[float]:
    """Return the k1 estimate, in nats, of each trajectory's KL(policy that sampled it || reference), read in passes of at most so
    many `tokens`. Sampled tokens without a recorded log-prob are left out."""
    found = [0.0] * len(trajectories)
    device = next(policy.parameters()).device
    for places in passes([len(trajectory.context_ids(len(trajectory.turns))) for trajectory in trajectories], tokens):
        some = [trajectories[place] for place in places]
        batch = collate(some, [0.0] * len(some), pad_id=0, device=device)
        logprobs = reference_logprobs(reference, policy, batch, temperature, known)
        kls = kl_k1_penalty(batch["old_logprobs"], logprobs, batch["rlvr_weights"]).tolist()
        for place, kl in zip(places, kls, strict=True):
            found[place] = kl
    return found


def kto_divergence(policy: nn.Module, unmatched: Batch, tokens: int, device: torch.device) -> Tensor:
    """Return KTO's reference point []: how much likelier answers are after prompts that they do not belong to than under the
    reference, in the mean and at least 0 (arXiv:2402.01306, section 4.2).

    Args:
        unmatched: a step's `UNMATCHED_KEYS`; empty where all of its pairs have one prompt, for a reference point of 0.
        tokens: passes read so many at most.
    """
    if not unmatched:
        return torch.zeros(())
    distances = _answers(policy, unmatched, "unmatched", tokens, device) - unmatched["dpo_unmatched_ref_logprobs"].cpu()
    return distances.mean().clamp(min=0.0)


def rejected_likelihoods(policy: nn.Module, batch: Batch, tokens: int, device: torch.device) -> dict[str, float]:
    """Return how likely a batch's rejected answers are under the present policy, and how far that is from the start where the
    batch knows it: metrics of a loss that does not read them. Turns that are held have none. `tokens` as in `kto_divergence`."""
    lengths = batch["dpo_rejected_response_mask"].sum(-1).cpu()
    rejected = lengths > 0
    if not bool(rejected.any()):
        return {}
    some = {key: value[rejected.to(value.device)] for key, value in batch.items() if key.startswith("dpo_rejected_")}
    sums = _answers(policy, some, "rejected", tokens, device)
    found = {"replay/rejected/logprob/mean": (sums / lengths[rejected]).mean().item()}
    if "dpo_rejected_ref_logprobs" in some:
        distances = sums - some["dpo_rejected_ref_logprobs"].cpu()
        known = distances[~torch.isnan(distances)]
        found |= {"replay/rejected/distance/mean": known.mean().item()} if len(known) else {}
    return found


def _answers(policy: nn.Module, batch: Batch, side: str, tokens: int, device: torch.device) -> Tensor:
    """Return the log-probs [P], on the CPU, of one side's answers, each summed over its tokens."""
    rows = [batch[f"dpo_{side}_{what}"] for what in ("input_ids", "attention_mask", "response_mask")]
    found = torch.zeros(len(rows[0]))
    for places in passes(rows[1].sum(-1).tolist(), tokens):
        ids, mask, wanted = (row[places].to(device) for row in rows)
        with evaluating(policy):
            found[places] = sequence_logprobs(policy, ids, mask, wanted).sum(-1).float().cpu()
    return found


def teacher_sums(teacher: SelfTeacher, policy: nn.Module, ids: Tensor, mask: Tensor, wanted: Tensor) -> Tensor:
    """Return the sums [B] of the log-probs of the `wanted` tokens of `ids` [B, T] under the self-teacher, in float64 on the CPU.
    For a self-teacher made of several models it is their mean, weighted by their shares."""
    total = torch.zeros(len(ids), dtype=torch.float64)
    for part in teacher.parts(policy):
        with part.context(), evaluating(part.model):
            total += part.share * sequence_logprobs(part.model, ids, mask, wanted).double().sum(-1).cpu()
    return total
