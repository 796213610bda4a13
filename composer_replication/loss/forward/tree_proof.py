"""Decide whether a model can read its rows as a tree of prefixes: by its configuration, and by a trial on a few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer

from composer_replication.loss.forward.forward import Forward, forward
from composer_replication.loss.forward.models import window_of
from composer_replication.loss.forward.modes import arguments_of, evaluating, lockstep_groups, unwrapped, without_gradient
from composer_replication.loss.forward.tree import PrefixTree, prefix_tree
from composer_replication.loss.forward.tree_attention import (
    LayerRead,
    as_mask,
    can_read_trees,
    enable_trees,
    observed,
)

_ROWS = ((0, 1, 0), (0, 1, 1, 0), (1, 0))
"""Rows that a model reads both ways in the trial: two share a prefix, the last one shares nothing."""
_FARTHEST = 1 << 20
"""Positions from which the last row is moved away, in models that name no limit."""
_TOLERANCE = 1e-4
"""Relative error of a row, in the Euclidean norm, that needs no explanation by rounding."""
_COARSEST = 0.25
"""Relative error that is too large to be rounding in any model."""
_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)
"""Errors of models that do something else with a mask than hand it to their layers."""
_OPTIONS = (
    *("output_router_logits", "output_attentions", "output_hidden_states"),
    *("is_causal", "sliding_window", "attention_chunk_size", "_experts_implementation"),
)
"""Options of a configuration that change a forward pass after a model is made: each setting has a trial of its own."""
_MORE_OR_LESS = "some of its layers attend to more or less than all that stands before"
_LENGTH = "its rotary frequencies depend on the length of the whole sequence"
_NOT_TAKEN = "its layers do not take the tree in place of a mask"


class _Verdict(NamedTuple):
    why: str | None
    """Why the model cannot read a tree; None where it can."""
    lasting: bool = True
    """Another trial would say the same."""


def why_no_tree(model: nn.Module) -> str | None:
    """Return why rows that share a prefix are read whole, or None where `model` can share it in the mode it is in.

    That it can is tried out once for each mode and each setting of its options: every layer must read the tree, tokens must
    depend on their own positions alone, and the result must be that of the rows one by one. In a mode in which a pass draws
    random numbers (dropout, a router's jitter) prefixes are not shared: rows that begin alike would get the same noise where
    they get independent noise otherwise. From then on the model's `_attn_implementation` is a function that reads trees too.

    Under DDP and FSDP2 the first call is collective, and all ranks get the verdict of those that can do less. Raises
    torch.OutOfMemoryError where the trial has no memory; nothing is remembered then, nor where a model's outputs are not finite.
    """
    inner = unwrapped(model)
    config = inner.config.get_text_config()
    why = _why_not(inner, config)
    if why is not None:
        return why
    known: dict[Any, str | None] = inner.__dict__.setdefault("_composer_no_tree", {})
    key = _setting(model, inner.config, config)
    why = known.get(key, _NOT_TAKEN)
    try:
        if key not in known:
            why, lasting = _agreed(model, _tried(model, config))
            if lasting:
                known[key] = why
    finally:
        enable_trees(config, enabled=why is None)
    return why


def caches_attention_only(config: Any) -> bool:
    """Return whether every layer of a model with this configuration caches full attention keys and values and nothing else."""
    layers = DynamicCache(config=config).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def forward_tree(
    model: nn.Module,
    ids: Tensor,
    positions: Tensor,
    segments: Tensor,
    device: torch.device,
    experts: Tensor | None = None,
) -> Forward:
    """Run a forward pass over the tokens of a tree, whose `ids` [N], `positions` [N] and `segments` [S, 3] are those of a
    `PrefixTree`, and whose `experts` are [N, L, K]: its output is [1, N, ...]."""
    chosen = None if experts is None else experts[None]
    return forward(model, ids[None].to(device), as_mask(segments), position_ids=positions[None].to(device), experts=chosen)


def _why_not(inner: Any, config: Any) -> str | None:
    """Return why a model cannot read trees by its configuration: what a trial on short rows would not show."""
    if hasattr(inner, "_orig_mod"):
        return "torch.compile wraps the whole model: compile its blocks instead, with model.compile = true"
    adapters = getattr(inner, "peft_config", None) or {}
    if any(getattr(adapter, "alora_invocation_tokens", None) for adapter in adapters.values()):
        return "its activated LoRA looks for the invocation tokens in each row of a batch"
    if _rope_kinds(config) & {"dynamic", "longrope"}:
        return _LENGTH
    if getattr(config, "attn_temperature_tuning", None):
        return "its attention is scaled by the place of a token in the batch (attn_temperature_tuning)"
    if not caches_attention_only(config):
        return _MORE_OR_LESS
    if not can_read_trees(config):
        return f"its attention is {config._attn_implementation}: prefixes are shared with model.attention = sdpa"
    return None


def _rope_kinds(config: Any) -> set[Any]:
    """Return the `rope_type`s of a configuration, which may name one for all layers or one for each kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return {part.get("rope_type") for part in (rope, *rope.values()) if isinstance(part, dict)}


def _setting(model: nn.Module, *configs: Any) -> tuple[Any, ...]:
    """Return the mode and the options on which the verdict on a model depends."""
    options = [getattr(config, name, None) for config in configs for name in _OPTIONS]
    return (*options, *[(module.training, vars(module).get("is_causal")) for module in model.modules()])


def _agreed(model: nn.Module, verdict: _Verdict) -> _Verdict:
    """Return the verdict of all ranks that are in lockstep: with other verdicts they would make other passes."""
    groups = lockstep_groups(model)
    if not groups:
        return verdict
    flags = torch.tensor([verdict.why is not None, not verdict.lasting], dtype=torch.int32, device=_device(model))
    for group in groups:
        torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX, group)
    refused, passing = (bool(flag) for flag in flags.tolist())
    return _Verdict((verdict.why or "another rank cannot read it as a tree") if refused else None, not passing)


