"""One loss made of three channels: `total = rlvr + alpha_sdpo * hint + beta_replay * replay`.

Every channel is `sum_t w_t l_t / N` over its own tokens (or pairs), with its own weight stream w and its own GLOBAL
denominator N. A micro-batch that carries the whole batch's denominators therefore contributes exactly its share, and
`backward()` over all micro-batches adds up to the gradient of the undivided batch. A denominator that is absent is the sum
of the weights of this batch.

Batch keys (int64 ids and positions; masks and weights of any number type; B rows, T tokens, H hinted turns, K compared
tokens, P pairs). A value "at position p" belongs to the token AT p, which the logits at p - 1 predict.

- first channel: `input_ids` [B, T] right-padded, `attention_mask` [B, T], `response_mask` [B, T] or `labels` [B, T] (-100 =
  not trained on), `rlvr_weights` [B, T], `rlvr_denominator`; with `advantages` [B, T] or [B] it is the policy gradient,
  which reads `old_logprobs` [B, T] (absent: the current log-probs, that is exactly on-policy) and, for kl_beta > 0,
  `ref_logprobs` [B, T].
- hint: `ctx_teacher_input_ids` [H, Tt], `ctx_teacher_attention_mask`, `student_row` [H] (absent: 0..H-1),
  `student_response_idx` [H, K], `teacher_response_idx` [H, K], `sdpo_loss_mask` [H, K] (weight of each compared token; 0 and
  -100 leave it out), `hint_denominator`.
- replay: `dpo_{chosen,rejected}_{input_ids,attention_mask,response_mask}` [P, Tc or Tr], `dpo_{chosen,rejected}_ref_logprobs` [P]
  (sums; not read by SimPO), `dpo_weights` [P], `replay_denominator`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from composer_replication.distillation import (
    JsdScale,
    LiveTeacher,
    SelfTeacher,
    dpo_loss,
    entropy_aware_opd_per_token,
    generalized_jsd_per_token,
    simpo_loss,
    taid_per_token,
)
from composer_replication.errors import ChannelOffError
from composer_replication.policy_gradient import causal_logits, clipped_surrogate, kl_k3, sequence_logprobs, token_logprobs

__all__ = ["DpoVariant", "LossComponents", "SdpoWrapper", "compose_loss", "sequence_logprobs"]

DpoVariant: TypeAlias = Literal["dpo", "simpo"]
SdpoWrapper: TypeAlias = Literal["none", "taid", "entropy_opd"]

_Result: TypeAlias = tuple[Tensor, dict[str, float]]
"""A channel's unweighted value (0-dim, with gradient) and its metrics."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class LossComponents:
    """What `compose_loss` returns. The channel values are unweighted and 0 where the channel is off."""

    total: Tensor
    """0-dim, with the graph: what `backward()` is called on."""
    lm_ce: Tensor
    """First channel: LM cross-entropy, or the policy-gradient surrogate when the batch has advantages."""
    sdpo_jsd: Tensor
    """Hint channel."""
    trace_replay_dpo: Tensor
    """Replay channel."""
    off: Mapping[str, str]
    """Why a channel (`rlvr`, `hint`, `replay`) is off; a channel that is on is not in it."""
    metrics: Mapping[str, float]
    """Named `channel/what/stat`. Over micro-batches `*/loss`, `*/tokens` and `*/pairs` add up, `*/max` is a maximum, and the
    others are means over this call's tokens (or pairs). Channels that are off have none."""

    @property
    def rlvr(self) -> Tensor:
        """The first channel under its own name."""
        return self.lm_ce


