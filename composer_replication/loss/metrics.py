"""Metrics of micro-batches as one step's, and how hard each channel pulls on the policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

_LOSSES = ("/loss", "loss/total")
_SUMS = (*_LOSSES, "/tokens", "/pairs", "/held")
_SQUARE = "/importance/square/mean"


class Pull:
    """The squared norm of a channel's gradient on what it reads: the hidden states before the head, or logits without a fused
    one.

    `watch` a tensor before the backward pass, and read `square` after it. It is the gradient of the total, so a channel's weight
    is in it.
    """

    def __init__(self) -> None:
        self.square = 0.0

    def watch(self, read: Tensor) -> None:
        """Note the gradient that will arrive at `read`; a tensor without one is left alone."""
        if read.requires_grad:
            read.register_hook(self._note)  # type: ignore[no-untyped-call]  # unannotated in torch

    def _note(self, gradient: Tensor | None) -> None:
        if gradient is None:  # nothing that was differentiated reads it
            return
        wide = torch.promote_types(gradient.dtype, torch.float32)
        self.square += float(torch.linalg.vector_norm(gradient, dtype=wide) ** 2)


def merge_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge metrics of micro-batches as `LossComponents.metrics` describes: sums, extremes, means weighted by counts.

    The effective sample size of importance weights, as a share of the tokens, follows from their merged moments.
    """
    merged = _merged(parts)
    for name in [name for name in merged if name.endswith(_SQUARE)]:
        square, channel = merged.pop(name), name.removesuffix(_SQUARE)
        if square > 0:
            merged[f"{channel}/importance/ess"] = merged[f"{channel}/importance/mean"] ** 2 / square
    return merged


def merge_updates(updates: Sequence[Mapping[str, float]], kinds: Sequence[Hashable]) -> dict[str, float]:
    """Merge the metrics of several optimizer steps on one batch of rollouts as those of micro-batches, but with the mean of each
    loss over all steps of a kind: a channel without inputs in a step has a loss of 0 there.

    Args:
        kinds: what each step was on, such as rows or pairs, where these have steps of their own. Means of several kinds add up.
    """
    alike = Counter(kinds)
    shares = [1.0 / alike[kind] for kind in kinds]
    return _merged(
        [
            {name: value * share if name.endswith(_LOSSES) else value for name, value in update.items()}
            for update, share in zip(updates, shares, strict=True)
        ]
    )


def _merged(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        found = [(part[name], _count(name, part)) for part in parts if name in part]
        if name.endswith("/max"):
            merged[name] = max(value for value, _ in found)
        elif name.endswith("/min"):
            merged[name] = min(value for value, _ in found)
        elif name.endswith(_SUMS):
            merged[name] = sum(value for value, _ in found)
        else:
            merged[name] = sum(value * count for value, count in found) / max(1.0, sum(count for _, count in found))
    return merged


def _count(name: str, part: Mapping[str, float]) -> float:
    """Return the number of tokens or pairs that a mean of this micro-batch is over."""
    channel = name.partition("/")[0]
    if "/distance/" in name and f"{channel}/known/pairs" in part:  # pairs whose reference is known
        return part[f"{channel}/known/pairs"]
    return part.get(f"{channel}/tokens", part.get(f"{channel}/pairs", 1.0))
