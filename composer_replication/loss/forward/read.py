"""Reading rows of tokens for losses, each shared prefix once: prompts of siblings, the two sides of a preference pair, hinted
turns of one trajectory.

Exact, because what a token attends to does not depend on what stands after it. Only for models whose every layer attends to
everything before it; others (sliding windows, state-space layers, rotary frequencies that change with the length) read their
rows one beside the other, padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from composer_replication.loss.forward.forward import Forward, forward, why_plain
from composer_replication.loss.forward.modes import arguments_of, evaluating, in_lockstep, unwrapped
from composer_replication.loss.forward.tree import PrefixTree, prefix_tree
from composer_replication.loss.forward.tree_attention import as_mask, base_attention, let_take_trees, takes_trees, trees_read

# What models raise that do something else with a mask than hand it to their layers.
_ON_A_STRANGE_MASK = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)

Rows: TypeAlias = tuple[Tensor, Tensor | None]
"""Right-padded `input_ids` [B, T] and their attention mask; None where nothing is padding."""

_PAYS = 0.95
"""Tokens of a tree for each position of the padded rows above which these are read: their attention is one call."""
_PROOF = ((0, 1, 0), (0, 1, 1, 0), (1, 0))
"""Rows that a model reads both ways when it is first seen: two share a prefix, one is alone."""


def read_rows(model: nn.Module, lots: Sequence[Rows]) -> list[Forward]:
    """Run `model` over lots of rows: in one pass over the tree of all their prefixes where it can and that spares something, else
    each lot in a pass.

    Under DDP and FSDP2 ranks with the same lots make the same passes, whatever is in them.
    """
    lengths = [_lengths(*rows) for rows in lots]
    if why_no_tree(model) is not None or any(length is None for length in lengths) or not any(map(_any, lengths)):
        return [forward(model, ids, mask) for ids, mask in lots]
    sequences = [
        row[:length]
        for (ids, _), found in zip(lots, lengths, strict=True)
        for row, length in zip(ids.cpu(), found or (), strict=True)
    ]
    tree = prefix_tree(sequences)
    free = len(lots) == 1 or not in_lockstep(model)  # to choose: elsewhere the number of passes must not depend on what is read
    if free and len(tree.ids) > _PAYS * sum(ids.numel() for ids, _ in lots):
        return [forward(model, ids, mask) for ids, mask in lots]
    read = _forward_tree(model, tree, lots[0][0].device)
    places = iter(tree.places)
    return [Forward(read.output, read.head, _columns([next(places) for _ in ids], ids)) for ids, _ in lots]


def sequence_logprobs(
    model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None, response_mask: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return per-token log-probs [B, T] of the tokens in `response_mask` [B, T] (non-zero = wanted), 0 elsewhere; `sum(-1)`
    scores a sequence.

    A value "at position p" belongs to the token AT p, and is read from the logits at p - 1. Differentiable; call it under
    `torch.no_grad()` for a reference policy. Only the wanted rows go through the head. Raises ValueError when position 0 is
    wanted: it has no predecessor and therefore no log-prob.
    """
    wanted = response_mask != 0
    if wanted[:, :1].any():
        raise ValueError("response_mask selects position 0, which has no predecessor and therefore no log-prob")
    row, position = wanted.nonzero(as_tuple=True)
    scores = (
        read_rows(model, [(input_ids, attention_mask)])[0].rows(row, position).logprobs(input_ids[row, position], temperature)
    )
    return scores.logprobs.new_zeros(input_ids.shape).index_put((row, position), scores.logprobs)


