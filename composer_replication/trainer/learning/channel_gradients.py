"""How large each channel's gradient on the weights is, and whether it points where the policy gradient does.

The gradients of the channels add up to that of the loss, so each is the gradient of the loss with the others' weights at 0. It
takes a forward and backward pass of its own, which `*/pull`, the gradient on the hidden states, does not. The load-balancing loss
of experts counts with each channel whose pass it stands in. Of large models a share of the coordinates is compared, the same ones
of each channel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from composer_replication.config import LossConfig
from composer_replication.loss.batch_keys import DENOMINATORS, Batch
from composer_replication.trainer.learning.sharding import local_part
from composer_replication.types.channels import CHANNELS

MOST = 2**24
"""Coordinates that are compared at most, so that the copies of gradients stay small: 64 MB each."""


def channel_gradients(
    model: nn.Module,
    parts: Sequence[Batch],
    loss: LossConfig,
    channels: Sequence[str],
    backward: Callable[[Sequence[Batch], LossConfig], object],
    *,
    sharded: bool,
) -> dict[str, float]:
    """Measure the gradient of each of these channels by itself; the model's own are left at None.

    Args:
        parts: this process's micro-batches.
        backward: adds the gradient of a loss on micro-batches to the model's.
        sharded: each process has a part of the gradients. All of them have to call this at the same time.

    Return for each channel that has a gradient `CHANNEL/gradient/norm`, before clipping and with its weight, and for the others
    than `rlvr` `CHANNEL/gradient/cosine`, with `rlvr`'s, where that has one.
    """
    found: dict[str, Tensor] = {}
    for channel in channels:
        model.zero_grad(set_to_none=True)
        backward(*_alone(parts, loss, channel))
        found[channel] = compared_coordinates(model)
    model.zero_grad(set_to_none=True)
    return _compare(found, sharded=sharded)


def channels_in(batch: Batch, loss: LossConfig) -> list[str]:
    """Return the channels that are on and have inputs in a whole batch."""
    weights = {"rlvr": 1.0, "hint": loss.hint.weight, "replay": loss.replay.weight}
    inputs = dict(zip(CHANNELS, DENOMINATORS, strict=True))
    return [channel for channel, key in inputs.items() if weights[channel] > 0 and key in batch and len(batch[key])]


def _alone(parts: Sequence[Batch], loss: LossConfig, channel: str) -> tuple[list[Batch], LossConfig]:
    """Return micro-batches and a loss of which this channel alone has a gradient. The policy gradient has no weight: its mean is
    taken over infinitely many tokens instead."""
    off = {name: getattr(loss, name).model_copy(update={"weight": 0.0}) for name in ("hint", "replay") if name != channel}
    never = {} if channel == "rlvr" else {"rlvr_denominator": torch.tensor(math.inf)}
    return [part | {key: never[key].to(part[key]) for key in never if key in part} for part in parts], loss.model_copy(update=off)


def compared_coordinates(model: nn.Module, most: int = MOST) -> Tensor:
    """Return coordinates of the model's gradient, float32 [n], this process's where it is sharded; where there are more than
    `most`, one in so many of each weight, scaled so that norm and products are estimates of the whole ones."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    apart = _prime_from(-(-sum(parameter.numel() for parameter in trained) // most))

    def taken(parameter: Tensor) -> Tensor:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        return local_part(gradient.detach()).flatten()[::apart].to(torch.float32)

    return torch.cat([taken(parameter) for parameter in trained]) * math.sqrt(apart)


def _prime_from(least: int) -> int:
    """Return the first number from `least` on that shares no divisor with the width of a weight by chance: a prime, or 1."""
    return next(n for n in itertools.count(least) if all(n % d for d in range(2, math.isqrt(n) + 1)))


def _compare(found: Mapping[str, Tensor], *, sharded: bool) -> dict[str, float]:
    names = list(found)
    rows = torch.stack([found[name] for name in names])
    products = (rows @ rows.T).to(torch.float64)
    if sharded:
        torch.distributed.all_reduce(products)
    norms = products.diagonal().clamp(min=0).sqrt().tolist()
    metrics: dict[str, float] = {}
    for number, (name, norm) in enumerate(zip(names, norms, strict=True)):
        if norm == 0:
            continue
        metrics[f"{name}/gradient/norm"] = norm
        if name != "rlvr" and "rlvr/gradient/norm" in metrics:
            metrics[f"{name}/gradient/cosine"] = float(products[number, 0]) / (norm * norms[0])
    return metrics
