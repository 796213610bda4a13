"""Memory of a device during updates: its peak, what to do without it, and its return to other processes."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from composer_replication.config import RunConfig
from composer_replication.loss.forward.models import resolve_checkpointing
from composer_replication.trainer.planning.smaller_states import smaller_states
from composer_replication.types.errors import ModelError


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
