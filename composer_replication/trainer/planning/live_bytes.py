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


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # the base is unannotated
    """Counts the bytes of the storages that operations make on a device while this is active: `now`, and `peak` since
    `forget_peak`. On a GPU the peak is that of torch's allocator, less what was there before; elsewhere what an operation
    allocates and frees within is not seen."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.now = self._peak = 0
        self._before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        self._known: set[int] = set()

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
                self._count(value.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self.now += storage.nbytes()
        self._peak = max(self._peak, self.now)
        weakref.finalize(storage, partial(self._freed, key, storage.nbytes()))

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
