"""TAID: distillation towards a target that moves from the student to the teacher (arXiv:2501.16937).

    p_t = softmax((1 - t) stop_grad(student_logits) + t teacher_logits)
    loss = - mean over tokens of sum_v p_t(v) log softmax(student_logits)(v)

This is the paper's cross-entropy: it differs from KL(p_t || student) by the entropy of p_t, which has no gradient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from composer_replication.distillation._numerics import check_within, masked_mean, masked_rows
from composer_replication.kernels import upcast


def taid_per_token(student_logits: Tensor, teacher_logits: Tensor, *, t: float) -> Tensor:
    """Return the TAID cross-entropy per row, in nats: [..., V] and [..., V] -> [...]. At t = 0 its gradient is 0, at t = 1 that
    of KL(teacher || student).

    Columns where the student's logit is -inf are left out, as in the authors' code. Raises ValueError unless 0 <= t <= 1.
    """
    check_t(t)
    if student_logits.shape != teacher_logits.shape:
        raise ValueError(
            f"student logits {tuple(student_logits.shape)} and teacher logits {tuple(teacher_logits.shape)} differ in shape"
        )
    student, teacher = upcast(student_logits), upcast(teacher_logits.detach())
    anchor = student.detach()
    ends = {0.0: anchor, 1.0: teacher}  # not products there: 0 * -inf is NaN
    mixed = ends[t] if t in ends else (1.0 - t) * anchor + t * teacher
    log_s = torch.log_softmax(student, dim=-1)
    return -(torch.softmax(mixed, dim=-1) * log_s.masked_fill(log_s == -torch.inf, 0.0)).sum(-1)


def check_t(t: float) -> None:
    """Raise ValueError unless 0 <= t <= 1."""
    check_within("TAID's t", t, 0.0, 1.0)


def taid_loss(student_logits: Tensor, teacher_logits: Tensor, mask: Tensor | None = None, *, t: float) -> Tensor:
    """Mean of `taid_per_token` over the rows of `mask` [...] (weights; 0 leaves a row out) of [..., V] logits.

    All masked gives 0.
    """
    student, teacher, weights = masked_rows(student_logits, teacher_logits, mask)
    return masked_mean(taid_per_token(student, teacher, t=t), weights)


class TAIDScheduler:
    """The paper's adaptive schedule of t (arXiv:2501.16937, algorithm 1), from `t_start` to `t_end`, never falling.

    t rises faster while the loss falls; a linear ramp over `num_train_steps` is its floor. `disable_adaptive=True` leaves
    only the ramp. Call `update_t` once per step of the run with the loss of the whole batch (all micro-batches and ranks), or
    the clocks of ranks drift.
    """

    def __init__(
        self,
        num_train_steps: int,
        t_start: float = 0.4,
        t_end: float = 1.0,
        alpha: float = 5e-4,
        beta: float = 0.99,
        disable_adaptive: bool = False,
    ) -> None:
        """Raise ValueError unless num_train_steps >= 1, 0 <= t_start <= t_end <= 1, alpha >= 0 and 0 <= beta < 1."""
        if num_train_steps < 1 or not 0.0 <= t_start <= t_end <= 1.0 or alpha < 0.0 or not 0.0 <= beta < 1.0:
            raise ValueError(
                "TAIDScheduler needs num_train_steps >= 1, 0 <= t_start <= t_end <= 1, alpha >= 0 and 0 <= beta < 1, got "
                f"num_train_steps={num_train_steps}, t_start={t_start}, t_end={t_end}, alpha={alpha}, beta={beta}"
            )
        self.num_train_steps = num_train_steps
        self.t_start = t_start
        self.t_end = t_end
        self.alpha = alpha
        self.beta = beta
        self.disable_adaptive = disable_adaptive
        self._t = t_start
        self._previous_loss: float | None = None
        self._momentum = 0.0

    @property
    def t(self) -> float:
        """The coefficient for the next step."""
        return self._t

    def update_t(self, loss: Tensor | float, *, global_step: int) -> float:
        """Advance t after step `global_step` with that step's TAID loss; returns the new t.

        The first loss is only remembered. A loss of exactly 0 means that the channel was off in this step: it says nothing about
        progress, so only the ramp applies. Raises ValueError when the loss is not finite.
        """
        value = loss.detach().item() if isinstance(loss, Tensor) else float(loss)
        if not math.isfinite(value):
            raise ValueError(f"TAIDScheduler.update_t got a loss that is not finite: {value}")
        ramp = self.t_start + (self.t_end - self.t_start) * min(1.0, global_step / self.num_train_steps)
        if self.disable_adaptive:
            self._t = ramp
        elif value == 0.0:
            self._t = max(ramp, self._t)
        elif self._previous_loss is None:
            self._previous_loss = value
        else:
            gain = (self._previous_loss - value) / (self._previous_loss + 1e-15)
            self._momentum = self.beta * self._momentum + (1.0 - self.beta) * gain
            step = self.alpha * (1.0 - self._t) / (1.0 + math.exp(-max(self._momentum, -700.0)))
            self._t = min(self.t_end, max(ramp, self._t + step))
            self._previous_loss = value
        return self._t

    def state_dict(self) -> dict[str, float | None]:
        """Return the state that `load_state_dict` needs to continue exactly; plain floats."""
        return {"t": self._t, "previous_loss": self._previous_loss, "momentum": self._momentum}

    def load_state_dict(self, state: dict[str, float | None]) -> None:
        """Restore what `state_dict` returned. Raises KeyError on a missing entry and ValueError when t or momentum is None."""
        t, previous, momentum = state["t"], state["previous_loss"], state["momentum"]
        if t is None or momentum is None:
            raise ValueError("a TAIDScheduler state needs numbers for 't' and 'momentum'")
        self._t, self._previous_loss, self._momentum = t, previous, momentum
