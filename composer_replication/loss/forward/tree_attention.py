"""Attention over a tree of prefixes, as an attention function of transformers.

A model keeps its own attention function for everything else. The segments of a tree take the place of the mask: transformers
hands a mask of four dimensions to every layer as it is, and checkpointed layers get it again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_NAME = "composer_tree_"
_NOTED: list[list[nn.Module]] = []
"""Lists that get every layer that reads a tree."""


def as_mask(segments: Tensor) -> Tensor:
    """Return the segments [S, 3] of a tree in the form of a mask."""
    return segments[None, None]


def base_attention(config: Any) -> str | None:
    """Return the name of the attention function that a model with this configuration uses for what is no tree."""
    name: str | None = config._attn_implementation
    return None if name is None else name.removeprefix(_NAME)


def takes_trees(config: Any) -> bool:
    """Return whether a model with this configuration reads trees."""
    return str(config._attn_implementation).startswith(_NAME)


def let_take_trees(config: Any, *, wanted: bool = True) -> None:
    """Let a model with this configuration read trees, or not any more. Its attention function must be one of transformers'
    registered ones."""
    base = base_attention(config)
    assert base is not None
    if wanted and _NAME + base not in ALL_ATTENTION_FUNCTIONS:
        ALL_ATTENTION_FUNCTIONS.register(_NAME + base, _or_tree(ALL_ATTENTION_FUNCTIONS[base]))
        ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME + base, ALL_MASK_ATTENTION_FUNCTIONS[base])
    config._attn_implementation = _NAME + base if wanted else base


@contextmanager
def trees_read() -> Iterator[list[nn.Module]]:
    """Note the layers that read a tree inside."""
    noted: list[nn.Module] = []
    _NOTED.append(noted)
    try:
        yield noted
    finally:
        _NOTED.remove(noted)


def _or_tree(otherwise: Callable[..., tuple[Tensor, Any]]) -> Callable[..., tuple[Tensor, Any]]:
    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> tuple[Tensor, Any]:
        if not isinstance(attention_mask, Tensor) or attention_mask.dtype != torch.int64 or attention_mask.dim() != 4:
            return otherwise(module, query, key, value, attention_mask, **options)
        for noted in _NOTED:
            noted.append(module)
        key, value = (repeat_kv(states, query.shape[1] // states.shape[1]) for states in (key, value))
        found = tree_attention(query, key, value, attention_mask[0, 0], options.get("scaling"))
        return found.transpose(1, 2).contiguous(), None

    return attend


def tree_attention(query: Tensor, key: Tensor, value: Tensor, segments: Tensor, scale: float | None) -> Tensor:
    """Return what the tokens of a tree attend to, [1, heads, N, D], from `query`, `key` and `value` [1, heads, N, D] and
    `segments` [S, 3]; see `PrefixTree`.

    Each shared prefix is copied once for every segment that reads it, so the copies are made again in the backward pass and kept
    in neither: what is kept is `query`, `key` and `value`.
    """
    kind = query.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = (states.to(dtype) for states in (query, key, value))
    attend: Callable[..., Tensor] = _TreeAttention.apply
    return attend(query, key, value, segments, scale)


class _Alike(NamedTuple):
    """Segments of equal size that read equally much, which are computed together."""

    own: list[list[slice]]
    """The tokens of each."""
    read: list[list[slice]]
    """The tokens that each reads: those that lead to it, and its own."""

    def gathered(self, states: Tensor, places: list[list[slice]]) -> Tensor:
        """Return the states [1, heads, N, D] at `places`, [segments, heads, n, D]."""
        return torch.cat([torch.cat([states[:, :, some] for some in path], dim=2) for path in places])

    def mask(self, device: torch.device) -> Tensor | None:
        """Return which of the tokens they read each of their own sees; None where these are the same tokens."""
        own, read = (sum(some.stop - some.start for some in path) for path in (self.own[0], self.read[0]))
        return None if own == read else torch.ones(own, read, dtype=torch.bool, device=device).tril(read - own)


def _alike(segments: Tensor) -> list[_Alike]:
    """Return the segments in groups, none of which copies more tokens than the tree has unless it is one segment."""
    table = segments.tolist()
    found: list[_Alike] = []
    latest: dict[tuple[int, int], _Alike] = {}
    for number, (start, stop, _) in enumerate(table):
        read = [slice(table[part][0], table[part][1]) for part in _path(table, number)]
        size = sum(some.stop - some.start for some in read)
        alike = latest.get((stop - start, size))
        if alike is None or (len(alike.own) + 1) * size > table[-1][1]:
            alike = latest[stop - start, size] = _Alike([], [])
            found.append(alike)
        alike.own.append([slice(start, stop)])
        alike.read.append(read)
    return found


def _attended(parts: Sequence[Tensor], mask: Tensor | None, scale: float | None) -> Tensor:
    query, key, value = parts
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale)


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, segments: Tensor, scale: float | None) -> Tensor:
        ctx.save_for_backward(query, key, value, segments)
        ctx.scale = scale
        found = query.new_zeros((*query.shape[:-1], value.shape[-1]))
        for some in _alike(segments):
            parts = [some.gathered(query, some.own), some.gathered(key, some.read), some.gathered(value, some.read)]
            attended = _attended(parts, some.mask(query.device), scale)
            _add(found, attended, some.own)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, segments = ctx.saved_tensors
        wide = torch.promote_types(query.dtype, torch.float32)
        gradients = [torch.zeros_like(states, dtype=wide) for states in (query, key, value)]
        for some in _alike(segments):
            places = (some.own, some.read, some.read)
            with torch.enable_grad():
                parts = [
                    some.gathered(states, where).requires_grad_()
                    for states, where in zip((query, key, value), places, strict=True)
                ]
                attended = _attended(parts, some.mask(query.device), ctx.scale)
            found = torch.autograd.grad(attended, parts, some.gathered(upstream, some.own))
            for total, gradient, where in zip(gradients, found, places, strict=True):
                _add(total, gradient, where)
        return (*(total.to(query.dtype) for total in gradients), None, None)


def _add(total: Tensor, found: Tensor, places: list[list[slice]]) -> None:
    """Add to `total` [1, heads, N, D] what was found for `places`, [segments, heads, n, D]."""
    for one, path in zip(found, places, strict=True):
        at = 0
        for some in path:
            size = some.stop - some.start
            total[0, :, some] += one[:, at : at + size]
            at += size


def _path(table: list[list[int]], number: int) -> list[int]:
    """Return the segments from the beginning of a sequence to this one."""
    path = [number]
    while table[path[-1]][2] >= 0:
        path.append(table[path[-1]][2])
    return path[::-1]