def _tried(model: nn.Module, config: Any) -> _Verdict:
    if "position_ids" not in arguments_of(model):
        return _Verdict("it takes no position_ids")
    if _draws_random_numbers(model):
        return _Verdict("dropout or noise draws other numbers for each row")
    enable_trees(config)  # rows that are no tree are read as before
    weights = {parameter.dtype for parameter in model.parameters()}
    exact = len(weights) == 1 and weights <= {torch.float32, torch.float64}
    uncast = torch.autocast(_device(model).type, enabled=False) if exact else nullcontext()
    with evaluating(model), uncast:
        trial = _Trial(model)
        try:
            trial.read_trees()
        except torch.OutOfMemoryError:
            raise
        except _ERRORS as error:
            return _Verdict(f"{_NOT_TAKEN}: {error}")
        return trial.verdict(len(DynamicCache(config=config).layers))


def _draws_random_numbers(model: nn.Module) -> bool:
    """Return whether a forward pass in the model's current mode draws random numbers, by trying it."""
    if not any(module.training for module in model.modules()):
        return False
    device = _device(model)
    row = torch.tensor([_ROWS[0]], device=device)
    with without_gradient(model), torch.random.fork_rng([device] if device.type == "cuda" else []):
        before = _random_states(device)
        forward(model, row, None)
        return any(not torch.equal(a, b) for a, b in zip(before, _random_states(device), strict=True))


