"""The three channels on whole logits by PyTorch's own operations, written from the formulas in `docs/` and the papers: what the
kernels and the composed loss are compared with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from gpu_checks.made import LOSS


def plain_loss(model: nn.Module, teacher: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return rlvr + weight * hint + weight * replay, as `LOSS` has them, in the type of the model. Logits of half precision are
    taken to float32 first, as Hugging Face's losses do."""
    hint, replay = LOSS["hint"]["weight"], LOSS["replay"]["weight"]
    logits = _logits(model, batch["input_ids"], batch["attention_mask"])
    total: Tensor = _policy_gradient(logits, batch) + hint * _hint(logits, teacher, batch) + replay * _pairs(model, batch)
    return total


def _logits(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return logits if logits.dtype == torch.float64 else logits.float()


def _logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probs [B, T - 1] of all tokens but the first."""
    return logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]


def _policy_gradient(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """DAPO (arXiv:2503.14476): a clipped ratio, averaged over all tokens."""
    options = LOSS["rlvr"]
    weights, advantages = batch["rlvr_weights"][:, 1:], batch["advantages"][:, 1:]
    ratio = (_logprobs(logits, batch["input_ids"]) - batch["old_logprobs"][:, 1:]).mul(weights).exp()
    clipped = ratio.clamp(1.0 - options["epsilon_low"], 1.0 + options["epsilon_high"])
    return -(weights * torch.minimum(ratio * advantages, clipped * advantages)).sum() / batch["rlvr_denominator"]


def _hint(logits: Tensor, teacher: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """M = (1 - b) S + b T, D = b KL(T || M) + (1 - b) KL(S || M), summed over a turn."""
    beta = LOSS["hint"]["beta"]
    with torch.no_grad():
        taught = _logits(teacher, batch["ctx_teacher_input_ids"], batch["ctx_teacher_attention_mask"])
    turns = torch.arange(len(taught), device=taught.device)[:, None]
    s = logits[batch["student_row"][:, None], batch["student_response_idx"] - 1].log_softmax(-1)
    t = taught[turns, batch["teacher_response_idx"] - 1].log_softmax(-1)
    m = ((1.0 - beta) * s.exp() + beta * t.exp()).log()
    divergence: Tensor = beta * (t.exp() * (t - m)).sum(-1) + (1.0 - beta) * (s.exp() * (s - m)).sum(-1)
    return (divergence * batch["sdpo_loss_mask"]).sum() / batch["hint_denominator"]


def _pairs(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """DPO (arXiv:2305.18290) and its anchor, the negative log-likelihood of the chosen answers."""
    sums, gained = {}, {}
    for side in ("chosen", "rejected"):
        ids, mask, wanted = (batch[f"dpo_{side}_{what}"] for what in ("input_ids", "attention_mask", "response_mask"))
        logprobs = _logprobs(_logits(model, ids, mask), ids)
        sums[side] = (logprobs * wanted[:, 1:]).sum(-1)
        gained[side] = sums[side] - batch[f"dpo_{side}_ref_logprobs"]
    losses = -logsigmoid(LOSS["replay"]["dpo_beta"] * (gained["chosen"] - gained["rejected"]))
    losses = losses - LOSS["replay"]["anchor"] * sums["chosen"]
    return (losses * batch["dpo_weights"]).sum() / batch["replay_denominator"]