def compose_loss(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    *,
    alpha_sdpo: float = 0.0,
    beta_replay: float = 0.0,
    dpo_variant: DpoVariant = "dpo",
    dpo_beta: float = 0.1,
    simpo_beta: float = 2.0,
    simpo_gamma: float = 1.0,
    sdpo_wrapper: SdpoWrapper = "none",
    taid_t: float | None = None,
    entropy_opd_h_max: float | None = None,
    jsd_beta: float = 0.0,
    jsd_scale: JsdScale = "trl",
    sdpo_temperature: float = 1.0,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.28,
    kl_beta: float = 0.0,
    temperature: float = 1.0,
    self_teacher: SelfTeacher | None = None,
    strict: bool = False,
) -> LossComponents:
    """The three-channel loss of a Hugging Face causal LM on one (micro-)batch; the module docstring lists the batch keys.

    A channel is off when its weight is 0 or its inputs are missing or empty; `off` says why, and `strict=True` raises
    ChannelOffError instead when its weight is above 0 (meant for whole batches: a micro-batch may well lack a channel's inputs).

    `jsd_beta=0`, the default, is forward KL(teacher || student): at an error turn the student is typically confident and
    wrong, where the gradient of the reverse KL and of the JSD vanishes (both carry a factor p_student) and the forward KL's,
    p_student - p_teacher, does not. `sdpo_temperature` divides student and teacher logits in every `sdpo_wrapper`.
    `temperature` is the sampling temperature, folded into the policy gradient's log-probs (it has no effect on cross-entropy
    and pairs). `self_teacher=None` means the live model.

    Raises ValueError on a bad option (`sdpo_wrapper="taid"` needs `taid_t` in [0, 1]), on compared hint tokens that differ
    between student and teacher, and on weights at positions that cannot be in the loss.
    """
    _check_options(alpha_sdpo, beta_replay, dpo_variant, sdpo_wrapper, taid_t)
    off = _why_off(batch, alpha_sdpo, beta_replay, dpo_variant)
    if strict:
        _raise_if_off(off, {"rlvr": 1.0, "hint": alpha_sdpo, "replay": beta_replay})
    zero = _attached_zero(model)
    first, hint, replay = zero, zero, zero
    metrics: dict[str, float] = {}
    if "rlvr" not in off or "hint" not in off:
        logits = causal_logits(model, batch["input_ids"], batch.get("attention_mask"))
    if "rlvr" not in off:
        if "advantages" in batch:
            first, measured = _policy_gradient(logits, batch, temperature, epsilon_low, epsilon_high, kl_beta)
        else:
            first, measured = _cross_entropy(logits, batch)
        metrics |= measured
    if "hint" not in off:
        student, teacher, weights = _compared_logits(model, logits, batch, self_teacher or LiveTeacher())
        student, teacher = student / sdpo_temperature, teacher / sdpo_temperature
        jsd = generalized_jsd_per_token(student, teacher, beta=jsd_beta, scale=jsd_scale)
        if sdpo_wrapper == "taid" and taid_t is not None:
            losses = taid_per_token(student, teacher, t=taid_t)
        elif sdpo_wrapper == "entropy_opd":
            losses = entropy_aware_opd_per_token(student, teacher, h_max=entropy_opd_h_max)
        else:
            losses = jsd
        hint = _weighted(losses, weights, batch.get("hint_denominator"), "hint_denominator")
        metrics |= {"hint/loss": hint.item(), "hint/tokens": float(len(weights)), "hint/jsd/mean": jsd.detach().mean().item()}
    if "replay" not in off:
        replay, measured = _replay(model, batch, dpo_variant, dpo_beta, simpo_beta, simpo_gamma)
        metrics |= measured
    total = zero + first + alpha_sdpo * hint + beta_replay * replay
    return LossComponents(total=total, lm_ce=first, sdpo_jsd=hint, trace_replay_dpo=replay, off=off, metrics=metrics)


# --- which channels are on -------------------------------------------------------------------------------------------


def _check_options(alpha: float, beta: float, dpo_variant: str, sdpo_wrapper: str, taid_t: float | None) -> None:
    if alpha < 0 or beta < 0:
        raise ValueError(f"channel weights must not be negative, got alpha_sdpo={alpha}, beta_replay={beta}")
    if dpo_variant not in ("dpo", "simpo"):
        raise ValueError(f"unknown dpo_variant {dpo_variant!r}: expected 'dpo' or 'simpo'")
    if sdpo_wrapper not in ("none", "taid", "entropy_opd"):
        raise ValueError(f"unknown sdpo_wrapper {sdpo_wrapper!r}: expected 'none', 'taid' or 'entropy_opd'")
    if sdpo_wrapper == "taid" and taid_t is None:
        raise ValueError("sdpo_wrapper='taid' needs taid_t, e.g. the `t` of a TAIDScheduler")
    if taid_t is not None and not 0.0 <= taid_t <= 1.0:
        raise ValueError(f"taid_t must be in [0, 1], got {taid_t}")


def _why_off(batch: Mapping[str, Tensor], alpha: float, beta: float, dpo_variant: DpoVariant) -> dict[str, str]:
    reasons = {
        "rlvr": _first_off(batch),
        "hint": "its weight is 0 (alpha_sdpo)" if alpha == 0 else _hint_off(batch),
        "replay": "its weight is 0 (beta_replay)" if beta == 0 else _replay_off(batch, dpo_variant),
    }
    return {channel: reason for channel, reason in reasons.items() if reason is not None}