def _random_states(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


class _Trial:
    """The passes of a trial: rows one by one, as a tree, and as a tree whose last row stands at the far end of the window.

    All are made before anything is compared, so that ranks make the same ones.
    """

    def __init__(self, model: nn.Module) -> None:
        """Read the rows one by one, as the model would without trees."""
        self.model, self.device = model, _device(model)
        self.rows = [torch.tensor([row], device=self.device) for row in _ROWS]
        with observed(model) as self.plain:
            self.alone = [forward(model, row, None).output[0] for row in self.rows]

    def read_trees(self) -> None:
        """Read the rows as trees. Raises what models raise that cannot."""
        model, last = self.model, self.rows[-1]
        self.tree = prefix_tree([row[0] for row in self.rows])
        self.apart = self.tree.places[-1]
        """[2] int64: where the tokens of the last row are, which share nothing with other rows."""
        far = self.tree.positions.clone()
        far[self.apart] += min(window_of(unwrapped(model).config), _FARTHEST) - len(self.apart)
        moved = forward(model, last, torch.ones_like(last), position_ids=far[self.apart][None].to(self.device))
        self.elsewhere = [*self.alone[:-1], moved.output[0]]
        self.near, self.near_read = _as_tree(model, self.tree, self.tree.positions)
        self.far, self.far_read = _as_tree(model, self.tree, far)
        dtypes = [next(model.parameters()).dtype, *[read.value.dtype for read in self.near_read]]
        sensitivity = _sensitivity(model, self.rows[1], self.alone[1], max(map(_rounding, dtypes)))
        self.tolerance = min(max(_TOLERANCE, 2 * sensitivity), _COARSEST)

    def verdict(self, layers: int) -> _Verdict:
        """Return what the passes say of a model with so many `layers`."""
        if not all(bool(output.isfinite().all()) for output in (*self.alone, *self.elsewhere)):
            return _Verdict("its outputs are not finite", lasting=False)
        if not self.plain.all_causal():
            return _Verdict(_MORE_OR_LESS)
        if len({read.layer for read in self.near_read}) != layers:
            return _Verdict(_NOT_TAKEN)
        pairs = list(zip(self.near_read, self.far_read, strict=True))
        if all(_equal(a, b, self.apart) for a, b in pairs):
            return _Verdict("it ignores position_ids")
        others = torch.cat(list(self.tree.places[:-1]))
        if not _equal(*pairs[0], others):
            return _Verdict(_LENGTH)
        near, far = ([output[place.to(output.device)] for place in self.tree.places] for output in (self.near, self.far))
        if not self._same(near, self.alone):
            return _Verdict(_NOT_TAKEN)
        return _Verdict(None if self._same(far, self.elsewhere) else _LENGTH)

    def _same(self, found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
        return all(_error(a, b) <= self.tolerance for a, b in zip(found, expected, strict=True))


def _as_tree(model: nn.Module, tree: PrefixTree, positions: Tensor) -> tuple[Tensor, list[LayerRead]]:
    """Return the output [N, ...] of a pass over a tree, and the attention in it."""
    with observed(model) as seen:
        output = forward_tree(model, tree.ids, positions, tree.segments, _device(model)).output[0]
    return output, seen.read


def _equal(a: LayerRead, b: LayerRead, places: Tensor) -> bool:
    """Return whether the queries and keys of some tokens are the same in two passes."""
    places = places.to(a.query.device)
    return torch.equal(a.query[:, :, places], b.query[:, :, places]) and torch.equal(a.key[:, :, places], b.key[:, :, places])


def _error(found: Tensor, expected: Tensor) -> float:
    """Return the relative error of outputs in the Euclidean norm."""
    wide = torch.promote_types(expected.dtype, torch.float32)
    return float((found.to(wide) - expected.to(wide)).norm() / expected.to(wide).norm())


def _rounding(dtype: torch.dtype) -> float:
    """Return the relative precision of matrix products in a type."""
    if dtype == torch.float32:
        return {"highest": torch.finfo(dtype).eps, "high": 2**-10}.get(torch.get_float32_matmul_precision(), 2**-7)
    return torch.finfo(dtype).eps if dtype.is_floating_point else 2**-7


def _sensitivity(model: nn.Module, row: Tensor, expected: Tensor, rounding: float) -> float:
    """Return how much the output for a row [1, T] changes, by its norm, when its embeddings change by `rounding`."""
    noise = torch.Generator().manual_seed(0)

    def change(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        signs = torch.randint(0, 2, output.shape, generator=noise) * 2 - 1
        wide = torch.promote_types(output.dtype, torch.float32)
        return (output.to(wide) * (1 + rounding * signs.to(output.device, wide))).to(output.dtype)

    hook = unwrapped(model).get_input_embeddings().register_forward_hook(change)
    try:
        return _error(forward(model, row, None).output[0], expected)
    finally:
        hook.remove()
