"""Ways to train in less memory that keep less than weights, gradients, moments and copies in full."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

from pydantic import ValidationError

from composer_replication.config import RunConfig
from composer_replication.loss.forward.models import resolve_precision

_WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("model.lora.rank = 16", {"model.lora.rank": 16, "model.frozen_copies": "device"}),
    ("model.frozen_copies = cpu", {"model.frozen_copies": "cpu"}),
    (
        "model.precision = bfloat16 and optimizer.moments = 8bit",
        {"model.precision": "bfloat16", "optimizer.moments": "8bit"},
    ),
    ("optimizer.offload = true", {"optimizer.offload": True}),
)
"""In the order in which they are named."""


def smaller_states(config: RunConfig) -> str:
    """Return the first two ways that change something and that the rest of the run file allows; with adapters, whose moments are
    small, what makes the frozen weights smaller."""
    if config.model.lora.rank:
        in_full = resolve_precision(config.model) == "float32"
        return "set model.precision = mixed" if in_full else "take a smaller model"
    now = config.model_dump()
    found = [name for name, changes in _WAYS if _differs(now, changes) and _allowed(config, changes)]
    return f"set {', or '.join(found[:2])}" if found else "take a smaller model"


def _differs(now: dict[str, Any], changes: dict[str, Any]) -> bool:
    return any(reduce(operator.getitem, key.split("."), now) != value for key, value in changes.items())


def _allowed(config: RunConfig, changes: dict[str, Any]) -> bool:
    data = config.model_dump(mode="json", exclude_none=True)
    for key, value in changes.items():
        *sections, field = key.split(".")
        reduce(operator.getitem, sections, data)[field] = value
    try:
        RunConfig.model_validate(data)
    except ValidationError:
        return False
    return True
