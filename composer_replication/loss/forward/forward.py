"""Forward passes of a Hugging Face causal LM for losses: up to its head where the head can be fused, else to its logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from composer_replication.kernels import Head, logits_of
from composer_replication.loss.forward.modes import cache_argument, evaluating, in_lockstep, sharded_units, unwrapped
from composer_replication.loss.forward.router_replay import Routing, layers_of, routing
from composer_replication.loss.forward.routers import routed
from composer_replication.loss.forward.rows import FusedRows, PlainRows
from composer_replication.types.errors import ModelError
from composer_replication.types.routed_experts import UNKNOWN


class Forward:
    """A forward pass in which rows of tokens [B, T] were read."""

    def __init__(
        self,
        output: Tensor,
        head: Head | None,
        places: Tensor | None = None,
        routers: Sequence[Tensor] = (),
        routing: Routing | None = None,
    ) -> None:
        self.output = output
        """[B, T, H] what the head reads, or [B, T, V] logits without a head; [1, N, ...] where the rows are packed."""
        self.head = head
        self.places = places
        """[B, T] int64: where the tokens stand among the packed ones. None where they are not packed."""
        self.routers = routers
        """[n, E] logits of the routers of a mixture, by layer, of all n tokens that were read and are no padding; none where none
        are wanted (`routers.routed`)."""
        self.routing = routing
        """How tokens were routed, where experts were given."""

    def rows(self, row: Tensor, position: Tensor) -> FusedRows | PlainRows:
        """Return the rows that predict the tokens AT `position` [n] of `row` [n]: their hidden states stand at position - 1."""
        before = position - 1
        chosen = self.output[row, before] if self.places is None else self.output[0, self.places[row, before]]
        return PlainRows(chosen) if self.head is None else FusedRows(chosen, self.head)

    def router_logits(self) -> list[Tensor]:
        """Return the routers' logits [m, E], by layer, of these rows' m tokens: one that several rows share counts for each."""
        if self.places is None:
            return list(self.routers)
        mine = self.places[self.places < self.output.shape[1]]
        return [logits[mine] for logits in self.routers]

    def last_logits(self) -> Tensor:
        """Return the logits [B, V] after the last column as the losses form them, without gradient."""
        last = self.output[:, -1]
        return last.detach() if self.head is None else logits_of(last, self.head)


def forward(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    *,
    position_ids: Tensor | None = None,
    cache: Cache | None = None,
    experts: Tensor | None = None,
) -> Forward:
    """Run `model` over right-padded `input_ids` [B, T], through all of its wrappers and hooks.

    Args:
        attention_mask: [B, T], or the segments of a tree (`tree_attention.as_mask`).
        position_ids: [B, T]; needed where `cache` holds something.
        cache: read and written by the model's layers.
        experts: [B, T, L, K], on any device: those that tokens have to go through, as in `router_replay.Routing.given`.

    Raises:
        ModelError: the model reads more tokens than it is given.
    """
    inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
    inputs["use_cache"] = cache is not None
    if position_ids is not None:
        inputs["position_ids"] = position_ids
    if cache is not None:
        inputs[cache_argument(model)] = cache
    plain = why_plain(model) is not None
    if experts is not None and attention_mask is not None and attention_mask.shape == input_ids.shape:
        experts = experts.masked_fill((attention_mask == 0)[..., None, None].to(experts.device), UNKNOWN)
    given = nullcontext() if experts is None else routing(layers_of(model, experts.flatten(0, 1)).to(input_ids.device))
    with routed(model) as routers, given as replayed:
        if plain:
            read = Forward(model(**inputs).logits, None)
        else:
            inner = unwrapped(model)
            with _noting(inner.get_output_embeddings()) as noted:
                logits = model(**inputs).logits
            hidden = noted[-1]
            if in_lockstep(model):  # wrappers wait for the backward pass at what they gave back, not at what was noted inside
                hidden = hidden + logits[..., :0].sum()
            read = Forward(hidden, _describe(inner))
    real = None if attention_mask is None or attention_mask.shape != input_ids.shape else attention_mask.flatten() != 0
    read.routers = routers if real is None else [logits[real] for logits in routers]
    read.routing = replayed
    if read.output.shape[:2] != input_ids.shape:
        raise ModelError(
            f"the model reads {read.output.shape[1]} tokens where it is given {input_ids.shape[1]}",
            fix="use an adapter that adds no tokens, such as LoRA",
        )
    return read


@contextmanager
def overheard(model: nn.Module) -> Iterator[list[Forward]]:
    """Record the forward passes over rows of tokens that `model` makes inside, as `forward` would give them: a loss can then
    reuse a pass that a trainer made for another. Nothing is recorded where the head cannot be fused, or FSDP2 shards the
    model."""
    heard: list[Forward] = []
    if why_plain(model) is not None or sharded_units(model):
        yield heard
        return
    inner = unwrapped(model)
    head = _describe(inner)

    def note(_module: nn.Module, _inputs: Any, output: Any) -> None:  # a hook's return value would replace the output
        heard.append(Forward(output.last_hidden_state, head))

    whole = inner.get_base_model() if hasattr(inner, "get_base_model") else inner  # a peft wrapper has its own `base_model`
    handle = whole.base_model.register_forward_hook(note)
    try:
        yield heard
    finally:
        handle.remove()


def why_plain(model: nn.Module) -> str | None:
    """Return why losses on `model` go through its plain logits, or None where its head can be fused.

    The head is described by its weight, bias, scale and soft cap, and the description is PROVED the first time a model is seen:
    it must give the logits that the model itself gives. An adapter on the head, a quantized head or logits processed in an
    unknown way therefore stay plain, and so does a head that FSDP2 puts away before its loss is formed.

    Raises ModelError when the model never calls its head.
    """
    inner = unwrapped(model)
    lm_head = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None
    apart = _whole_until_backward(model, lm_head)
    if apart is not None:
        return apart
    known: dict[str, Any] = inner.__dict__.setdefault("_composer_plain_head", {})
    if "why" not in known or known["head"] is not lm_head:
        known |= {"head": lm_head, "why": _doubt(model, lm_head)}
    return cast(str | None, known["why"])


@contextmanager
def _noting(lm_head: nn.Module) -> Iterator[list[Tensor]]:
    """Make the head record its input and return one column of it instead of logits; its hooks still run."""
    noted: list[Tensor] = []
    first_column: Callable[..., Tensor] = _FirstColumn.apply

    def note(hidden: Tensor) -> Tensor:
        noted.append(hidden)
        return first_column(hidden, *lm_head.parameters())

    before = lm_head.__dict__.get("forward")
    lm_head.forward = note
    try:
        yield noted
    finally:
        if before is None:
            del lm_head.forward
        else:
            lm_head.forward = before


class _FirstColumn(torch.autograd.Function):
    """[..., 1] of hidden states [..., H], with the parameters of the head in its graph: DDP looks for them there."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *parameters: Tensor) -> Tensor:
        ctx.width, ctx.parameters = hidden.shape[-1], len(parameters)
        return hidden[..., :1].clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return (torch.nn.functional.pad(upstream, (0, ctx.width - 1)), *[None] * ctx.parameters)


