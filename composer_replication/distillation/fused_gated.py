"""lm_head and the paper's entropy-gated loss in one pass over the rows, for student and teacher at once: four matrix products.

With s, t = softmax of student and teacher logits (already divided by the temperature), y the sampled token, q = t renormalised
over its k likeliest entries and g = alpha where the entropy of t is at least tau, else 0 (arXiv:2603.07079):

    L = stop_grad(log s(y) - log t(y)) log s(y) + g sum q (log q - log s)
    dL / dlogits = (log s(y) - log t(y)) (onehot(y) - s) + g (s - q)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from composer_replication.distillation.fused import WeightedRows
from composer_replication.distillation.sampled_token import EntropyGatedOPD
from composer_replication.kernels import Head, TeacherRows, for_blocks, total_loss


def fused_entropy_gated(
    hidden: Tensor,
    head: Head,
    teacher: Sequence[TeacherRows],
    tokens: Tensor,
    loss: EntropyGatedOPD,
    weights: Tensor,
    *,
    temperature: float = 1.0,
    rows_per_chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum of `weights` [N] times the loss of head(hidden [N, H]) against the teacher at `tokens` [N] (int64), logits divided by
    `temperature`. By PyTorch's passes on any device: there is no Triton kernel of it.

    Returns the 0-dim sum, differentiable once with respect to hidden, weight and bias, and without gradient log s(y) - log t(y)
    plus the gated term, [N]. Raises ValueError on shapes that disagree and unless temperature > 0.
    """
    if not hidden.shape[:1] == tokens.shape == weights.shape:
        shapes = [tuple(x.shape) for x in (hidden, tokens, weights)]
        raise ValueError(f"expected hidden [N, H], tokens [N] and weights [N], got {shapes}")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    kernel = _GatedKernel(head, tokens, loss, weights, temperature)
    value = total_loss(hidden, head, kernel, teacher=teacher, rows_per_chunk=rows_per_chunk)
    return value, kernel.per_row


class _GatedKernel(WeightedRows):
    """`RowKernel` of the loss."""

    def __init__(self, head: Head, tokens: Tensor, loss: EntropyGatedOPD, weights: Tensor, temperature: float) -> None:
        super().__init__(head, weights, temperature)
        self.tokens, self.loss = tokens, loss

    def __call__(self, product: Tensor, teacher: Tensor | None, rows: slice) -> Tensor:
        assert teacher is not None
        tokens, per_row = self.tokens[rows], self.per_row[rows]
        losses = torch.empty_like(per_row)

        def work(block: slice) -> None:
            logits = product[block]
            slope = self.head.finish_(logits, self.temperature)
            taught = teacher[block].div_(self.temperature)
            losses[block], per_row[block] = _rows(logits, taught, tokens[block], self.loss)
            if slope is not None:
                logits.mul_(slope)

        for_blocks(product, work)
        return self.weigh(losses, product, rows)


def _rows(student: Tensor, teacher: Tensor, tokens: Tensor, loss: EntropyGatedOPD) -> tuple[Tensor, Tensor]:
    """Return losses [n] of a block, and what the two sides differ by [n]; the gradient overwrites the student's logits."""
    at = tokens.unsqueeze(-1)
    log_s, log_t = student.log_softmax(-1), teacher.log_softmax(-1)
    sampled = log_s.gather(-1, at).squeeze(-1)
    advantage = log_t.gather(-1, at).squeeze(-1) - sampled
    best, among = log_t.topk(min(loss.k, log_t.shape[-1]), dim=-1)
    log_q = best.log_softmax(-1)
    q = log_q.exp()
    added = torch.where(q == 0.0, 0.0, q * (log_q - log_s.gather(-1, among))).sum(-1)
    entropy = torch.special.entr(log_t.exp()).sum(-1)
    gate = torch.where(entropy >= loss.tau, loss.alpha, 0.0).to(advantage.dtype)
    added = torch.where(gate == 0.0, 0.0, added) * gate
    torch.exp(log_s, out=student).mul_((gate + advantage).unsqueeze(-1))
    student.scatter_add_(-1, at, -advantage.unsqueeze(-1)).scatter_add_(-1, among, -gate.unsqueeze(-1) * q)
    return added - advantage * sampled, added - advantage
