"""Divergences over the k likeliest entries of one side instead of the whole vocabulary.

What a served teacher returns is its top k; and a small support is cheap to send. Both log-probs keep the normaliser of the whole
vocabulary, and what lies outside the support is put in one more bucket (the tail), so that both sides stay distributions and the
divergence is a lower bound of the full one (data processing). Without the tail they are renormalised, which is biased: it may
even exceed the full divergence, and it lets mass outside the support grow unseen. Over the teacher's k and with beta 1 that is
the local support matching of arXiv:2603.25562.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from composer_replication.distillation._numerics import check_choice, check_within, log_probs
from composer_replication.distillation.entropy_opd import teacher_entropy
from composer_replication.distillation.jsd import check_jsd, divergence_of_log_probs

Support: TypeAlias = Literal["student", "teacher"]


def top_k_jsd_per_token(
    student_logits: Tensor, teacher_logits: Tensor, *, k: int, beta: float, tail: bool = True, support: Support = "student"
) -> Tensor:
    """Return D_b per row over the k most likely entries of the `support` side: [..., V] and [..., V] -> [...] (SDPO,
    arXiv:2601.20802).

    With `tail`, or renormalised without. The teacher is detached; which entries are chosen has no gradient. k >= V is the full
    divergence. Raises ValueError as `check_top_k`.
    """
    check_top_k(k, beta, support)
    log_s, log_t = log_probs(student_logits), log_probs(teacher_logits.detach())
    if k < log_s.shape[-1]:
        chosen = (log_s if support == "student" else log_t).detach().topk(k, dim=-1).indices
        log_s, log_t = (_project(log_p, chosen, tail) for log_p in (log_s, log_t))
    return divergence_of_log_probs(log_s, log_t, beta)


def gated_forward_kl_per_token(student_logits: Tensor, teacher_logits: Tensor, *, tau: float, k: int) -> Tensor:
    """Return 1[H >= tau] KL(q || student) per row, with H the teacher's entropy in nats over the whole vocabulary and q the
    teacher renormalised over its k likeliest entries: the term that entropy-aware OPD adds to on-policy distillation where the
    teacher is unsure (arXiv:2603.07079).

    The student keeps the normaliser of the whole vocabulary. The mean is meant over ALL tokens, those with 0 included. Raises
    ValueError as `check_gate`.
    """
    check_gate(tau, k)
    log_s, log_t = log_probs(student_logits), log_probs(teacher_logits.detach())
    best = log_t.topk(min(k, log_t.shape[-1]), dim=-1)
    log_q = best.values.log_softmax(-1)
    divergence = (log_q.exp() * (log_q - log_s.gather(-1, best.indices))).sum(-1)
    return torch.where(teacher_entropy(teacher_logits) >= tau, divergence, 0.0)


def check_top_k(k: int, beta: float, support: Support) -> None:
    """Raise ValueError when k is below 1, beta outside [0, 1] or the support unknown."""
    check_within("k of a top-k divergence", k, 1)
    check_jsd(beta)
    check_choice("support", support, get_args(Support))


def check_gate(tau: float, k: int) -> None:
    """Raise ValueError when tau is negative or k below 1."""
    check_within("tau", tau, 0.0)
    check_within("k of a gated forward KL", k, 1)


def _project(log_p: Tensor, chosen: Tensor, tail: bool) -> Tensor:
    """Return the `chosen` entries [..., k] of log-probs [..., V] as a distribution: with a bucket for the rest, or renormalised.

    The bucket is summed up itself: 1 less the mass of the others has neither digits nor a gradient where the others have it all.
    """
    kept = log_p.gather(-1, chosen)
    if not tail:
        return kept.log_softmax(-1)
    rest = log_p.scatter(-1, chosen, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([kept, rest], dim=-1)
