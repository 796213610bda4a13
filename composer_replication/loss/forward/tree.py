"""Sequences as a tree of the prefixes that they share: every token that several of them begin with is read once.

The tokens stand in the order of a walk through the tree, first a token, then what follows it in one sequence, then in the
next. A segment is a run of them that every sequence takes as a whole or not at all; it attends to itself and to the segments
that lead to it (Tree Training, arXiv:2511.00413, section 3; Prefix Grouper, arXiv:2506.05433, for trees of one level).
Sequences that share nothing are trees of one segment each: packed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """The tokens of some sequences, N in all."""

    ids: Tensor
    """[N] int64."""
    positions: Tensor
    """[N] int64: where each stands in its sequences, from 0 on."""
    segments: Tensor
    """[S, 3] int64: the first token of each segment, the one after its last, and the segment before it, -1 where there is none.
    Every segment stands after those that lead to it."""
    places: Sequence[Tensor]
    """[T] int64 of each sequence: where its tokens are."""


def prefix_tree(sequences: Sequence[Tensor]) -> PrefixTree:
    """Return the tree of some sequences [T] of token ids, on the CPU. Empty sequences take no part in it."""
    rows = [sequence.cpu().numpy() for sequence in sequences]
    order = in_tree_order(rows)
    places: list[NDArray[np.int64]] = [np.empty(0, np.int64) for _ in rows]
    tokens, before = [], []
    cuts, count, last = {0}, 0, -1
    for number in order:
        row = rows[number]
        shared = 0 if last < 0 else shared_length(rows[last], row)
        mine = np.concatenate([places[last][:shared] if last >= 0 else row[:0], np.arange(count, count + len(row) - shared)])
        if 0 < shared < len(rows[last]):
            cuts.add(int(places[last][shared]))
        cuts.add(count)
        places[number], last = mine, number
        tokens.append(row[shared:])
        before.append(np.concatenate([[-1], mine[:-1]])[shared:])
        count += len(row) - shared
    positions = [np.arange(len(rows[number]) - len(new), len(rows[number])) for number, new in zip(order, tokens, strict=True)]
    starts = np.array(sorted(cuts - {count}), np.int64)
    leads = _joined(before)[starts]
    parents = np.where(leads < 0, -1, np.searchsorted(starts, leads, side="right") - 1)
    segments = np.stack([starts, np.append(starts[1:], count)[: len(starts)], parents], axis=1)
    return PrefixTree(
        ids=torch.from_numpy(_joined(tokens)),
        positions=torch.from_numpy(_joined(positions)),
        segments=torch.from_numpy(segments),
        places=[torch.from_numpy(place) for place in places],
    )


def in_tree_order(rows: Sequence[NDArray[np.int64]]) -> list[int]:
    """Return the numbers of the rows that hold tokens in the order of a walk through their tree: sorted as words are, so that
    what a row shares with any earlier one it shares with the one before it."""
    return sorted((number for number, row in enumerate(rows) if len(row)), key=lambda number: rows[number].tolist())


def shared_length(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return the length of the longest common prefix of two rows."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    return int(differ.argmax()) if differ.any() else length


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
