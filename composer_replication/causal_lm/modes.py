"""Modes of a model: dropout off for a while, and updates of the policy that sampled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from composer_replication.errors import ModelError

__all__ = ["enable_checkpointing", "evaluating", "unwrapped", "update_mode"]


def unwrapped(model: nn.Module) -> Any:
    """The Hugging Face model inside DistributedDataParallel and other wrappers that keep it as `.module`."""
    inner: Any = model
    while not hasattr(inner, "get_output_embeddings") and isinstance(getattr(inner, "module", None), nn.Module):
        inner = inner.module
    return inner


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off inside; every submodule gets its own mode back."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def update_mode(model: nn.Module) -> None:
    """Dropout off, which would make another policy of the one that sampled; gradient checkpointing on where it was enabled."""
    model.eval()
    for module in _checkpointed(model):
        module.training = True  # it checkpoints nothing otherwise; the modules in it stay as they are


def enable_checkpointing(model: nn.Module) -> None:
    """Let `update_mode` switch on gradient checkpointing.

    Raises ModelError where the model has none.
    """
    inner = unwrapped(model)
    enable = getattr(inner, "activation_checkpointing_enable", None) or inner.gradient_checkpointing_enable  # before 5.20
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise ModelError(str(error), fix="set optimizer.gradient_checkpointing = false") from error
    for module in _checkpointed(inner):
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):  # a layer that drops without a module for it
                setattr(module, name, 0.0)


def _checkpointed(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
