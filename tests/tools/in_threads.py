"""Replicas as threads of one process, and what each of them got."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from composer_replication.types.errors import ComposerError


def vector(size: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def together(*works: Callable[[], Any]) -> list[Any]:
    """What each returns, or the ComposerError that it raised, all of them at once."""
    found: list[Any] = [None] * len(works)

    def run(index: int) -> None:
        try:
            found[index] = works[index]()
        except ComposerError as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