def _raise_if_off(off: Mapping[str, str], weights: Mapping[str, float]) -> None:
    wanted = [f"{channel}: {reason}" for channel, reason in off.items() if weights[channel] > 0]
    if wanted:
        raise ChannelOffError(
            "a channel that was asked for is off: " + "; ".join(wanted),
            fix="give it inputs, set its weight to 0, or drop strict=True",
        )


def _first_off(batch: Mapping[str, Tensor]) -> str | None:
    missing = _missing(batch, "input_ids")
    if missing is not None:
        return missing
    if not any(key in batch for key in ("rlvr_weights", "labels", "response_mask")):
        return "the batch has no labels, response_mask or rlvr_weights to say which tokens are trained on"
    return None if bool(_first_weights(batch).any()) else "no token of the batch has a weight (all masked or unscored)"


def _hint_off(batch: Mapping[str, Tensor]) -> str | None:
    missing = _missing(
        batch, "input_ids", "ctx_teacher_input_ids", "student_response_idx", "teacher_response_idx", "sdpo_loss_mask"
    )
    if missing is not None:
        return missing
    return None if bool((batch["sdpo_loss_mask"] > 0).any()) else "sdpo_loss_mask selects no token"


def _replay_off(batch: Mapping[str, Tensor], dpo_variant: DpoVariant) -> str | None:
    keys = [f"dpo_{side}_{what}" for side in ("chosen", "rejected") for what in ("input_ids", "response_mask")]
    if dpo_variant == "dpo":
        keys += ["dpo_chosen_ref_logprobs", "dpo_rejected_ref_logprobs"]
    missing = _missing(batch, *keys)
    if missing is not None:
        return missing
    return "every pair has weight 0" if "dpo_weights" in batch and not bool(batch["dpo_weights"].any()) else None


def _missing(batch: Mapping[str, Tensor], *keys: str) -> str | None:
    for key in keys:
        if key not in batch:
            return f"the batch has no {key}"
        if batch[key].numel() == 0:
            return f"{key} is empty"
    return None


# --- the first channel -----------------------------------------------------------------------------------------------


def _first_weights(batch: Mapping[str, Tensor]) -> Tensor:
    """Weight stream [B, T]: the batch's own, or 1 on every token that can be trained on."""
    old = batch.get("old_logprobs") if "advantages" in batch else None
    if "rlvr_weights" in batch:
        weights = batch["rlvr_weights"]
        if bool(weights[:, 0].any()):
            raise ValueError("rlvr_weights is not 0 at position 0, which no logits predict")
        if old is not None and bool((weights[~torch.isfinite(old)] != 0).any()):
            raise ValueError(
                "rlvr_weights is not 0 where old_logprobs is not finite: leave such tokens out of the mask of sequence_weights"
            )
        return weights
    use_labels = "labels" in batch and ("advantages" not in batch or "response_mask" not in batch)
    mask = batch["labels"] != -100 if use_labels else batch["response_mask"] != 0
    if old is not None:
        mask = mask & torch.isfinite(old)
    weights = mask.float()
    weights[:, 0] = 0.0
    return weights


def _cross_entropy(logits: Tensor, batch: Mapping[str, Tensor]) -> _Result:
    weights = _first_weights(batch)
    row, position = weights.nonzero(as_tuple=True)
    targets = batch.get("labels", batch["input_ids"])[row, position]
    logprobs, _ = token_logprobs(logits[row, position - 1], targets)
    value = _weighted(-logprobs, weights[row, position], batch.get("rlvr_denominator"), "rlvr_denominator")
    return value, {"lm_ce/loss": value.item(), "lm_ce/tokens": float(len(row))}


def _policy_gradient(
    logits: Tensor, batch: Mapping[str, Tensor], temperature: float, epsilon_low: float, epsilon_high: float, kl_beta: float
) -> _Result:
    weights = _first_weights(batch)
    row, position = weights.nonzero(as_tuple=True)
    targets = batch["input_ids"][row, position]
    logprobs, entropy = token_logprobs(logits[row, position - 1], targets, temperature=temperature)
    old = batch["old_logprobs"][row, position] if "old_logprobs" in batch else logprobs.detach()
    advantages = batch["advantages"]
    advantages = advantages[row] if advantages.dim() == 1 else advantages[row, position]
    surrogate = clipped_surrogate(logprobs, old, advantages, epsilon_low=epsilon_low, epsilon_high=epsilon_high)
    losses = surrogate.loss
    metrics: dict[str, float] = {}
    if kl_beta > 0:
        if "ref_logprobs" not in batch:
            raise ValueError("kl_beta > 0 needs ref_logprobs [B, T] in the batch: the reference policy's log-prob of each token")
        kl = kl_k3(logprobs, batch["ref_logprobs"][row, position])
        losses = losses + kl_beta * kl
        metrics["rlvr/kl_ref/mean"] = kl.detach().mean().item()
    value = _weighted(losses, weights[row, position], batch.get("rlvr_denominator"), "rlvr_denominator")
    metrics |= {
        "rlvr/loss": value.item(),
        "rlvr/tokens": float(len(row)),
        "rlvr/ratio/max": surrogate.ratio.max().item(),
        "rlvr/clip_frac": surrogate.clipped.float().mean().item(),
        "rlvr/kl_k3": kl_k3(old, logprobs.detach()).mean().item(),
        "rlvr/entropy/mean": entropy.mean().item(),
    }
    return value, metrics


