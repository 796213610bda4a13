"""Attention over a tree of prefixes, as an attention function of transformers.

A model keeps its own attention function for everything else. The segments of a tree take the place of the mask: transformers
hands a mask of four dimensions to every layer as it is, and checkpointed layers get it again in the backward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
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
    `segments` [S, 3]; see `PrefixTree`. Segments of equal size that read equally much are computed together."""
    table = segments.tolist()
    sizes = [stop - start for start, stop, _ in table]
    paths = [_path(table, number) for number in range(len(table))]
    queries, keys, values = (states.split(sizes, dim=2) for states in (query, key, value))
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, path in enumerate(paths):
        alike[sizes[number], sum(sizes[part] for part in path)].append(number)
    found: dict[int, Tensor] = {}
    for (own, read), numbers in alike.items():
        asking = torch.cat([queries[number] for number in numbers])
        keys_read, values_read = (
            torch.cat([torch.cat([states[part] for part in paths[number]], dim=2) for number in numbers])
            for states in (keys, values)
        )
        mask = None if own == read else torch.ones(own, read, dtype=torch.bool, device=query.device).tril(read - own)
        attended = scaled_dot_product_attention(
            asking, keys_read, values_read, attn_mask=mask, is_causal=mask is None, scale=scale
        )
        found.update(zip(numbers, attended.split(1), strict=True))
    return torch.cat([found[number] for number in range(len(table))], dim=2)


def _path(table: list[list[int]], number: int) -> list[int]:
    """Return the segments from the beginning of a sequence to this one."""
    path = [number]
    while table[path[-1]][2] >= 0:
        path.append(table[path[-1]][2])
    return path[::-1]
