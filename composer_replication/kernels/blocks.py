"""Element-wise work on [rows, V] buffers: by Triton kernels on a GPU, block by block on a CPU.

On a GPU memory is the limit, and a kernel that reads a row two or three times replaces dozens of passes. On a CPU a block is one
row or a few: its passes find their data in the cache, and blocks are shared out to threads that each work alone. Handing every
single operation to all threads instead costs a barrier per operation, which on a busy machine takes longer than the operation.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial

import torch
from torch import Tensor

_BLOCK_BYTES = 1 << 20


def by_triton(logits: Tensor) -> bool:
    """Return whether Triton kernels handle `logits`: float32 on CUDA, or on a CPU where TRITON_INTERPRET=1 makes Triton run them
    as Python, for tests. Returns False, with one warning, where triton is not installed."""
    wanted = logits.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return wanted and logits.dtype == torch.float32 and _triton_is_there()


@cache
def _triton_is_there() -> bool:
    found = importlib.util.find_spec("triton") is not None
    if not found:
        slow_path = "each row in dozens of passes by PyTorch instead of one kernel; pip install triton"
        warnings.warn(f"triton is not installed: the fused losses work on {slow_path}", stacklevel=2)
    return found


def for_blocks(logits: Tensor, work: Callable[[slice], None]) -> None:
    """Call `work`, without gradient, with slices that together cover the rows of `logits` [n, V]; all at once off the CPU."""
    rows, vocabulary = logits.shape
    if logits.device.type != "cpu":
        work(slice(0, rows))
        return
    step = max(1, _BLOCK_BYTES // (vocabulary * logits.element_size()))
    slices = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
    threads = min(torch.get_num_threads(), len(slices))
    if threads < 2 or logits.numel() < 1 << 16:
        for block in slices:
            work(block)
        return
    pool = _pool(os.getpid(), torch.get_num_threads())
    for done in [pool.submit(_some, work, slices[i::threads]) for i in range(threads)]:
        done.result()


@torch.no_grad()
def _some(work: Callable[[slice], None], slices: list[slice]) -> None:
    for block in slices:
        work(block)


@lru_cache(maxsize=1)
def _pool(_process: int, threads: int) -> ThreadPoolExecutor:
    """Make threads in which torch's operations use no further threads. The number is a property of the calling thread, but
    setting it also sets the default of threads to come, which is therefore restored."""
    pool = ThreadPoolExecutor(threads, "composer-blocks", partial(torch.set_num_threads, 1))
    all_there = threading.Barrier(threads)
    for started in [pool.submit(all_there.wait) for _ in range(threads)]:
        started.result()
    torch.set_num_threads(threads)
    return pool
