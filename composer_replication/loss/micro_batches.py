"""Cutting a batch into forward and backward passes of bounded size, and leaving out what would teach nothing.

Where a model shares prefixes, a pass is as large as the tree of its sequences. These are sorted as words are before they are cut,
so that what begins alike is read together, rows and preference pairs. Elsewhere a pass is as large as its padded tokens: rows
times the longest of them. Sequences are then sorted by length, so that hardly a position is padding, and rows and pairs are cut
apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from composer_replication.config import RlvrConfig
from composer_replication.loss.batch_keys import DENOMINATORS, HINT_KEYS, OF_ALL_PAIRS, PAIR_KEYS, ROW_KEYS, Batch, check_keys
from composer_replication.loss.channels.rlvr import teaching_tokens
from composer_replication.loss.forward.router_replay import marked
from composer_replication.loss.forward.tree import shared_length


def passes(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Group sequences into passes of at most `tokens` padded tokens, the longest first; a longer sequence goes alone.

    Return the positions in `lengths` of each pass. Within a pass they ascend. Raises ValueError when `tokens` is below 1.
    """
    _check_size(tokens)
    found: list[list[int]] = []
    room = 0
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if room == 0:
            found.append([])
            room = max(1, tokens // max(1, lengths[place]))
        found[-1].append(place)
        room -= 1
    return [sorted(some) for some in found]


def tree_passes(units: Sequence[Sequence[Tensor]], tokens: int) -> list[list[int]]:
    """Group units of one or several sequences of token ids into passes whose trees of prefixes hold at most `tokens` tokens; a
    larger one goes alone.

    Return the positions in `units` of each pass. Within a pass they ascend. Raises ValueError when `tokens` is below 1.
    """
    _check_size(tokens)
    rows = [[sequence.cpu().numpy() for sequence in unit] for unit in units]
    order = sorted(range(len(units)), key=lambda number: rows[number][0].tolist())
    found: list[list[int]] = []
    room = 0
    last: Sequence[NDArray[np.int64]] = []
    for number in order:
        first, *others = rows[number]
        new = sum(len(row) - shared_length(first, row) for row in others)
        size = new + len(first) - max((shared_length(one, first) for one in last), default=0)
        if not found or size > room:
            found.append([])
            room, size = tokens, new + len(first)
        found[-1].append(number)
        room -= size
        last = rows[number]
    return [sorted(some) for some in found]


def split(
    batch: Mapping[str, Tensor], tokens: int, *, shared_prefixes: bool = False, rank: int = 0, ranks: int = 1
) -> list[Batch]:
    """Split a batch into micro-batches of at most `tokens` tokens each, which carry the whole batch's denominators; of `ranks`
    processes that split the same batch, return those of process `rank`.

    Columns that hold only padding are cut off. Losses and gradients of the parts of all ranks add up to those of the whole. Every
    rank gets as many parts as the others, because each waits for the others in every forward and backward pass; the last ones may
    hold denominators only. `dropped_tokens` goes to the first part, and of `router_share` each has the part of its tokens. What
    self-teachers read is not counted.

    Args:
        shared_prefixes: a prefix that sequences share counts once, and rows and pairs may stand together. Else padding counts,
            and a micro-batch holds either rows with their hints or pairs.

    Raises ValueError when `tokens` is below 1, `rank` is none of `ranks`, a channel's denominator is missing (`collate` sets
    them), or a key is none of a batch's.
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank must be at least 0 and below ranks, got {rank} of {ranks}")
    check_keys(batch)
    for key, denominator in DENOMINATORS.items():
        if key in batch and denominator not in batch:
            raise ValueError(f"the batch has {key} but no {denominator}: without it micro-batches do not add up")
    parts = _by_prefix(batch, tokens) if shared_prefixes else _by_length(batch, tokens)
    parts += [{}] * (-len(parts) % ranks if parts else ranks)
    if "dropped_tokens" in batch:
        parts[0] = parts[0] | {"dropped_tokens": batch["dropped_tokens"]}
    if "router_share" in batch:
        every = _tokens_of_rows(batch)
        parts = [part | {"router_share": batch["router_share"] * _tokens_of_rows(part) / max(1, every)} for part in parts]
    shared = {key: batch[key] for key in (*DENOMINATORS.values(), OF_ALL_PAIRS) if key in batch}
    return [shared | _trim(part) for part in parts[rank::ranks]]


def _tokens_of_rows(batch: Mapping[str, Tensor]) -> int:
    return sum(_lengths(batch, "input_ids", "attention_mask"))


def _by_length(batch: Mapping[str, Tensor], tokens: int) -> list[Batch]:
    rows = passes(_lengths(batch, "input_ids", "attention_mask"), tokens)
    pairs = passes([2 * length for length in _pair_lengths(batch)], tokens)
    return [_rows(batch, torch.tensor(some)) for some in rows] + [_take(batch, PAIR_KEYS, torch.tensor(some)) for some in pairs]


def _by_prefix(batch: Mapping[str, Tensor], tokens: int) -> list[Batch]:
    rows = [[row] for row in _sequences(batch, "input_ids", "attention_mask")]
    sides = [_sequences(batch, f"dpo_{side}_input_ids", f"dpo_{side}_attention_mask") for side in ("chosen", "rejected")]
    parts = []
    for numbers in tree_passes([*rows, *zip(*sides, strict=True)], tokens):
        mine = [number for number in numbers if number < len(rows)]
        pairs = [number - len(rows) for number in numbers if number >= len(rows)]
        part = _rows(batch, torch.tensor(mine)) if mine else {}
        parts.append(part | (_take(batch, PAIR_KEYS, torch.tensor(pairs)) if pairs else {}))
    return parts


def mini_batches(batch: Mapping[str, Tensor], count: int, seed: int) -> list[Batch]:
    """Deal a batch's rows, with their hints, and its pairs out to `count` batches for as many optimizer steps, in an order drawn
    with `seed`; fewer where there are fewer rows and pairs.

    Each has an equal share of every denominator, so that its loss is the mean that the whole batch's is, whatever rows it got.
    Raises ValueError when `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"a batch is dealt out to at least 1 mini-batch, got {count}")
    if count == 1:
        return [dict(batch)]
    drawn = torch.Generator().manual_seed(seed)
    rows, pairs = (len(batch[key]) if key in batch else 0 for key in ("input_ids", "dpo_chosen_input_ids"))
    count = max(1, min(count, max(rows, pairs)))
    row_order, pair_order = torch.randperm(rows, generator=drawn), torch.randperm(pairs, generator=drawn)
    found: list[Batch] = []
    for i in range(count):
        part: Batch = {key: batch[key] / count for key in DENOMINATORS.values() if key in batch}
        part |= {key: batch[key] for key in ("router_share", OF_ALL_PAIRS) if key in batch}
        mine, own = row_order[i::count].sort().values, pair_order[i::count].sort().values
        part |= _rows(batch, mine) if len(mine) else {}
        part |= _take(batch, PAIR_KEYS, own) if len(own) else {}
        found.append(part)
    return found


def pairs_apart(batch: Mapping[str, Tensor]) -> tuple[Batch, Batch]:
    """Return a batch without its pairs, and one of the pairs alone; that is empty where there are none."""
    keys = {*PAIR_KEYS, DENOMINATORS["dpo_chosen_input_ids"], OF_ALL_PAIRS}
    pairs = {key: value for key, value in batch.items() if key in keys}
    rows = {key: value for key, value in batch.items() if key not in keys}
    return rows, pairs if "dpo_chosen_input_ids" in pairs else {}


def without_idle_rows(batch: Mapping[str, Tensor], options: RlvrConfig) -> Batch:
    """Return the batch without the rows whose gradient is exactly 0: no token of them is taught by the policy gradient under
    `options`, and no hint stands in them.

    Denominators stay as they are, so that the loss of a token that is left does not change.
    """
    if "input_ids" not in batch:
        return dict(batch)
    kept = teaching_tokens(batch, options).any(-1)
    if "ctx_teacher_input_ids" in batch:
        kept[_student_rows(batch)] = True
    if bool(kept.all()):
        return dict(batch)
    rest = {key: value for key, value in batch.items() if key not in ROW_KEYS and key not in HINT_KEYS}
    return rest | (_rows(batch, kept.nonzero().flatten()) if bool(kept.any()) else {})


_READ = ("attention_mask", "dpo_chosen_attention_mask", "dpo_rejected_attention_mask")
"""Masks of what is read with gradient."""


def tokens_of(parts: Sequence[Mapping[str, Tensor]]) -> int:
    """Return the tokens of all rows and pairs of the micro-batches. What a self-teacher reads is not counted."""
    return int(sum((part[key] != 0).sum() for part in parts for key in _READ if key in part))


def _rows(batch: Mapping[str, Tensor], rows: Tensor) -> Batch:
    """Return these rows [n] and their hints, whose `student_row` counts the rows anew."""
    rows = rows.to(batch["input_ids"].device)
    found = _take(batch, ROW_KEYS, rows)
    if "ctx_teacher_input_ids" not in batch:
        return found
    owner = _student_rows(batch)
    place = torch.full((len(batch["input_ids"]),), -1, device=owner.device)
    place[rows] = torch.arange(len(rows), device=owner.device)
    mine = (place[owner] >= 0).nonzero().flatten()
    return found | _take(batch, HINT_KEYS, mine) | {"student_row": place[owner[mine]]} if len(mine) else found


def _student_rows(batch: Mapping[str, Tensor]) -> Tensor:
    ids = batch["ctx_teacher_input_ids"]
    return batch.get("student_row", torch.arange(len(ids), device=ids.device))


def _take(batch: Mapping[str, Tensor], keys: Sequence[str], rows: Tensor) -> Batch:
    return {key: batch[key][rows.to(batch[key].device)] for key in keys if key in batch}


def _lengths(batch: Mapping[str, Tensor], ids: str, mask: str) -> list[int]:
    """Return the length of each sequence, up to its last token that is no padding."""
    if ids not in batch or not batch[ids].numel():
        return [0] * len(batch[ids]) if ids in batch else []
    real = batch[mask] != 0 if mask in batch else torch.ones_like(batch[ids], dtype=torch.bool)
    columns = torch.arange(1, real.shape[1] + 1, device=real.device)
    lengths: list[int] = (real * columns).amax(-1).tolist()
    return lengths


def _sequences(batch: Mapping[str, Tensor], ids: str, mask: str) -> list[Tensor]:
    """Return the tokens of each row, or integers that tell those apart as well that go through other experts."""
    rows = [row[:length] for row, length in zip(batch.get(ids, ()), _lengths(batch, ids, mask), strict=True)]
    if ids != "input_ids" or "routed_experts" not in batch:
        return rows
    return [marked(row.cpu(), experts[: len(row)].cpu()) for row, experts in zip(rows, batch["routed_experts"], strict=True)]


def _check_size(tokens: int) -> None:
    if tokens < 1:
        raise ValueError(f"a pass needs at least 1 token, got {tokens}")


def _pair_lengths(batch: Mapping[str, Tensor]) -> list[int]:
    sides = [_lengths(batch, f"dpo_{side}_input_ids", f"dpo_{side}_attention_mask") for side in ("chosen", "rejected")]
    return [max(both) for both in zip(*sides, strict=True)]


_OF_A_SIDE = ("input_ids", "attention_mask", "response_mask", "target_ids", "target_logprobs")
_FAMILIES = (
    ("attention_mask", ROW_KEYS),
    ("ctx_teacher_attention_mask", ("ctx_teacher_input_ids", "ctx_teacher_attention_mask")),
    ("sdpo_loss_mask", ("student_response_idx", "teacher_response_idx", "sdpo_loss_mask")),
    *((f"dpo_{side}_attention_mask", tuple(f"dpo_{side}_{what}" for what in _OF_A_SIDE)) for side in ("chosen", "rejected")),
)
"""Masks, and the keys whose columns they describe."""


def _trim(part: Batch) -> Batch:
    """Cut trailing columns that are padding in every row of their tensor."""
    for mask_key, keys in _FAMILIES:
        if mask_key in part:
            used = (part[mask_key] > 0).any(0).nonzero()
            width = int(used.max()) + 1 if len(used) else 1
            part = part | {key: part[key][:, :width] for key in keys if key in part and part[key].dim() > 1}
    return part
