"""Sequences that share a prefix: its keys and values are computed once and read by every continuation. Exact, because a
position's keys and values depend only on what stands before it.

Two users: the self-teacher reads each error turn with its hint on top of the trajectory's prefix, and a preference pair's two
answers stand on one prompt. Only for models whose every layer caches full attention keys and values; others (sliding windows,
state-space layers, rotary frequencies that change with the length) are run over whole sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from composer_replication.loss.forward.forward import Forward, forward, why_plain
from composer_replication.loss.forward.modes import checkpoints_without_cache, in_lockstep, unwrapped
from composer_replication.loss.forward.rows import FusedRows, PlainRows, concatenated


class Prefix:
    """Keys and values of rows of tokens."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]]) -> None:
        self.layers = layers
        """Keys and values [B, heads, T, D] of each layer."""

    def detach(self) -> Prefix:
        """Return the same prefix without gradient."""
        return Prefix([(keys.detach(), values.detach()) for keys, values in self.layers])


def caches_attention_only(config: Any) -> bool:
    """Return whether every layer of a model with this configuration caches full attention keys and values and nothing else."""
    layers = DynamicCache(config=config).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def why_no_prefix(model: nn.Module) -> str | None:
    """Return why the sequences that share a prefix are read whole, or None where `model` can share it in the mode it is in."""
    inner = unwrapped(model)
    if checkpoints_without_cache(inner):
        return "gradient checkpointing keeps no keys and values"
    if _rope_kinds(inner.config) & {"dynamic", "longrope"}:
        return "its rotary frequencies depend on the length of the whole sequence"
    return None if caches_attention_only(inner.config) else "some of its layers cache more or less than full attention"


def _rope_kinds(config: Any) -> set[Any]:
    """Return the `rope_type`s of a configuration, which may name one for all layers or one for each kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return {part.get("rope_type") for part in (rope, *rope.values()) if isinstance(part, dict)}


def fallbacks(model: nn.Module) -> dict[str, str]:
    """Return the slow paths `model` needs in its current mode, each with its reason: `head` forms the whole logits, `prefix`
    reads shared prefixes more than once."""
    reasons = {"head": why_plain(model), "prefix": why_no_prefix(model)}
    return {what: why for what, why in reasons.items() if why is not None}


def read_prefix(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Forward, Prefix]:
    """Run a forward pass over right-padded rows [B, T] that keeps their keys and values, with their gradient."""
    new: Callable[[], _Noting] = _Noting
    layers = [new() for _ in DynamicCache(config=unwrapped(model).config).layers]
    read = forward(model, input_ids, attention_mask, cache=Cache(layers=list(layers)))
    if in_lockstep(model):  # wrappers wait for the backward pass at what they gave back, of which a loss may read nothing
        layers[0].keys = layers[0].keys + read.output[..., :0].sum()
    return read, Prefix([(layer.keys, layer.values) for layer in layers])


def common_prefix(a: Tensor, b: Tensor) -> Tensor:
    """Return the length [S] of the longest common prefix of the rows of `a` [S, T] and `b` [S, U]."""
    width = min(a.shape[1], b.shape[1])
    return (a[:, :width] == b[:, :width]).cumprod(-1).sum(-1)


def read_on_top(
    model: nn.Module,
    prefix: Prefix,
    owner: Tensor,
    shared: Tensor,
    input_ids: Tensor,
    attention_mask: Tensor,
    row: Tensor,
    position: Tensor,
    *,
    tokens_at_once: int | None = None,
) -> FusedRows | PlainRows:
    """Return the rows that predict the tokens at `position` [n] of `row` [n] of right-padded sequences `input_ids` [S, T], of
    which the i-th begins with the first `shared[i]` positions of row `owner[i]` of `prefix`.

    Every position must be beyond `shared` of its row, so that what predicts it is read here. `tokens_at_once` limits the
    positions (prefixes included) that one forward pass reads.
    """
    size = len(input_ids)
    if tokens_at_once is not None:
        size = max(1, tokens_at_once // int(attention_mask.sum(-1).max()))
    found = []
    for start in range(0, len(input_ids), size):
        some = slice(start, start + size)
        tails, mask = _tails(input_ids[some], attention_mask[some], shared[some])
        read = _continue(model, prefix, owner[some], shared[some], tails, mask)
        mine = (row >= some.start) & (row < some.stop)
        found.append(read.rows(row[mine] - start, position[mine] - shared[row[mine]]))
    return concatenated(found)


def _continue(model: nn.Module, prefix: Prefix, owner: Tensor, shared: Tensor, tails: Tensor, mask: Tensor) -> Forward:
    """Run a forward pass over `tails` [S, q], each after its prefix."""
    longest = int(shared.max())
    columns = torch.arange(longest, device=shared.device) - (longest - shared).unsqueeze(-1)  # right-aligned; below 0: none
    layers = [_Continuing(keys, values, owner, columns) for keys, values in prefix.layers]
    return forward(
        model,
        tails,
        torch.cat([(columns >= 0).to(mask.dtype), mask], dim=-1),
        position_ids=shared.unsqueeze(-1) + torch.arange(tails.shape[1], device=shared.device),
        cache=Cache(layers=list(layers)),
    )


def _tails(ids: Tensor, mask: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens of each row of `ids` [S, T] from `start` [S] on, right-padded, and their mask."""
    lengths = mask.sum(-1)
    columns = start.unsqueeze(-1) + torch.arange(int((lengths - start).max()), device=ids.device)
    inside = columns < lengths.unsqueeze(-1)
    return ids.gather(1, columns.clamp(max=ids.shape[1] - 1)) * inside, inside.to(mask.dtype)


class _Noting(DynamicLayer):  # type: ignore[no-untyped-call]  # the base's __init_subclass__ is unannotated
    """A cache layer that only remembers what passes."""

    keys: Tensor
    values: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values, self.is_initialized = key_states, value_states, True
        return key_states, value_states


class _Continuing(DynamicLayer):  # type: ignore[no-untyped-call]
    """A cache layer that puts each row's prefix before the new states, and keeps nothing: the copy lives for one layer."""

    def __init__(self, keys: Tensor, values: Tensor, owner: Tensor, columns: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # unannotated in transformers
        self._prefix, self._owner, self._columns = (keys, values), owner, columns
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = (
            torch.cat([before[self._owner.unsqueeze(-1), :, self._columns.clamp(min=0)].transpose(1, 2), states], dim=-2)
            for before, states in zip(self._prefix, (key_states, value_states), strict=True)
        )
        return keys, values

    def get_seq_length(self) -> int:
        return self._columns.shape[1]
