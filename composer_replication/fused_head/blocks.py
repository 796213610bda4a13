"""Element-wise work on [rows, V] buffers, block by block.

On a CPU a block is one row or a few: its passes find their data in the cache, and blocks are shared out to threads that each work
alone. Handing every single operation to all threads instead costs a barrier per operation, which on a busy machine takes longer
than the operation.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial

import torch
from torch import Tensor

__all__ = ["for_blocks"]

_BLOCK_BYTES = 1 << 20


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
    """Threads in which torch's operations use no further threads. The number is a property of the calling thread, but setting it
    also sets the default of threads to come, which is therefore put back."""
    pool = ThreadPoolExecutor(threads, "composer-blocks", partial(torch.set_num_threads, 1))
    all_there = threading.Barrier(threads)
    for started in [pool.submit(all_there.wait) for _ in range(threads)]:
        started.result()
    torch.set_num_threads(threads)
    return pool