def why_no_tree(model: nn.Module) -> str | None:
    """Return why rows that share a prefix are read whole, or None where `model` can share it in the mode it is in.

    That it can is PROVED the first time a model is seen: every layer must have read a tree, and have given what it gives for the
    rows one by one. Models that can get an attention function that takes trees and is otherwise the one they had.
    """
    inner = unwrapped(model)
    config = inner.config.get_text_config()
    if _rope_kinds(config) & {"dynamic", "longrope"}:
        return "its rotary frequencies depend on the length of the whole sequence"
    if not caches_attention_only(config):
        return "some of its layers attend to more or less than all that stands before"
    if base_attention(config) not in ALL_ATTENTION_FUNCTIONS:
        return f"its attention is {base_attention(config)}, which is no function of transformers' that another can stand in for"
    if draws_random_numbers(model):
        return "dropout draws other numbers for each row"
    known: dict[str, str | None] = inner.__dict__.setdefault("_composer_no_tree", {})
    if "why" not in known:
        known["why"] = _doubt(model, config)
    if known["why"] is None and not takes_trees(config):
        let_take_trees(config)
    return known["why"]


def fallbacks(model: nn.Module) -> dict[str, str]:
    """Return the slow paths `model` needs in its current mode, each with its reason: `head` forms the whole logits, `prefix`
    reads shared prefixes more than once."""
    reasons = {"head": why_plain(model), "prefix": why_no_tree(model)}
    return {what: why for what, why in reasons.items() if why is not None}


def caches_attention_only(config: Any) -> bool:
    """Return whether every layer of a model with this configuration caches full attention keys and values and nothing else."""
    layers = DynamicCache(config=config).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def draws_random_numbers(model: nn.Module) -> bool:
    """Return whether a forward pass in the model's current mode draws random numbers."""
    return any(module.training and isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules()) or (
        model.training and bool(getattr(unwrapped(model).config, "attention_dropout", 0.0))
    )


def _rope_kinds(config: Any) -> set[Any]:
    """Return the `rope_type`s of a configuration, which may name one for all layers or one for each kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return {part.get("rope_type") for part in (rope, *rope.values()) if isinstance(part, dict)}


def _doubt(model: nn.Module, config: Any) -> str | None:
    if "position_ids" not in arguments_of(model):
        return "it takes no position_ids"
    device = next(model.parameters()).device
    rows = [torch.tensor(row) for row in _PROOF]
    with evaluating(model):
        expected = [forward(model, row[None].to(device), None).output[0] for row in rows]
        tree = prefix_tree(rows)
        let_take_trees(config)
        try:
            with trees_read() as read:
                found = _forward_tree(model, tree, device).output[0]
        except _ON_A_STRANGE_MASK as error:
            let_take_trees(config, wanted=False)
            return f"it does not take the tree in place of a mask: {error}"
    tolerance = 2e-2 if found.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled(device.type) else 1e-4
    pairs = [(found[place.to(device)], one) for place, one in zip(tree.places, expected, strict=True)]
    same = all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs)
    if same and len(set(read)) == len(DynamicCache(config=config).layers):
        return None
    let_take_trees(config, wanted=False)
    return "its layers do not take the tree in place of a mask"


def _forward_tree(model: nn.Module, tree: PrefixTree, device: torch.device) -> Forward:
    """Run a forward pass over a tree: its output is [1, N, ...]."""
    ids, positions = (values[None].to(device) for values in (tree.ids, tree.positions))
    return forward(model, ids, as_mask(tree.segments), position_ids=positions)


def _lengths(ids: Tensor, mask: Tensor | None) -> list[int] | None:
    """Return the length of each row; None where something stands after padding."""
    if mask is None:
        return [ids.shape[1]] * len(ids)
    real = (mask != 0).cpu()
    if bool((real[:, 1:] & ~real[:, :-1]).any()):
        return None
    return [int(length) for length in real.sum(-1)]


def _any(lengths: list[int] | None) -> bool:
    return any(lengths or ())


def _columns(places: Sequence[Tensor], ids: Tensor) -> Tensor:
    """Return the places of the tokens of a lot, [B, T]: padding has one that is none."""
    found = torch.full(ids.shape, torch.iinfo(torch.int64).max)
    for row, place in zip(found, places, strict=True):
        row[: len(place)] = place
    return found.to(ids.device)
