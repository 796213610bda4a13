"""Memory that an update takes at most."""

from __future__ import annotations

import resource

import torch


def forget_peak(device: torch.device) -> None:
    """Begin to look for a new peak on a GPU; a process's own cannot be forgotten."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float:
    """Return the most memory in GiB: what tensors took on a GPU since `forget_peak`, or this process since it began."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
