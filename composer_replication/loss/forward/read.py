"""Reading rows of tokens for losses, each shared prefix once: prompts of siblings, the two sides of a preference pair, hinted
turns of one trajectory.

Exact, because what a token attends to does not depend on what stands after it. Only for models whose every layer attends to
everything before it; others (sliding windows, state-space layers, rotary frequencies that change with the length) read their
rows one beside the other, padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from composer_replication.loss.forward.forward import Forward, forward, why_plain
from composer_replication.loss.forward.modes import in_lockstep
from composer_replication.loss.forward.router_replay import marked
from composer_replication.loss.forward.tree import PrefixTree, prefix_tree
from composer_replication.loss.forward.tree_proof import forward_tree, why_no_tree
from composer_replication.types.routed_experts import UNKNOWN


class Rows(NamedTuple):
    """Rows of tokens, padded on the right."""

    ids: Tensor
    """[B, T] int64."""
    mask: Tensor | None = None
    """[B, T] attention mask; None where nothing is padding."""
    experts: Tensor | None = None
    """[B, T, L, K] integers, on any device: the experts that tokens go through (`router_replay.Routing.given`). None where
    routers choose."""


_PAYS = 0.95
"""Share of the padded positions above which the tokens of a tree are not worth it: the attention of padded rows is one call."""


def read_rows(model: nn.Module, inputs: Sequence[Rows]) -> list[Forward]:
    """Run `model` over several batches of rows, in one pass over the tree of all their prefixes where it can and that saves
    something, else each batch in a pass. Return a `Forward` for each batch.

    Under DDP and FSDP2, ranks with the same number of batches make the same passes, whatever is in them. Raises ValueError on a
    batch that has no row or no column.
    """
    for ids, *_ in inputs:
        if not ids.numel():
            raise ValueError(f"a batch of rows holds no token: its input_ids have the shape {list(ids.shape)}")
    lengths = [_lengths(rows.ids, rows.mask) for rows in inputs]
    known = [some for some in lengths if some is not None]
    if why_no_tree(model) is not None or len(known) < len(lengths) or not any(map(any, known)):
        return [_read_apart(model, rows) for rows in inputs]
    sequences = [
        _Sequence(ids[:n], None if rows.experts is None else rows.experts[number, :n].cpu())
        for rows, some in zip(inputs, known, strict=True)
        for number, (ids, n) in enumerate(zip(rows.ids.cpu(), some, strict=True))
    ]
    tree = prefix_tree([sequence.marks() for sequence in sequences])
    optional = len(inputs) == 1 or not in_lockstep(model)  # else the number of passes must not depend on the tokens
    if optional and len(tree.positions) > _PAYS * sum(rows.ids.numel() for rows in inputs):
        return [_read_apart(model, rows) for rows in inputs]
    ids, experts = _packed(tree, sequences)
    read = forward_tree(model, ids, tree.positions, tree.segments, inputs[0].ids.device, experts)
    places = iter(tree.places)
    columns = [_columns([next(places) for _ in rows.ids], rows.ids) for rows in inputs]
    return [Forward(read.output, read.head, some, read.routers, read.routing) for some in columns]


class _Sequence(NamedTuple):
    """The tokens of a row without its padding, on the CPU."""

    ids: Tensor
    """[n] int64."""
    experts: Tensor | None
    """[n, L, K]."""

    def marks(self) -> Tensor:
        """Return an integer for each token [n] that is the same where two tokens are and go through the same experts."""
        return self.ids if self.experts is None else marked(self.ids, self.experts)


def _read_apart(model: nn.Module, rows: Rows) -> Forward:
    return forward(model, rows.ids, rows.mask, experts=rows.experts)


def _packed(tree: PrefixTree, sequences: Sequence[_Sequence]) -> tuple[Tensor, Tensor | None]:
    """Return the tokens [N] of a tree, and the experts [N, L, K] that they go through."""
    ids = torch.empty(len(tree.positions), dtype=torch.int64)
    given = next((sequence.experts for sequence in sequences if sequence.experts is not None), None)
    experts = None if given is None else torch.full((len(ids), *given.shape[1:]), UNKNOWN, dtype=torch.int16)
    for places, sequence in zip(tree.places, sequences, strict=True):
        ids[places] = sequence.ids
        if experts is not None and sequence.experts is not None:
            experts[places] = sequence.experts.to(torch.int16)
    return ids, experts


def sequence_logprobs(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    response_mask: Tensor,
    temperature: float = 1.0,
    experts: Tensor | None = None,
) -> Tensor:
    """Return per-token log-probs [B, T] of the tokens in `response_mask` [B, T] (non-zero = wanted), 0 elsewhere; `sum(-1)`
    scores a sequence.

    A value "at position p" belongs to the token AT p, and is read from the logits at p - 1. Differentiable; call it under
    `torch.no_grad()` for a reference policy. Only the wanted rows go through the head. `experts` are as in `Rows`.

    Raises ValueError when position 0 is wanted: it has no predecessor and therefore no log-prob.
    """
    wanted = response_mask != 0
    if wanted[:, :1].any():
        raise ValueError("response_mask selects position 0, which has no predecessor and therefore no log-prob")
    row, position = wanted.nonzero(as_tuple=True)
    (read,) = read_rows(model, [Rows(input_ids, attention_mask, experts)])
    scores = read.rows(row, position).logprobs(input_ids[row, position], temperature)
    return scores.logprobs.new_zeros(input_ids.shape).index_put((row, position), scores.logprobs)


def fallbacks(model: nn.Module) -> dict[str, str]:
    """Return the slow paths `model` needs in its current mode, each with its reason: `head` forms the whole logits, `prefix`
    reads shared prefixes more than once."""
    reasons = {"head": why_plain(model), "prefix": why_no_tree(model)}
    return {what: why for what, why in reasons.items() if why is not None}


def _lengths(ids: Tensor, mask: Tensor | None) -> list[int] | None:
    """Return the length of each row; None where something stands after padding."""
    if mask is None:
        return [ids.shape[1]] * len(ids)
    real = (mask != 0).cpu()
    if bool((real[:, 1:] & ~real[:, :-1]).any()):
        return None
    return [int(length) for length in real.sum(-1)]


def _columns(places: Sequence[Tensor], ids: Tensor) -> Tensor:
    """Return the places [B, T] of a batch's tokens; padding has an index that no tensor has."""
    found = torch.full(ids.shape, torch.iinfo(torch.int64).max)
    for row, place in zip(found, places, strict=True):
        row[: len(place)] = place
    return found.to(ids.device)
