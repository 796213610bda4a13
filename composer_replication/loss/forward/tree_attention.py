"""Attention over a tree of prefixes, as an attention function of transformers.

Models whose attention is transformers' `sdpa` can have it in its place. The segments of a tree take the place of the mask:
transformers hands a mask of four dimensions to every layer as it is, and checkpointed layers get it again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_BASE, _NAME = "sdpa", "composer_tree"
_CHANGES = ("softcap", "s_aux", "position_bias", "sliding_window", "dropout")
"""Options of attention functions that change what they compute, and are not implemented here."""


class LayerRead(NamedTuple):
    """A layer's attention over a tree of N tokens."""

    layer: nn.Module
    query: Tensor
    """[1, heads, N, D], as the keys and values, which may have fewer heads."""
    key: Tensor
    value: Tensor


@dataclass(slots=True)
class Observed:
    """What a model asked of its attention."""

    modules: frozenset[nn.Module]
    """All of the model: others may be read in other threads meanwhile."""
    read: list[LayerRead] = field(default_factory=list)
    """Attention over trees, in its order."""
    masks: list[Any] = field(default_factory=list)
    """The masks that layers were given for rows which are no tree. None is that of attention to all that stands before."""
    causal: list[Any] = field(default_factory=list)
    """Masks of attention to all that stands before, where transformers made them."""

    def all_causal(self) -> bool:
        """Return whether every layer attended to all that stands before."""
        made = {mask.untyped_storage().data_ptr() for mask in self.causal if isinstance(mask, Tensor)}
        return all(mask.untyped_storage().data_ptr() in made for mask in self.masks if mask is not None)


_observers: list[Observed] = []
_plans = WeakTensorKeyDictionary()
"""The branches of each tree that is being read, by its mask: all layers of a pass get the same mask."""


def as_mask(segments: Tensor) -> Tensor:
    """Return the segments [S, 3] of a tree in the form of a mask."""
    return segments[None, None]


def can_read_trees(config: Any) -> bool:
    """Return whether the attention function of a model with this configuration is one that `enable_trees` can stand in for."""
    return config._attn_implementation in (_BASE, _NAME)


def enable_trees(config: Any, *, enabled: bool = True) -> None:
    """Make a model with this configuration read trees as well, or undo it. Everything else goes through transformers' `sdpa`, as
    before."""
    config._attn_implementation = _NAME if enabled else _BASE


@contextmanager
def observed(model: nn.Module) -> Iterator[Observed]:
    """Record what a model whose attention `enable_trees` has changed asks of it inside."""
    found = Observed(frozenset(model.modules()))
    _observers.append(found)
    try:
        yield found
    finally:
        _observers.remove(found)


