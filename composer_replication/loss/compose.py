"""One loss made of three channels: `total = rlvr + alpha_sdpo * hint + beta_replay * replay`.

Every channel is `sum_t w_t l_t / N` over its own tokens (or pairs), with its own weight stream w and its own GLOBAL
denominator N. A micro-batch that carries the whole batch's denominators therefore contributes exactly its share, and
`backward()` over all micro-batches adds up to the gradient of the undivided batch. A denominator that is absent is the sum
of the weights of this batch.

With several processes (DDP, FSDP2) every rank calls this equally often and with the same options, on its share of a batch
(`split` with `rank` and `ranks`). A call makes the same forward passes on every rank, whichever channels a rank has inputs for,
so that none waits for a pass that never comes. Both wrappers take the MEAN of the ranks' gradients where the losses add up:
multiply `total` by the number of ranks before `backward()`.

Batch keys (int64 ids and positions; masks and weights of any number type; B rows, T tokens, H hinted turns, K compared
tokens, P pairs). A value "at position p" belongs to the token AT p, which the logits at p - 1 predict.

- first channel: `input_ids` [B, T] right-padded, `attention_mask` [B, T], `response_mask` [B, T] or `labels` [B, T] (-100 =
  not trained on), `rlvr_weights` [B, T], `rlvr_denominator`; with `advantages` [B, T] or [B] it is the policy gradient,
  which reads `old_logprobs` [B, T] (absent: the current log-probs, that is exactly on-policy), for kl_beta > 0 `ref_logprobs`
  [B, T], and for an importance correction `sampler_logprobs` [B, T], where the engine that sampled is not the one that scored
  `old_logprobs` (or, without those, the present policy).
- hint: `ctx_teacher_input_ids` [H, Tt], `ctx_teacher_attention_mask`, `student_row` [H] (absent: 0..H-1),
  `student_response_idx` [H, K], `teacher_response_idx` [H, K], `sdpo_loss_mask` [H, K] (weight of each compared token; 0 and
  -100 leave it out), `hint_denominator`.
- replay: `dpo_{chosen,rejected}_{input_ids,attention_mask,response_mask}` [P, Tc or Tr], `dpo_{chosen,rejected}_ref_logprobs` [P]
  (sums; not read by SimPO), `dpo_weights` [P], `replay_denominator`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from composer_replication.distillation import (
    TAID,
    EntropyAwareOPD,
    GeneralizedJSD,
    JsdScale,
    LiveTeacher,
    SelfTeacher,
)
from composer_replication.kernels import one_weight_gradient
from composer_replication.loss.channels import (
    DpoVariant,
    Result,
    RlvrOptions,
    hint_channel,
    replay_channel,
    rlvr_channel,
    token_weights,
    with_stand_ins,
)
from composer_replication.loss.forward import (
    Forward,
    HintLoss,
    Prefix,
    fallbacks,
    forward,
    in_lockstep,
    read_prefix,
    sequence_logprobs,
    unwrapped,
    why_no_prefix,
)
from composer_replication.policy_gradient import ImportanceKind, SurrogateKind
from composer_replication.types.errors import ChannelOffError

__all__ = ["DpoVariant", "LossComponents", "SdpoWrapper", "compose_loss", "sequence_logprobs"]

SdpoWrapper: TypeAlias = Literal["none", "taid", "entropy_opd"]
_CHANNELS = ("rlvr", "hint", "replay")


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class LossComponents:
    """What `compose_loss` returns. The channel values are unweighted and 0 where the channel is off."""

    total: Tensor
    """0-dim, with the graph: what `backward()` is called on, under DDP and FSDP2 times the number of ranks."""
    lm_ce: Tensor
    """First channel: LM cross-entropy, or the policy-gradient surrogate when the batch has advantages."""
    sdpo_jsd: Tensor
    """Hint channel."""
    trace_replay_dpo: Tensor
    """Replay channel."""
    off: Mapping[str, str]
    """Why a channel (`rlvr`, `hint`, `replay`) is off; a channel that is on is not in it."""
    fallbacks: Mapping[str, str]
    """Why work that other models are spared is done on this one; the values are the same, but that a half-precision model's plain
    logits are rounded to its type. See `causal_lm.fallbacks`."""
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
    hint_loss: HintLoss | None = None,
    sdpo_temperature: float = 1.0,
    surrogate: SurrogateKind = "ppo",
    epsilon_low: float | None = None,
    epsilon_high: float | None = None,
    kl_beta: float = 0.0,
    importance: ImportanceKind | None = None,
    importance_low: float = 0.5,
    importance_high: float = 2.0,
    temperature: float = 1.0,
    self_teacher: SelfTeacher | None = None,
    student: Forward | None = None,
    strict: bool = False,
) -> LossComponents:
    """The three-channel loss of a Hugging Face causal LM on one (micro-)batch; the module docstring lists the batch keys.

    A channel is off when its weight is 0 or its inputs are missing or empty; `off` says why, and `strict=True` raises
    ChannelOffError instead when its weight is above 0 (meant for whole batches: a micro-batch may well lack a channel's inputs).

    `jsd_beta=0`, the default, is forward KL(teacher || student): at an error turn the student is typically confident and
    wrong, where the gradient of the reverse KL and of the JSD vanishes (both carry a factor p_student) and the forward KL's,
    p_student - p_teacher, does not. `hint_loss`, if given, is the hint channel's loss, in place of the options that describe one
    (`sdpo_wrapper` to `jsd_scale`). `sdpo_temperature` divides student and teacher logits in every form. `SampledToken` and
    `EntropyGatedOPD` take their tokens for samples of the student, and are unbiased where it is the sampling temperature alone.

    An epsilon of None is the surrogate's own (`policy_gradient.THRESHOLDS`). `temperature` is the sampling temperature, folded
    into the policy gradient's log-probs (it has no effect on cross-entropy and pairs).

    `self_teacher=None` is the live model, which will do for a look at the loss and not for a run: teacher and student move
    together, and policies trained so have collapsed. Train with a `FrozenTeacher` (the trainer's default) or an `EMATeacher`.

    `student`, if given, is a forward pass of `model` over `input_ids` that was made already, and is not made again.

    Raises ValueError on a bad option (`sdpo_wrapper="taid"` needs `taid_t` in [0, 1]) or one that nothing would read, on compared
    hint tokens that differ between student and teacher, and on weights at positions that cannot be in the loss.
    """
    _check_options(alpha_sdpo, beta_replay, dpo_variant, dpo_beta, simpo_beta, simpo_gamma, sdpo_temperature)
    form = _hint_loss(hint_loss, sdpo_wrapper, taid_t, entropy_opd_h_max, jsd_beta, jsd_scale)
    off = _why_off(batch, alpha_sdpo, beta_replay, dpo_variant)
    if strict:
        _raise_if_off(off, {"rlvr": 1.0, "hint": alpha_sdpo, "replay": beta_replay})
    rlvr = RlvrOptions(
        surrogate=surrogate,
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        kl_beta=kl_beta,
        temperature=temperature,
        importance=importance,
        importance_low=importance_low,
        importance_high=importance_high,
    )
    if in_lockstep(model):
        batch = with_stand_ins(batch, off, {"hint": alpha_sdpo, "replay": beta_replay}, next(model.parameters()).device)
    idle = _why_off(batch, alpha_sdpo, beta_replay, dpo_variant)  # made-up inputs make no channel count as on
    found: dict[str, Result] = {}
    teacher = self_teacher or LiveTeacher()
    with one_weight_gradient():  # the replay channel first: it forms its part of the head's gradient in the backward pass
        if "replay" not in idle:
            found["replay"] = replay_channel(model, batch, dpo_variant, dpo_beta, simpo_beta, simpo_gamma)
        if "rlvr" not in idle or "hint" not in idle:
            read, prefix = _read_student(model, batch, None if "hint" in idle else teacher, student)
        if "rlvr" not in idle:
            found["rlvr"] = rlvr_channel(read, batch, rlvr)
        if "hint" not in idle:
            found["hint"] = hint_channel(model, read, prefix, batch, teacher, form, sdpo_temperature, alpha_sdpo)
    return _added_up(model, found, off, alpha_sdpo, beta_replay)


def _added_up(
    model: nn.Module, found: Mapping[str, Result], off: Mapping[str, str], alpha_sdpo: float, beta_replay: float
) -> LossComponents:
    """`found` has the hint channel's value times its weight: what is formed in the forward pass then has one factor in the
    backward pass, and is not formed again."""
    zero = next(iter(found.values()))[0].new_zeros(()) if found else _attached_zero(model)
    first, hint, replay = (found[channel][0] if channel in found else zero for channel in _CHANNELS)
    total = first + hint + beta_replay * replay
    hint = hint / alpha_sdpo if "hint" in found else hint
    on = [channel for channel in _CHANNELS if channel in found and channel not in off]
    metrics = {name: value for channel in on for name, value in found[channel][1].items()}
    return LossComponents(total, first, hint, replay, off, fallbacks(model), metrics)


def _read_student(
    model: nn.Module, batch: Mapping[str, Tensor], teacher: SelfTeacher | None, given: Forward | None
) -> tuple[Forward, Prefix | None]:
    """The student's forward pass; with its keys and values where a live teacher reads the same prefixes without dropout,
    unless it was given."""
    if given is not None:
        return given, None
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    live = teacher is not None and any(part.is_live(model) for part in teacher.parts(model))
    if live and why_no_prefix(model) is None and not _has_dropout(model):
        read, prefix = read_prefix(model, ids, mask)
        return read, prefix.detach()
    return forward(model, ids, mask), None


def _hint_loss(
    given: HintLoss | None, wrapper: SdpoWrapper, taid_t: float | None, h_max: float | None, beta: float, scale: JsdScale
) -> HintLoss:
    """The hint channel's loss: the one given, or what the other options describe. Raises ValueError on those that it leaves
    unread."""
    if wrapper not in ("none", "taid", "entropy_opd"):
        raise ValueError(f"unknown sdpo_wrapper {wrapper!r}: expected 'none', 'taid' or 'entropy_opd'")
    if taid_t is not None and not 0.0 <= taid_t <= 1.0:
        raise ValueError(f"taid_t must be in [0, 1], got {taid_t}")
    reader = f"sdpo_wrapper={wrapper!r}" if given is None else "hint_loss"
    read = {"none": ("jsd_beta", "jsd_scale"), "taid": ("taid_t",), "entropy_opd": ("entropy_opd_h_max",)}[wrapper]
    asked = {
        "taid_t": taid_t is not None,
        "entropy_opd_h_max": h_max is not None,
        "jsd_beta": beta != 0.0,
        "jsd_scale": scale != "trl",
    }
    if given is not None:
        read, asked = (), {"sdpo_wrapper": wrapper != "none", **asked}
    unread = [name for name, given_too in asked.items() if given_too and name not in read]
    if unread:
        raise ValueError(f"{reader} does not read {', '.join(unread)}: leave it out")
    if given is not None:
        return given
    if wrapper == "taid":
        if taid_t is None:
            raise ValueError("sdpo_wrapper='taid' needs taid_t, e.g. the `t` of a TAIDScheduler")
        return TAID(taid_t)
    return EntropyAwareOPD(h_max) if wrapper == "entropy_opd" else GeneralizedJSD(beta, scale)


# --- which channels are on -------------------------------------------------------------------------------------------


def _check_options(
    alpha_sdpo: float,
    beta_replay: float,
    dpo_variant: str,
    dpo_beta: float,
    simpo_beta: float,
    simpo_gamma: float,
    sdpo_temperature: float,
) -> None:
    """Those of the hint and the replay channel that no other value checks."""
    if not (0.0 <= alpha_sdpo < math.inf and 0.0 <= beta_replay < math.inf):
        raise ValueError(
            f"channel weights must not be negative, and finite, got alpha_sdpo={alpha_sdpo}, beta_replay={beta_replay}"
        )
    if dpo_variant not in ("dpo", "simpo"):
        raise ValueError(f"unknown dpo_variant {dpo_variant!r}: expected 'dpo' or 'simpo'")
    if not simpo_gamma >= 0.0:
        raise ValueError(f"simpo_gamma must be at least 0, got {simpo_gamma}")
    for name, value in (("dpo_beta", dpo_beta), ("simpo_beta", simpo_beta), ("sdpo_temperature", sdpo_temperature)):
        if not value > 0.0:
            raise ValueError(f"{name} must be above 0, got {value}")


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
    return None if bool(token_weights(batch).any()) else "no token of the batch has a weight (all masked or unscored)"


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
    if "dpo_weights" in batch and not bool(batch["dpo_weights"].any()):
        return "every pair has weight 0"
    wanted = bool(batch["dpo_chosen_response_mask"].any() | batch["dpo_rejected_response_mask"].any())
    return None if wanted else "the response masks of the pairs select no token"


def _missing(batch: Mapping[str, Tensor], *keys: str) -> str | None:
    for key in keys:
        if key not in batch:
            return f"the batch has no {key}"
        if batch[key].numel() == 0:
            return f"{key} is empty"
    return None


# --- shared ----------------------------------------------------------------------------------------------------------


def _attached_zero(model: nn.Module) -> Tensor:
    """A 0 that is part of the graph, so that a loss without any channel still has a (zero) gradient."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            return parameter.reshape(-1)[:0].sum()
    return torch.zeros(())


def _has_dropout(model: nn.Module) -> bool:
    """Whether a forward pass in the present mode draws random numbers."""
    return any(module.training and isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules()) or (
        model.training and bool(getattr(unwrapped(model).config, "attention_dropout", 0.0))
    )