# --- the hint channel ------------------------------------------------------------------------------------------------


def _compared_logits(
    model: nn.Module, logits: Tensor, batch: Mapping[str, Tensor], self_teacher: SelfTeacher
) -> tuple[Tensor, Tensor, Tensor]:
    """Student and teacher logits [n, V] that predict the compared tokens, and their weights [n].

    Only those rows leave this function: the softmax never sees the others. Raises ValueError when a compared position lies
    outside its sequence or holds different tokens on the two sides.
    """
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
    teacher_logits = self_teacher.logits(model, teacher_ids, batch.get("ctx_teacher_attention_mask"))
    weights = mask[turn, k].to(torch.promote_types(mask.dtype, torch.float32))
    return _upcast(logits[row, student_at - 1]), _upcast(teacher_logits[turn, teacher_at - 1].detach()), weights


def _check_inside(row: Tensor, position: Tensor, ids: Tensor, attention_mask: Tensor | None, key: str) -> None:
    inside = (row >= 0) & (row < ids.shape[0]) & (position >= 1) & (position < ids.shape[1])
    if bool(inside.all()) and attention_mask is not None:
        inside = attention_mask[row, position] != 0
    if not bool(inside.all()):
        i = int((~inside).nonzero()[0])
        raise ValueError(
            f"{key} points to position {int(position[i])} of row {int(row[i])}, outside that row's tokens (or at its first one)"
        )


# --- the replay channel ----------------------------------------------------------------------------------------------


def _replay(
    model: nn.Module, batch: Mapping[str, Tensor], variant: DpoVariant, dpo_beta: float, simpo_beta: float, simpo_gamma: float
) -> _Result:
    chosen, chosen_tokens = _pair_logps(model, batch, "chosen")
    rejected, rejected_tokens = _pair_logps(model, batch, "rejected")
    if variant == "dpo":
        ref_chosen, ref_rejected = batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"]
        losses = dpo_loss(chosen, rejected, ref_chosen, ref_rejected, dpo_beta, reduction="none")
        margin = dpo_beta * ((chosen - ref_chosen) - (rejected - ref_rejected)).detach()
    else:
        chosen, rejected = chosen / chosen_tokens.clamp(min=1), rejected / rejected_tokens.clamp(min=1)
        losses = simpo_loss(chosen, rejected, simpo_beta, simpo_gamma, reduction="none")
        margin = simpo_beta * (chosen - rejected).detach()
    weights = batch.get("dpo_weights", torch.ones_like(margin))
    value = _weighted(losses, weights, batch.get("replay_denominator"), "replay_denominator")
    return value, {
        "replay/loss": value.item(),
        "replay/pairs": float(len(margin)),
        "replay/accuracy": (margin > 0).float().mean().item(),
        "replay/margin/mean": margin.mean().item(),
    }


def _pair_logps(model: nn.Module, batch: Mapping[str, Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Summed log-prob [P] and number of response tokens [P] of one side of the pairs."""
    mask = batch[f"dpo_{side}_response_mask"]
    logps = sequence_logprobs(model, batch[f"dpo_{side}_input_ids"], batch.get(f"dpo_{side}_attention_mask"), mask)
    return logps.sum(-1), (mask != 0).sum(-1)


# --- shared ----------------------------------------------------------------------------------------------------------


def _weighted(losses: Tensor, weights: Tensor, denominator: Tensor | None, name: str) -> Tensor:
    """sum(w l) / N over [n]. Raises ValueError when N is not above 0."""
    divisor = weights.sum() if denominator is None else denominator
    if not float(divisor) > 0:
        raise ValueError(f"{name} must be above 0 when the channel has something to learn from, got {float(divisor)}")
    return (weights * losses).sum() / divisor


def _attached_zero(model: nn.Module) -> Tensor:
    """A 0 that is part of the graph, so that a loss without any channel still has a (zero) gradient."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            return parameter.reshape(-1)[:0].sum()
    return torch.zeros(())


def _upcast(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