def _sdpa_or_tree(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, Any]:
    if not isinstance(attention_mask, Tensor) or attention_mask.dtype != torch.int64 or attention_mask.dim() != 4:
        for found in _observers_of(module):
            found.masks.append(attention_mask)
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    changed = [name for name in _CHANGES if isinstance(given := options.get(name), Tensor) or given]
    if changed:
        raise ValueError(f"attention over a tree has no {', '.join(changed)}")
    for found in _observers_of(module):
        found.read.append(LayerRead(module, query, key, value))
    key, value = (repeat_kv(states, query.shape[1] // states.shape[1]) for states in (key, value))
    attended = tree_attention(query, key, value, attention_mask, options.get("scaling"))
    return attended.transpose(1, 2).contiguous(), None


def _observers_of(module: nn.Module) -> list[Observed]:
    return [found for found in _observers if module in found.modules]


def _sdpa_mask(*given: Any, **options: Any) -> Any:
    causal = options.get("mask_function") is causal_mask_function
    if _observers and not causal:  # short rows are spared the mask of a window
        options |= {name: False for name in options if name.startswith("allow_is_")}
    made = ALL_MASK_ATTENTION_FUNCTIONS[_BASE](*given, **options)
    for found in _observers:
        found.causal += [made] if causal else []
    return made


ALL_ATTENTION_FUNCTIONS.register(_NAME, _sdpa_or_tree)
ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, _sdpa_mask)


def tree_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """Return what the tokens of a tree attend to, [1, heads, N, D], from `query`, `key` and `value` [1, heads, N, D] and the
    `mask` that `as_mask` makes of the tree's segments.

    A branch that leaves another reads a copy of all that leads to it. These copies are made again in the backward pass, so that
    a prefix is not kept once for every branch.
    """
    kind = query.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = (states.to(dtype) for states in (query, key, value))
    plan = _planned(mask)
    sizes = plan.sizes
    states = [torch.split(some, sizes, dim=2) for some in (query, key, value)]
    found: dict[int, Tensor] = {}
    for some in plan.trunks:
        attended = _attended([some.gathered(parts, own=True) for parts in states], None, scale)
        found.update(some.parts(attended, sizes))
    if plan.leaving:
        attend: Callable[..., Tensor] = _LeavingBranches.apply
        attended = attend(query, key, value, plan, scale)
        found.update(zip(plan.order, torch.split(attended, [sizes[number] for number in plan.order], dim=2), strict=True))
    return torch.cat([found[number] for number in range(len(sizes))], dim=2)


class _Plan(NamedTuple):
    """How attention over a tree is computed."""

    sizes: list[int]
    """The number of tokens of each segment."""
    trunks: list[_Alike]
    """Branches that leave no other."""
    leaving: list[_Alike]
    order: list[int]
    """The segments of the branches that leave another, in the order of `leaving`."""


def _planned(mask: Tensor) -> _Plan:
    """Return the plan of a tree, made once for each mask: on a GPU its segments must be waited for."""
    known: _Plan | None = _plans[mask] if mask in _plans else None  # noqa: SIM401  # `get` has no annotations
    if known is None:
        sizes, branches = _branches(mask[0, 0])
        trunks = _alike([branch for branch in branches if not branch.before], sizes)
        leaving = _alike([branch for branch in branches if branch.before], sizes)
        order = [number for some in leaving for branch in some.branches for number in branch.own]
        known = _plans[mask] = _Plan(sizes, trunks, leaving, order)
    return known


class _Branch(NamedTuple):
    """A path of segments, by their numbers, from where it leaves another to a leaf."""

    before: list[int]
    """The segments that lead to it from the root."""
    own: list[int]


def _branches(segments: Tensor) -> tuple[list[int], list[_Branch]]:
    """Return the size of each segment, and a tree as branches, each as long as it can be: a root's is read without a mask."""
    table = segments.tolist()
    sizes = [stop - start for start, stop, _ in table]
    longest, following = list(sizes), [-1] * len(sizes)
    for number in reversed(range(len(sizes))):  # every segment stands after those that lead to it
        before = table[number][2]
        if before >= 0 and (following[before] < 0 or sizes[before] + longest[number] > longest[before]):
            longest[before], following[before] = sizes[before] + longest[number], number
    found = []
    for number, (_, _, before) in enumerate(table):
        if before >= 0 and following[before] == number:
            continue
        own, lead = [number], []
        while following[own[-1]] >= 0:
            own.append(following[own[-1]])
        while before >= 0:
            lead.append(before)
            before = table[before][2]
        found.append(_Branch(lead[::-1], own))
    return sizes, found


class _Alike(NamedTuple):
    """Branches of equal size that read equally much, which are computed together."""

    branches: list[_Branch]

    def gathered(self, parts: Sequence[Tensor], *, own: bool) -> Tensor:
        """Return the states of the branches' tokens, or of all that they read, [branches, heads, n, D], from those of each
        segment [1, heads, size, D]."""
        paths = [branch.own if own else branch.before + branch.own for branch in self.branches]
        return _joined([_joined([parts[number] for number in path], 2) for path in paths], 0)

    def parts(self, found: Tensor, sizes: Sequence[int], *, own: bool = True) -> Iterator[tuple[int, Tensor]]:
        """Give back what was `gathered`, as the number of each segment and its states."""
        for branch, states in zip(self.branches, torch.split(found, 1), strict=True):
            path = branch.own if own else branch.before + branch.own
            yield from zip(path, torch.split(states, [sizes[number] for number in path], dim=2), strict=True)

    def mask(self, sizes: Sequence[int], device: torch.device) -> Tensor:
        """Return which of the tokens that they read each of their own sees."""
        before, own = (sum(sizes[number] for number in path) for path in self.branches[0])
        return torch.ones(own, before + own, dtype=torch.bool, device=device).tril(before)


def _alike(branches: Sequence[_Branch], sizes: Sequence[int]) -> list[_Alike]:
    """Return branches in groups, none of which reads more tokens than the tree has unless it is one branch."""
    found: list[_Alike] = []
    latest: dict[tuple[int, int], _Alike] = {}
    for branch in branches:
        before, own = (sum(sizes[number] for number in path) for path in branch)
        alike = latest.get((before, own))
        if alike is None or (len(alike.branches) + 1) * (before + own) > sum(sizes):
            alike = latest[before, own] = _Alike([])
            found.append(alike)
        alike.branches.append(branch)
    return found


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _attended(parts: Sequence[Tensor], mask: Tensor | None, scale: float | None) -> Tensor:
    query, key, value = parts
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale)


class _LeavingBranches(torch.autograd.Function):
    """What the tokens of all branches that leave another attend to, [1, heads, n, D], one branch after the other."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: _Plan, scale: float | None) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.plan, ctx.scale = plan, scale
        states = [torch.split(some, plan.sizes, dim=2) for some in (query, key, value)]
        found: dict[int, Tensor] = {}
        for some in plan.leaving:
            parts = [some.gathered(part, own=i == 0) for i, part in enumerate(states)]
            found.update(some.parts(_attended(parts, some.mask(plan.sizes, query.device), scale), plan.sizes))
        return torch.cat([found[number] for number in plan.order], dim=2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        plan: _Plan = ctx.plan
        sizes, order = plan.sizes, plan.order
        saved = ctx.saved_tensors  # checkpointing gives them once
        arriving = dict(zip(order, torch.split(upstream, [sizes[number] for number in order], dim=2), strict=True))
        states = [torch.split(some, sizes, dim=2) for some in saved]
        wide = torch.promote_types(upstream.dtype, torch.float32)
        totals = [torch.zeros_like(some, dtype=wide) for some in saved]
        places = [torch.split(total, sizes, dim=2) for total in totals]
        for some in plan.leaving:
            with torch.enable_grad():
                parts = [some.gathered(part, own=i == 0).detach().requires_grad_() for i, part in enumerate(states)]
                attended = _attended(parts, some.mask(sizes, upstream.device), ctx.scale)
            arrived = _joined([_joined([arriving[number] for number in branch.own], 2) for branch in some.branches], 0)
            for i, gradient in enumerate(torch.autograd.grad(attended, parts, arrived)):
                for number, part in some.parts(gradient, sizes, own=i == 0):
                    places[i][number].add_(part)
        return (*(total.to(upstream.dtype) for total in totals), None, None)
