"""Memory of a device during updates: its peak, what to do without it, and its return to other processes."""

from __future__ import annotations

import gc
import operator
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from pydantic import ValidationError

from composer_replication.config import RunConfig
from composer_replication.loss.forward.models import resolve_checkpointing, resolve_precision
from composer_replication.types.errors import ModelError

_WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("model.lora.rank = 16", {"model.lora.rank": 16, "model.frozen_copies": "device"}),
    ("model.frozen_copies = cpu", {"model.frozen_copies": "cpu"}),
    (
        "model.precision = bfloat16 and optimizer.moments = 8bit",
        {"model.precision": "bfloat16", "optimizer.moments": "8bit"},
    ),
    ("optimizer.offload = true", {"optimizer.offload": True}),
)
"""Ways to keep less than weights, gradients, moments and copies in full, in the order in which they are named."""


def forget_peak(device: torch.device) -> None:
    """Begin to look for a new peak on a GPU; a process's own cannot be forgotten."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float:
    """Return the most memory in GiB: what tensors took on a GPU since `forget_peak`, or this process since it began."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def give_memory_back() -> None:
    """Give the memory of freed tensors, which torch keeps for later ones, back to the GPU, so that other processes can have it.
    Do nothing without a GPU."""
    if torch.cuda.is_available():
        gc.collect()  # tensors in reference cycles are not freed yet
        torch.cuda.empty_cache()


@contextmanager
def saying_what_to_lower(doing: str, config: RunConfig) -> Iterator[None]:
    """Say what to change when the device runs out of memory inside, while the learner was `doing` something. Raises
    ModelError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError(f"the device ran out of memory while {doing}: {error}", fix=_what_to_lower(config)) from error


def _what_to_lower(config: RunConfig) -> str:
    """Return fields to change: first what a run can go on with."""
    tokens, longest = config.optimizer.micro_batch_tokens, config.rollout.context_tokens
    can_go_on = [] if resolve_checkpointing(config) else ["set optimizer.gradient_checkpointing = true"]
    if tokens > longest:
        can_go_on.append(f"lower optimizer.micro_batch_tokens (now {tokens})")
    if can_go_on:
        return f"{', '.join(can_go_on)}, then go on with --resume"
    return f"in a new run, {smaller_states(config)}, or lower rollout.context_tokens (now {longest})"


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
