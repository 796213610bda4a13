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
- a mixture of experts with `enable_router_replay`: `routed_experts` [B, T, L, K] (experts of each token, by layer; -1: the
  router chooses).
- a mixture of experts with `set_router_balance`: `router_share` [], the share of the batch's first-channel tokens that this
  micro-batch has (absent: 1, that is all), by which the load-balancing loss of its rows is multiplied.
- replay: `dpo_{chosen,rejected}_{input_ids,attention_mask,response_mask}` [P, Tc or Tr], `dpo_{chosen,rejected}_ref_logprobs` [P]
  (sums, NaN where not known; not read by SFT and SimPO), `dpo_weights` [P], `dpo_divergence` [] (KTO's reference point),
  `replay_denominator`. SFT reads no rejected answers; `dpo_held` [P] names the pairs without one, which only it can read (absent:
  none), and `dpo_chosen_target_{ids,logprobs}` [P, Tc, M, K] say what M teachers find likeliest in the places of chosen answers,
  which it reads with `soft_targets` (log-probs of -inf: nothing; absent: nothing of any).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from composer_replication.config import HintConfig, LossConfig, ReplayConfig
from composer_replication.distillation import LiveTeacher, SelfTeacher
from composer_replication.kernels import one_weight_gradient
from composer_replication.loss.batch_keys import OF_ALL_PAIRS, check_keys, check_padding
from composer_replication.loss.channels.common import Result
from composer_replication.loss.channels.dummy_inputs import with_dummy_inputs
from composer_replication.loss.channels.hint import divergence_form, hint_channel, hinted_rows
from composer_replication.loss.channels.replay import pair_rows, replay_channel, sides_of
from composer_replication.loss.channels.rlvr import rlvr_channel, token_weights
from composer_replication.loss.forward import (
    Forward,
    Rows,
    balance_of,
    computing,
    fallbacks,
    in_lockstep,
    read_rows,
    router_balance,
    why_no_tree,
)
from composer_replication.loss.metrics import Pull
from composer_replication.types.channels import switched_off
from composer_replication.types.errors import ChannelOffError

DpoVariant: TypeAlias = Literal["dpo", "simpo"]
SdpoWrapper: TypeAlias = Literal["none", "taid", "entropy_opd"]
_FORMS: Mapping[str, Literal["jsd", "taid", "entropy_opd"]] = {"none": "jsd", "taid": "taid", "entropy_opd": "entropy_opd"}
_CHANNELS = tuple(LossConfig.model_fields)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class LossComponents:
    """The result of `compose_loss`. The channel values are unweighted and 0 where the channel is off."""

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
    """Slow paths that this model needs, and why. The values are the same, but that a half-precision model's plain logits are
    rounded to its type. See `loss.forward.fallbacks`."""
    metrics: Mapping[str, float]
    """Named `channel/what/stat`. Over micro-batches `*/loss`, `*/tokens` and `*/pairs` add up, `*/max` and `*/min` are extremes,
    and the others are means over this call's tokens (or pairs). Channels that are off have none."""
    pulls: Mapping[str, Pull]
    """How hard each channel that is on pulls on the policy; known after the backward pass."""
    positions: int
    """Positions that the policy read with gradient: padding among them, and shared prefixes once."""

    @property
    def rlvr(self) -> Tensor:
        """The first channel under its own name."""
        return self.lm_ce


def compose_loss(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    options: LossConfig | None = None,
    *,
    alpha_sdpo: float = 0.0,
    beta_replay: float = 0.0,
    dpo_variant: DpoVariant = "dpo",
    simpo_beta: float = 2.0,
    simpo_gamma: float = 1.0,
    sdpo_wrapper: SdpoWrapper = "none",
    taid_t: float | None = None,
    entropy_opd_h_max: float | None = None,
    temperature: float = 1.0,
    self_teacher: SelfTeacher | None = None,
    student: Forward | None = None,
    strict: bool = False,
) -> LossComponents:
    """Compute the three-channel loss of a Hugging Face causal LM on one (micro-)batch; the module docstring lists the batch keys.

    `options` is the run file's `[loss]`: one object per channel, each read by its channel alone. Without it the keywords from
    `alpha_sdpo` to `entropy_opd_h_max` cover what a first use of the loss needs (`loss_options`).

    A channel is off when its weight is 0 or its inputs are missing or empty; `off` says why, and `strict=True` raises
    ChannelOffError instead when its weight is above 0 (meant for whole batches: a micro-batch may well lack a channel's inputs).

    Args:
        taid_t: TAID's present t in [0, 1], which `loss.hint.form = "taid"` needs: the `t` of a `TAIDScheduler`.
        temperature: that of sampling, folded into the policy gradient's log-probs (it has no effect on cross-entropy and pairs).
            The hint forms `sampled_token` and `entropy_gated` take their tokens for samples of the student, and are unbiased
            where `loss.hint.temperature` is that of sampling too.
        self_teacher: the policy that reads the hint. None is the live model, which will do for a look at the loss and not for a
            run: teacher and student move together, and policies trained so have collapsed. Train with a `FrozenTeacher` (the
            trainer's default) or an `EMATeacher`.
        student: a forward pass of `model` over `input_ids` that was made already, and is not made again.

    Raises:
        ValueError: an option is out of its range, or nothing would read it or a key of the batch; compared hint tokens differ
            between student and teacher; a weight stands at a position that cannot be in the loss; the hint or replay channel is
            on and a row is not padded on the right.
    """
    short = (alpha_sdpo, beta_replay, dpo_variant, simpo_beta, simpo_gamma, sdpo_wrapper, entropy_opd_h_max)
    if options is None:
        options = loss_options(*short)
    elif short != (0.0, 0.0, "dpo", 2.0, 1.0, "none", None):
        raise ValueError("options and the keywords alpha_sdpo to entropy_opd_h_max say the same: give one of the two")
    if not temperature > 0.0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if options.hint.weight > 0 or taid_t is not None:
        divergence_form(options.hint, taid_t)  # before any forward pass
    check_keys(batch)
    if student is not None and "routed_experts" in batch:
        raise ValueError("routed_experts are not read where `student` was read already: leave one of them out")
    weights = {"rlvr": 1.0, "hint": options.hint.weight, "replay": options.replay.weight}
    off = _why_off(batch, options)
    if strict:
        _raise_if_off(off, weights)
    if in_lockstep(model):
        batch = with_dummy_inputs(batch, off, weights, next(model.parameters()).device)
    idle = _why_off(batch, options)  # made-up inputs make no channel count as on
    if "hint" not in idle or "replay" not in idle:
        check_padding(batch)
    found: dict[str, Result] = {}
    teacher = self_teacher or LiveTeacher()
    with (
        computing(model),
        one_weight_gradient(),
    ):  # the replay channel first: it forms its part of the head's gradient in the backward pass
        read = _read(model, batch, idle, options.replay, teacher, student)
        if "replay" not in idle:
            found["replay"] = replay_channel(read.pairs, batch, options.replay)
        if "rlvr" not in idle:
            found["rlvr"] = rlvr_channel(_student(read), batch, options.rlvr, temperature)
        if "hint" not in idle:
            found["hint"] = hint_channel(model, _student(read), read.hinted, batch, teacher, options.hint, taid_t)
        positions = _positions(read)
        made = _added_up(model, found, off, options.hint.weight, options.replay.weight, positions)
        if read.student is not None and read.student.routing is not None:
            made = dataclasses.replace(made, metrics={**made.metrics, **read.student.routing.metrics()})
        return _balanced(model, made, read, batch)


def loss_options(
    alpha_sdpo: float = 0.0,
    beta_replay: float = 0.0,
    dpo_variant: DpoVariant = "dpo",
    simpo_beta: float = 2.0,
    simpo_gamma: float = 1.0,
    sdpo_wrapper: SdpoWrapper = "none",
    entropy_opd_h_max: float | None = None,
) -> LossConfig:
    """Return the options that the promised keywords of `compose_loss` name: losses on pairs are those of the papers, without an
    anchor. Raises ValueError on a bad one."""
    if sdpo_wrapper not in _FORMS:
        raise ValueError(f"unknown sdpo_wrapper {sdpo_wrapper!r}: expected {', '.join(map(repr, _FORMS))}")
    return LossConfig(
        hint=HintConfig(weight=alpha_sdpo, form=_FORMS[sdpo_wrapper], entropy_h_max=entropy_opd_h_max),
        replay=ReplayConfig(weight=beta_replay, variant=dpo_variant, anchor=0.0, simpo_beta=simpo_beta, simpo_gamma=simpo_gamma),
    )


def _added_up(
    model: nn.Module,
    found: Mapping[str, Result],
    off: Mapping[str, str],
    alpha_sdpo: float,
    beta_replay: float,
    positions: int,
) -> LossComponents:
    """Add up the channels. The hint channel's value is already multiplied by its weight, because its gradient is formed in the
    forward pass; the weight is divided out again for the report."""
    zero = next(iter(found.values())).value.new_zeros(()) if found else _attached_zero(model)
    first, hint, replay = (found[channel].value if channel in found else zero for channel in _CHANNELS)
    total = first + hint + beta_replay * replay
    hint = hint / alpha_sdpo if "hint" in found else hint
    on = [channel for channel in _CHANNELS if channel in found and channel not in off]
    metrics = {name: value for channel in on for name, value in found[channel].metrics.items()}
    pulls = {channel: found[channel].pull for channel in on}
    return LossComponents(total, first, hint, replay, off, fallbacks(model), metrics, pulls, positions)


def _balanced(model: nn.Module, made: LossComponents, read: _Read, batch: Mapping[str, Tensor]) -> LossComponents:
    """Add the load-balancing loss of a mixture's routers, where the model has a weight for it and rows were read."""
    weight = router_balance(model)
    if weight == 0 or read.student is None or not read.student.routers:
        return made
    logits = read.student.router_logits()
    loss, share = balance_of(model, logits), float(batch.get("router_share", 1.0))
    tokens = float(len(logits[0])) if share > 0 else 0.0
    return dataclasses.replace(
        made,
        total=made.total + weight * share * loss,
        metrics={**made.metrics, "router/balance": float(loss.detach()), "router/tokens": tokens},
    )


class _Read(NamedTuple):
    """What was read for the channels that are on."""

    student: Forward | None
    pairs: Sequence[Forward]
    hinted: Forward | None
    """Where the live policy is the self-teacher and its rows were read with the others."""


def _read(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    idle: Container[str],
    replay: ReplayConfig,
    teacher: SelfTeacher,
    given: Forward | None,
) -> _Read:
    """Read the rows of all channels, together where their prefixes can be shared."""
    wanted = "rlvr" not in idle or "hint" not in idle
    rows = Rows(batch["input_ids"], batch.get("attention_mask"), batch.get("routed_experts")) if wanted else None
    live = "hint" not in idle and any(part.is_live(model) for part in teacher.parts(model)) and why_no_tree(model) is None
    inputs = [] if rows is None or given is not None else [rows]
    inputs += [hinted_rows(batch)] if live else []
    inputs += pair_rows(batch, replay) if "replay" not in idle else []
    read = read_rows(model, inputs) if inputs else []
    student = given if rows is None or given is not None else read.pop(0)
    hinted = read.pop(0) if live else None
    return _Read(student, read, hinted)


def _positions(read: _Read) -> int:
    passes = {id(part.output): part.output for part in (read.student, read.hinted, *read.pairs) if part is not None}
    return sum(output.shape[0] * output.shape[1] for output in passes.values())


def _student(read: _Read) -> Forward:
    assert read.student is not None
    return read.student


# --- which channels are on -------------------------------------------------------------------------------------------


def _why_off(batch: Mapping[str, Tensor], options: LossConfig) -> dict[str, str]:
    reasons = {
        "rlvr": _first_off(batch),
        "hint": switched_off("hint") if options.hint.weight == 0 else _hint_off(batch),
        "replay": switched_off("replay") if options.replay.weight == 0 else _replay_off(batch, options.replay),
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


def _replay_off(batch: Mapping[str, Tensor], options: ReplayConfig) -> str | None:
    sides = sides_of(options)
    keys = [f"dpo_{side}_{what}" for side in sides for what in ("input_ids", "response_mask")]
    if options.has_reference:
        keys += [f"dpo_{side}_ref_logprobs" for side in sides]
    if options.variant == "kto":
        keys.append(OF_ALL_PAIRS)
    missing = _missing(batch, *keys)
    if missing is not None:
        return missing
    if "dpo_weights" in batch and not bool(batch["dpo_weights"].any()):
        return "every pair has weight 0"
    wanted = any(bool(batch[f"dpo_{side}_response_mask"].any()) for side in sides)
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
    """Return a 0 that is part of the graph, so that a loss without any channel still has a (zero) gradient."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            return parameter.reshape(-1)[:0].sum()
    return torch.zeros(())