def _describe(inner: Any) -> Head:
    """Describe the head's scale and soft cap as the configurations that have one name them: Cohere, Granite, Falcon-H1; Gemma."""
    lm_head = inner.get_output_embeddings()
    config = inner.config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    return Head(lm_head.weight, lm_head.bias, scale, getattr(config, "final_logit_softcapping", None))


def _doubt(model: nn.Module, lm_head: nn.Module | None) -> str | None:
    if not isinstance(lm_head, nn.Linear) or type(lm_head).forward is not nn.Linear.forward:
        return f"its output head is a {torch.typename(lm_head)}, not a plain linear layer"
    if not lm_head.weight.is_floating_point():
        return f"the weight of its output head is {lm_head.weight.dtype}"
    ids = torch.tensor([[0, 1]], device=lm_head.weight.device)
    made: list[Tensor] = []
    hook = lm_head.register_forward_hook(lambda _module, _inputs, output: made.append(output))
    with evaluating(model):
        try:
            logits = model(input_ids=ids, use_cache=False).logits
        finally:
            hook.remove()
        with _noting(lm_head) as noted:
            model(input_ids=ids, use_cache=False)
        if not noted:
            raise ModelError(
                "the model never calls its own output head: its forward may be that of a patched model of which it is a copy",
                fix="copy a model before a trainer patches it, or reload it",
            )
        ours = _describe(unwrapped(model)).logits(noted[-1])
    rounded = any(part.dtype in (torch.bfloat16, torch.float16) for part in (logits, *made))  # accelerate gives float32 back
    tolerance = 2e-2 if rounded else 1e-4
    if ours.shape == logits.shape and torch.allclose(ours.to(logits), logits, rtol=tolerance, atol=tolerance):
        return None
    return "its logits are not a linear layer of its hidden states with a known scale and soft cap"


def _whole_until_backward(model: nn.Module, lm_head: nn.Module | None) -> str | None:
    """Let the weight of a sharded head be whole from a forward pass to the backward pass: losses read it there, and FSDP2 reduces
    its gradient as any other. Returns why it cannot be."""
    units = [unit for unit in sharded_units(model) if any(module is lm_head for module in unit.modules())]
    if not units:
        sharded = lm_head is not None and any(hasattr(parameter, "full_tensor") for parameter in lm_head.parameters())
        return "its output head is sharded by something else than FSDP2" if sharded else None
    if len(units) > 1 or units[0] is lm_head:
        return "FSDP2 shards its output head apart from the whole model"
    units[0].set_reshard_after_forward(False, recurse=False)  # the default of a root
    return None
