"""Bytes of the tensors that are alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from composer_replication.trainer.learning.sharding import local_part


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # the base is unannotated
    """Counts the bytes of the storages that operations make on a device while this is active: `now`, and `peak` since
    `forget_peak`. On a GPU the peak is that of torch's allocator, less what was there before; elsewhere what an operation
    allocates and frees within is not seen.

    Args:
        resized: storages change their size while they are alive, as those of weights that FSDP2 gathers and gives back do.
    """

    def __init__(self, device: torch.device, *, resized: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self._resized = resized
        self.now = self._peak = 0
        self._before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        self._known: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        """By address, the storages that are alive and the bytes that they were last seen to have."""

    @property
    def peak(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) - self._before
        return self._peak

    def forget_peak(self) -> None:
        """Begin to look for a new peak."""
        self._peak = self.now
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.device.type == self.device.type:
                self._count(local_part(value).untyped_storage())
        if self._resized:
            self._look_again()
        self._peak = max(self._peak, self.now)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known[key] = weakref.ref(storage), storage.nbytes()
        self.now += storage.nbytes()
        weakref.finalize(storage, partial(self._freed, key))

    def _look_again(self) -> None:
        for key, (reference, size) in list(self._known.items()):  # a collection of garbage may free some meanwhile
            storage = reference()
            if storage is not None and storage.nbytes() != size:
                self.now += storage.nbytes() - size
                self._known[key] = reference, storage.nbytes()

    def _freed(self, key: int) -> None:
        _, size = self._known.pop(key)
        self.now -= size
