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

from composer_replication.loss.forward.forward import Forward, forward, why_plain
from composer_replication.loss.forward.modes import arguments_of, evaluating, in_lockstep, unwrapped
from composer_replication.loss.forward.tree import prefix_tree
from composer_replication.loss.forward.tree_attention import as_mask, can_read_trees, enable_trees, layers_that_read_trees

Rows: TypeAlias = tuple[Tensor, Tensor | None]
"""Right-padded `input_ids` [B, T] and their attention mask; None where nothing is padding."""

_PAYS = 0.95
"""Share of the padded positions above which the tokens of a tree are not worth it: the attention of padded rows is one call."""
_PROOF = ((0, 1, 0), (0, 1, 1, 0), (1, 0))
"""Rows that a model reads both ways when it is first seen: two share a prefix, one is alone."""
_PROOF_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)
"""What models raise that do something else with a mask than hand it to their layers."""


def read_rows(model: nn.Module, inputs: Sequence[Rows]) -> list[Forward]:
    """Run `model` over several batches of rows, in one pass over the tree of all their prefixes where it can and that saves
    something, else each batch in a pass. Return a `Forward` for each batch.

    Under DDP and FSDP2, ranks with the same number of batches make the same passes, whatever is in them.
    """
    lengths = [_lengths(*rows) for rows in inputs]
    known = [some for some in lengths if some is not None]
    if why_no_tree(model) is not None or len(known) < len(lengths) or not any(map(any, known)):
        return [forward(model, ids, mask) for ids, mask in inputs]
    tree = prefix_tree(
        [row[:n] for (ids, _), some in zip(inputs, known, strict=True) for row, n in zip(ids.cpu(), some, strict=True)]
    )
    optional = len(inputs) == 1 or not in_lockstep(model)  # else the number of passes must not depend on the tokens
    if optional and len(tree.ids) > _PAYS * sum(ids.numel() for ids, _ in inputs):
        return [forward(model, ids, mask) for ids, mask in inputs]
    read = _forward_tree(model, tree.ids, tree.positions, tree.segments, inputs[0][0].device)
    places = iter(tree.places)
    return [Forward(read.output, read.head, _columns([next(places) for _ in ids], ids)) for ids, _ in inputs]


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
    (read,) = read_rows(model, [(input_ids, attention_mask)])
    scores = read.rows(row, position).logprobs(input_ids[row, position], temperature)
    return scores.logprobs.new_zeros(input_ids.shape).index_put((row, position), scores.logprobs)


def why_no_tree(model: nn.Module) -> str | None:
    """Return why rows that share a prefix are read whole, or None where `model` can share it in the mode it is in.

    That it can is PROVED the first time a model is seen: every layer must read the tree, positions must count, and the result
    must be that of the rows one by one. From then on the model's `_attn_implementation` is a function that reads trees too.
    """
    inner = unwrapped(model)
    config = inner.config.get_text_config()
    if _rope_kinds(config) & {"dynamic", "longrope"}:
        return "its rotary frequencies depend on the length of the whole sequence"
    if not caches_attention_only(config):
        return "some of its layers attend to more or less than all that stands before"
    if not can_read_trees(config):
        return f"its attention is {config._attn_implementation}: prefixes are shared with model.attention = sdpa"
    if draws_random_numbers(model):
        return "dropout draws other numbers for each row"
    known: dict[str, str | None] = inner.__dict__.setdefault("_composer_no_tree", {})
    if "why" not in known:
        known["why"] = _doubt(model, config)
    if known["why"] is None:
        enable_trees(config)  # again where somebody has chosen an attention function since
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
    tree = prefix_tree(rows)
    elsewhere = torch.arange(len(tree.positions))
    with evaluating(model):
        expected = [forward(model, row[None].to(device), None).output[0] for row in rows]
        enable_trees(config)
        try:
            with layers_that_read_trees() as layers:
                found = _forward_tree(model, tree.ids, tree.positions, tree.segments, device).output[0]
            moved = _forward_tree(model, tree.ids, elsewhere, tree.segments, device).output[0]
        except _PROOF_ERRORS as error:
            enable_trees(config, enabled=False)
            return f"its layers do not take the tree in place of a mask: {error}"
    tolerance = 2e-2 if found.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled(device.type) else 1e-4
    pairs = [(found[place.to(device)], one) for place, one in zip(tree.places, expected, strict=True)]
    same = all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs)
    everywhere = len(set(layers) & set(model.modules())) == len(DynamicCache(config=config).layers)
    if same and everywhere and not torch.equal(found, moved):
        return None
    enable_trees(config, enabled=False)
    return "it ignores position_ids" if torch.equal(found, moved) else "its layers do not take the tree in place of a mask"


def _forward_tree(model: nn.Module, ids: Tensor, positions: Tensor, segments: Tensor, device: torch.device) -> Forward:
    """Run a forward pass over the tokens of a tree: its output is [1, N, ...]."""
    return forward(model, ids[None].to(device), as_mask(segments), position_ids=positions[None].to(device))


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
