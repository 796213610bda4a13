"""The policy-gradient objective as three separate things: a per-token loss, a per-token weight, and one global denominator.

    loss = sum_t weight_t * loss_t / denominator

An objective's name stands for a surrogate (`surrogates.py`) and an average. As weights and denominator are fixed over the whole
batch before it is cut into micro-batches or spread over ranks, cutting changes nothing.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from torch import Tensor

from composer_replication.policy_gradient.surrogates import SurrogateKind

Objective: TypeAlias = Literal["grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "dppo"]

_OTHER_SURROGATES: dict[str, SurrogateKind] = {kind: kind for kind in ("gspo", "cispo", "sapo", "dppo")}


def surrogate_of(objective: Objective) -> SurrogateKind:
    """Return the surrogate that an objective uses."""
    return _OTHER_SURROGATES.get(objective, "ppo")


def sequence_weights(mask: Tensor, objective: Objective, *, max_tokens: int | None = None) -> tuple[Tensor, Tensor]:
    """Return weights [B, T] and 0-dim denominator of an objective, both float32 and both made from the same `mask` [B, T]
    (non-zero = in the loss).

    - `grpo`, `gspo`, `sapo`: mean over a sequence's tokens, then over sequences (arXiv:2402.03300, equation 3; arXiv:2507.18071,
      equation 13; arXiv:2511.20347)
    - `dr_grpo`: sum over tokens / (sequences * max_tokens) (arXiv:2503.20783, section 3.2); `max_tokens` is the
      sampled-token budget
    - `dapo`, `bnpo`, `cispo`, `dppo`: mean over all tokens of the batch (arXiv:2503.14476, equation 8). TRL's `bnpo` takes the
      mean over each micro-batch, which depends on how the batch was cut; over one uncut batch it is this one.

    A sequence whose mask is all zero counts in no denominator. The denominator of an all-zero mask is 0 (the channel is
    off). Raises ValueError on an unknown objective, or for `dr_grpo` when `max_tokens` is missing or a sequence has more
    tokens than that.
    """
    weights = (mask != 0).float()
    lengths = weights.sum(-1, keepdim=True)
    sequences = (lengths > 0).sum().float()
    if objective in ("grpo", "gspo", "sapo"):
        return weights / lengths.clamp(min=1.0), sequences
    if objective in ("dapo", "bnpo", "cispo", "dppo"):
        return weights, lengths.sum()
    if objective == "dr_grpo":
        if max_tokens is None or max_tokens < 1:
            raise ValueError("objective 'dr_grpo' needs max_tokens, the sampled-token budget of a sequence")
        if lengths.numel() and float(lengths.max()) > max_tokens:
            raise ValueError(f"a sequence has {int(lengths.max())} tokens in the loss, more than max_tokens={max_tokens}")
        return weights, sequences * max_tokens
    raise ValueError(f"unknown objective {objective!r}: expected one of {', '.join(get_args(Objective))}")
