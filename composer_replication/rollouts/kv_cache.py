"""Key/value caches that outlive a turn: kept per session, merged into one left-padded batch for each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicLayer

_ROOM = 64
"""Columns allocated beyond those needed, at least."""


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # the base's __init_subclass__ is unannotated
    """A `DynamicLayer` that appends in place: half as much room again is allocated ahead, up to `most` columns, instead of
    copying at every token."""

    keys: Tensor
    values: Tensor

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # unannotated in transformers
        self.length = 0
        self.most = most

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append `[B, H, q, D]` states and return views of all of them, `[B, H, length, D]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            self.keys, self.values = self._grown(self.keys, end), self._grown(self.values, end)
        self.keys[..., self.length : end, :] = key_states
        self.values[..., self.length : end, :] = value_states
        self.length = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def get_seq_length(self) -> int:
        return self.length

    def _grown(self, old: Tensor, end: int) -> Tensor:
        columns = max(end, min(end + max(_ROOM, end // 2), self.most))
        new = old.new_empty((*old.shape[:-2], columns, old.shape[-1]))
        new[..., : self.length, :] = old[..., : self.length, :]
        return new


@dataclass(slots=True)
class Session:
    """An engine's state of one conversation between two turns."""

    length: int = 0
    """Positions stored in `layers`; 0 in an engine that recomputes."""
    pending: tuple[int, ...] = ()
    """Ids of the conversation that are not in `layers`: the last sampled one, or all of them in an engine that recomputes."""
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Keys and values per layer, `[length, H, D]` each, owned by this session alone; empty once they were merged into a batch."""
    experts: Tensor | None = None
    """Integers `[length, L, K]`: the experts of a mixture that the stored positions went through, where they are recorded."""


def merge_caches(sessions: Sequence[Session], layers: int, *, most: int) -> Cache:
    """Merge sessions into one batch cache of `layers` layers, each row's positions right-aligned at column `max(length)`. A
    session gives each layer up as soon as it is merged, so that both are never held whole.

    Args:
        most: columns that the batch will have at most.
    """
    merged = [GrowingLayer(most) for _ in range(layers)]
    full = [session for session in sessions if session.layers]
    if full:
        for i, layer in enumerate(merged):
            like_keys, like_values = full[0].layers[i]
            none = like_keys.new_empty((0, *like_keys.shape[1:])), like_values.new_empty((0, *like_values.shape[1:]))
            states = [s.layers[i] if s.layers else none for s in sessions]
            keys, values = (pad_sequence([state[kv] for state in states], True, 0.0, "left") for kv in (0, 1))
            del states
            for session in full:
                session.layers[i] = none
            layer.update(keys.transpose(1, 2), values.transpose(1, 2))
    return Cache(layers=list(merged))


def split_cache(cache: Cache, rows: Tensor, keep: Tensor, *, last: bool) -> list[list[tuple[Tensor, Tensor]]]:
    """Split off, per row of `rows`, its keys and values per layer `[kept, H, D]`, in separate memory.

    Args:
        rows: indices into the batch, `[R]`.
        keep: which columns of each of these rows hold real positions, bool `[R, length]`.
        last: nothing else is read of the cache, which gives each layer up as soon as it is split.
    """
    sizes = keep.sum(1).tolist()
    per_layer = []
    layers: list[Any] = cache.layers
    for layer in layers:
        keys, values = (t[rows][..., : keep.shape[1], :].transpose(1, 2)[keep].split(sizes) for t in (layer.keys, layer.values))
        if last:
            layer.keys = layer.values = layer.keys.new_empty(0)
        per_layer.append([(k.clone(), v.clone()) for k, v in zip(keys, values, strict=True)])
    return [list(row) for row in zip(*per_layer, strict=True)]
