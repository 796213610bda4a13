"""The load-balancing loss of a mixture of experts, which keeps its router from choosing the same few.

Of a layer with E experts it is `E * sum_e f_e P_e`, where f_e is how often expert e is chosen for a token and P_e the mean of its
probability (Switch Transformer, Fedus et al. 2021, arXiv:2101.03961, equation 4). With k experts for each token it is k where
they are in balance, as in transformers' `load_balancing_loss_func`. The loss of a model is the mean over its layers, so that no
layer makes up for another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from composer_replication.loss.forward.modes import unwrapped
from composer_replication.types.errors import ModelError

_WEIGHT = "_composer_router_balance"
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
"""Names in configurations for the number of experts that a token goes through."""


def set_router_balance(model: nn.Module, weight: float) -> None:
    """Let `compose_loss` add the load-balancing loss of `model`, times `weight`, from now on. Raises ModelError where the model
    has no router that transformers knows of."""
    if weight > 0 and not _routers(model):
        raise ModelError(
            f"{type(unwrapped(model)).__name__} has no router whose choices transformers records",
            fix="set model.router_balance = 0; a mixture that balances its experts without a loss needs none",
        )
    if weight > 0:
        _chosen(model)
    unwrapped(model).__dict__[_WEIGHT] = weight


def router_balance(model: nn.Module) -> float:
    """Return the weight that `set_router_balance` has given `model`, else 0."""
    return float(unwrapped(model).__dict__.get(_WEIGHT, 0.0))


def balance_loss(logits: Sequence[Tensor], chosen: int) -> Tensor:
    """Return the loss (0-dim, float32 or wider) of routers' logits, [n, E] for each layer, whose tokens go through `chosen`
    experts."""
    losses = []
    for layer in logits:
        wide = layer.to(torch.promote_types(layer.dtype, torch.float32))
        probabilities = wide.softmax(-1)
        times = torch.zeros_like(probabilities).scatter(-1, probabilities.topk(chosen, -1).indices, 1.0)
        losses.append(layer.shape[-1] * (times.mean(0) * probabilities.mean(0)).sum())
    return torch.stack(losses).mean()


def balance_of(model: nn.Module, logits: Sequence[Tensor]) -> Tensor:
    """Return the loss of what `routed` recorded of `model`."""
    return balance_loss(logits, _chosen(model))


@contextmanager
def routed(model: nn.Module) -> Iterator[list[Tensor]]:
    """Record the routers' logits [n, E] in the order of the layers, where a model has a weight for them and gradients are wanted.

    Activation checkpointing computes layers again after the end of the context, and nothing is recorded a second time.
    """
    found: list[Tensor] = []
    if router_balance(model) == 0 or not torch.is_grad_enabled():
        yield found
        return

    def note(index: int, output: Any) -> None:
        logits = output[index] if isinstance(output, tuple) else output
        found.append(logits.reshape(-1, logits.shape[-1]))

    handles = [
        module.register_forward_hook(lambda _module, _inputs, output, index=index: note(index, output))
        for module, index in _routers(model)
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _routers(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """Return the routers of a model, and which of what they give the logits are."""
    recorders = [
        recorder
        for module in unwrapped(model).modules()
        for recorder in [(getattr(module, "_can_record_outputs", None) or {}).get("router_logits")]
        if recorder is not None
    ]
    if not recorders:
        return []
    kind, index = getattr(recorders[0], "target_class", recorders[0]), getattr(recorders[0], "index", 0)
    return [(module, index) for module in unwrapped(model).modules() if isinstance(module, kind)]


def _chosen(model: nn.Module) -> int:
    """Return the number of experts that a token goes through. Raises ModelError where the configuration does not say."""
    config = unwrapped(model).config.get_text_config(decoder=True)
    found = next((getattr(config, name) for name in _CHOSEN if getattr(config, name, None)), None)
    if found is None:
        raise ModelError(
            f"the configuration of {type(unwrapped(model)).__name__} does not say how many experts a token goes through",
            fix="set model.router_balance = 0",
        )
    return int(found)
