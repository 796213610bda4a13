"""Options of training a process reward model; without torch, so that a wrong option is reported at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import ValidationError

from composer_replication.config import ModelConfig
from composer_replication.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PrmOptions:
    """Training options.

    Raises:
        ConfigError: a number is out of range.
    """

    epochs: int = 3
    batch_size: int = 16
    """Traces of an optimizer step; its loss is the mean over all their labelled steps."""
    learning_rate: float = 1e-4
    """The highest: reached after a twentieth of the steps, a tenth of it at the end."""
    weight_decay: float = 0.01
    held_out: float = 0.2
    """Share of the tasks that are measured on and never trained on."""
    max_tokens: int = 8192
    """Steps that end further in a trace are left out, as are those beyond the model's own limit."""
    tokens_at_once: int = 16_384
    """Most tokens of one forward pass, padding counted. It changes no gradient."""
    save_every: int = 100
    """Optimizer steps between checkpoints."""
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"epochs": 1, "batch_size": 1, "max_tokens": 1, "tokens_at_once": 1, "save_every": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} is {getattr(self, name)}", fix=f"give at least {low}")
        for name in ("learning_rate", "weight_decay"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"{name} is {getattr(self, name)}", fix="give a finite number of at least 0")
        if not 0.0 < self.held_out < 1.0:
            raise ConfigError(f"held_out is {self.held_out}", fix="give a share of the tasks between 0 and 1")


def model_config(path: str, device: str) -> ModelConfig:
    """Return a model's place and device. Raises ConfigError for an invalid device."""
    try:
        return ModelConfig(path=path, device=device)
    except ValidationError:
        raise ConfigError(f"device is {device!r}", fix="give device as auto, cpu, cuda or cuda:N") from None
