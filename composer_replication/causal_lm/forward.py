"""Forward passes of a Hugging Face causal LM for losses: up to its head where the head can be fused, else to its logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from composer_replication.causal_lm.modes import evaluating, unwrapped
from composer_replication.causal_lm.rows import FusedRows, PlainRows
from composer_replication.fused_head import Head

__all__ = ["Forward", "forward", "sequence_logprobs", "why_plain"]


class Forward:
    """One forward pass over `input_ids` [B, T]."""

    def __init__(self, output: Tensor, head: Head | None) -> None:
        self.output = output
        """[B, T, H] what the head reads, or [B, T, V] logits without a head."""
        self.head = head

    def rows(self, row: Tensor, position: Tensor) -> FusedRows | PlainRows:
        """What predicts the tokens AT `position` [n] of `row` [n]: it stands at position - 1."""
        chosen = self.output[row, position - 1]
        return PlainRows(chosen) if self.head is None else FusedRows(chosen, self.head)


def forward(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None, **options: Any) -> Forward:
    """Run `model` over right-padded `input_ids` [B, T], through all of its wrappers and hooks.

    `options` go to the model (`position_ids`, `past_key_values`, `use_cache`).
    """
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False, **options}
    if why_plain(model) is not None:
        return Forward(model(**inputs).logits, None)
    inner = unwrapped(model)
    with _noting(inner.get_output_embeddings()) as noted:
        model(**inputs)
    return Forward(noted[-1], _describe(inner))


def sequence_logprobs(
    model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None, response_mask: Tensor, temperature: float = 1.0
) -> Tensor:
    """Per-token log-probs [B, T] of the tokens in `response_mask` [B, T] (non-zero = wanted), 0 elsewhere; `sum(-1)` scores
    a sequence.

    A value "at position p" belongs to the token AT p, and is read from the logits at p - 1. Differentiable; call it under
    `torch.no_grad()` for a reference policy. Only the wanted rows go through the head. Raises ValueError when position 0 is
    wanted: it has no predecessor and therefore no log-prob.
    """
    wanted = response_mask != 0
    if wanted[:, :1].any():
        raise ValueError("response_mask selects position 0, which has no predecessor and therefore no log-prob")
    row, position = wanted.nonzero(as_tuple=True)
    scores = forward(model, input_ids, attention_mask).rows(row, position).logprobs(input_ids[row, position], temperature)
    return scores.logprobs.new_zeros(input_ids.shape).index_put((row, position), scores.logprobs)


def why_plain(model: nn.Module) -> str | None:
    """Why losses on `model` go through its plain logits, or None where its head can be fused.

    The head is described by its weight, bias, scale and soft cap, and the description is PROVED the first time a model is seen:
    it must give the logits that the model itself gives. An adapter on the head, a quantized head or logits processed in an
    unknown way therefore stay plain.
    """
    inner = unwrapped(model)
    known: dict[str, str | None] = inner.__dict__.setdefault("_composer_plain_head", {})
    if "why" not in known:
        known["why"] = _doubt(model)
    return known["why"]


@contextmanager
def _noting(lm_head: nn.Module) -> Iterator[list[Tensor]]:
    """Inside, the head notes its input and gives one column of it back instead of logits; its hooks still run."""
    noted: list[Tensor] = []

    def note(hidden: Tensor) -> Tensor:
        noted.append(hidden)
        return hidden[..., :1]

    before = lm_head.__dict__.get("forward")
    lm_head.forward = note
    try:
        yield noted
    finally:
        if before is None:
            del lm_head.forward
        else:
            lm_head.forward = before


def _describe(inner: Any) -> Head:
    """The head in the words of the configurations that know a scale or a soft cap: Cohere, Granite, Falcon-H1; Gemma."""
    lm_head = inner.get_output_embeddings()
    config = inner.config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    return Head(_whole(lm_head.weight), _whole(lm_head.bias), scale, getattr(config, "final_logit_softcapping", None))


def _whole(parameter: Any) -> Any:
    """A parameter that FSDP2 keeps sharded is gathered, differentiably."""
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def _doubt(model: nn.Module) -> str | None:
    inner = unwrapped(model)
    lm_head = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None
    if not isinstance(lm_head, nn.Linear) or type(lm_head).forward is not nn.Linear.forward:
        return f"its output head is a {type(lm_head).__name__}, not a plain linear layer"
    if not lm_head.weight.is_floating_point():
        return f"the weight of its output head is {lm_head.weight.dtype}"
    ids = torch.tensor([[0, 1]], device=lm_head.weight.device)
    with torch.no_grad(), evaluating(model):
        logits = model(input_ids=ids, use_cache=False).logits
        with _noting(lm_head) as noted:
            model(input_ids=ids, use_cache=False)
        ours = _describe(inner).logits(noted[-1])
    tolerance = 2e-2 if logits.dtype in (torch.bfloat16, torch.float16) else 1e-4
    if ours.shape == logits.shape and torch.allclose(ours.to(logits), logits, rtol=tolerance, atol=tolerance):
        return None
    return "its logits are not a linear layer of its hidden states with a known scale and soft cap"
