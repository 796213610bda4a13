"""The hint channel: distil what the policy predicts with a hint in its context into the policy without it, at the turns that went
wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from composer_replication.config import HintConfig
from composer_replication.distillation import (
    TAID,
    EntropyAwareOPD,
    EntropyGatedOPD,
    GeneralizedJSD,
    SampledToken,
    SelfTeacher,
    TeacherPart,
    TopKJSD,
)
from composer_replication.loss.channels.common import Result, divisor, watched
from composer_replication.loss.forward import (
    Forward,
    FusedRows,
    HintLoss,
    PlainRows,
    Rows,
    divergence_of,
    evaluating,
    read_rows,
)

_ENTROPY_OVER = 64
"""Tokens of a micro-batch whose teacher's entropy is measured: each costs one more row of a product with the head."""


class _Compared(NamedTuple):
    """The compared tokens, [n] each: which hinted turn, which row of the students, and where on both sides."""

    turn: Tensor
    row: Tensor
    student_at: Tensor
    teacher_at: Tensor
    weights: Tensor


def hinted_rows(batch: Mapping[str, Tensor]) -> Rows:
    """Return the rows that the self-teacher reads."""
    return Rows(batch["ctx_teacher_input_ids"], batch.get("ctx_teacher_attention_mask"))


def hint_channel(
    model: nn.Module,
    student: Forward,
    hinted: Forward | None,
    batch: Mapping[str, Tensor],
    self_teacher: SelfTeacher,
    options: HintConfig,
    taid_t: float | None = None,
) -> Result:
    """Return `options.weight` times the weighted mean of the divergence over the compared tokens; the metrics are without it.

    Args:
        hinted: the live policy's forward pass over `hinted_rows`, for a live teacher. None makes the teacher read them.
        taid_t: TAID's present t, which `options.form = "taid"` needs.

    Raises:
        ValueError: a compared position lies outside its sequence or holds different tokens on the two sides.
    """
    compared, loss, weight = _compared(batch), divergence_form(options, taid_t), options.weight
    shares = compared.weights / divisor(compared.weights, batch.get("hint_denominator"), "hint_denominator")
    parts = self_teacher.parts(model)
    teacher = [(part.share, _teacher_rows(part, hinted if part.is_live(model) else None, batch, compared)) for part in parts]
    rows = student.rows(compared.row, compared.student_at)
    pull = watched(rows)
    tokens = batch["input_ids"][compared.row, compared.student_at]
    value, losses = divergence_of(rows, teacher, tokens, loss, weight * shares, options.temperature)
    metrics = {
        "hint/loss": value.item() / weight,
        "hint/tokens": float(len(shares)),
        f"hint/{loss.name}/mean": losses.mean().item(),
    }
    if len(teacher) == 1:
        metrics["hint/teacher_entropy/mean"] = _entropy(teacher[0][1], tokens, options.temperature)
    return Result(value, metrics, pull)


def _entropy(teacher: FusedRows | PlainRows, tokens: Tensor, temperature: float) -> float:
    """Return the mean entropy in nats of the teacher's distribution over the compared tokens: over `_ENTROPY_OVER` of them,
    evenly spread, where there are more."""
    every = -(-len(tokens) // _ENTROPY_OVER)
    with torch.no_grad():
        scores = teacher.every(every).logprobs(tokens[::every], temperature)
    return scores.entropy.mean().item()


def divergence_form(options: HintConfig, taid_t: float | None) -> HintLoss:
    """Return the divergence that `options` describes. Raises ValueError where `form = "taid"` and `taid_t` is not in [0, 1]."""
    if taid_t is not None and options.form != "taid":
        raise ValueError(f"loss.hint.form = {options.form!r} does not read taid_t: leave it out")
    match options.form:
        case "taid":
            if taid_t is None:
                raise ValueError("loss.hint.form = 'taid' needs taid_t, such as the `t` of a TAIDScheduler")
            if not 0.0 <= taid_t <= 1.0:
                raise ValueError(f"taid_t must be in [0, 1], got {taid_t}")
            return TAID(taid_t)
        case "entropy_opd":
            return EntropyAwareOPD(options.entropy_h_max)
        case "entropy_gated":
            return EntropyGatedOPD(options.entropy_tau, options.entropy_k, options.entropy_alpha)
        case "sampled_token":
            return SampledToken()
        case "top_k_jsd":
            return TopKJSD(options.top_k, options.beta)
        case "jsd":
            return GeneralizedJSD(options.beta, options.scale, options.token_clip)


def _compared(batch: Mapping[str, Tensor]) -> _Compared:
    teacher_ids, mask = batch["ctx_teacher_input_ids"], batch["sdpo_loss_mask"]
    turn, k = (mask > 0).nonzero(as_tuple=True)
    rows = batch.get("student_row")
    row = turn if rows is None else rows[turn]
    student_at, teacher_at = batch["student_response_idx"][turn, k], batch["teacher_response_idx"][turn, k]
    _check_inside(row, student_at, batch["input_ids"], batch.get("attention_mask"), "student_response_idx")
    _check_inside(turn, teacher_at, teacher_ids, batch.get("ctx_teacher_attention_mask"), "teacher_response_idx")
    student_tokens, teacher_tokens = batch["input_ids"][row, student_at], teacher_ids[turn, teacher_at]
    differ = (student_tokens != teacher_tokens).nonzero().flatten().tolist()
    if differ:
        i = differ[0]
        raise ValueError(
            f"hinted turn {int(turn[i])}, compared token {int(k[i])}: "
            f"student row {int(row[i])} has token {int(student_tokens[i])} at position {int(student_at[i])}, "
            f"its teacher row has token {int(teacher_tokens[i])} at position {int(teacher_at[i])} "
            f"({len(differ)} of {len(turn)} compared tokens differ)"
        )
    weights = mask[turn, k].to(torch.promote_types(mask.dtype, torch.float32))
    return _Compared(turn, row, student_at, teacher_at, weights)


def _check_inside(row: Tensor, position: Tensor, ids: Tensor, attention_mask: Tensor | None, key: str) -> None:
    inside = (row >= 0) & (row < ids.shape[0]) & (position >= 1) & (position < ids.shape[1])
    if bool(inside.all()) and attention_mask is not None:
        inside = attention_mask[row, position] != 0
    if not bool(inside.all()):
        i = int((~inside).nonzero()[0])
        raise ValueError(
            f"{key} points to position {int(position[i])} of row {int(row[i])}, outside that row's tokens (or at its first one)"
        )


def _teacher_rows(
    part: TeacherPart, hinted: Forward | None, batch: Mapping[str, Tensor], compared: _Compared
) -> FusedRows | PlainRows:
    """Return the rows that predict the compared tokens in the teacher's sequences, without gradient and with dropout off."""
    with part.context(), evaluating(part.model):
        read = read_rows(part.model, [hinted_rows(batch)])[0] if hinted is None else hinted
        return read.rows(compared.turn, compared.teacher_at).detach()  # and with the weights of the head in this context
