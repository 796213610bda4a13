"""Transfer of the policy's weights to a server: whole folders, each with a unique name."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError

from composer_replication.types.errors import StorageError

__all__ = ["PREFIX", "PolicySource", "keep_only", "write_whole"]

PREFIX = "composer-"
"""Prefix of the folders' names."""


class PolicySource(Protocol):
    """The policy that a server is to sample from."""

    @property
    def version(self) -> int:
        """Optimizer steps it has taken."""
        ...

    @property
    def is_adapter(self) -> bool:
        """True when `save` writes a LoRA adapter; the server then keeps the base weights it started with."""
        ...

    def save(self, folder: Path) -> None:
        """Write it as `save_pretrained` does."""
        ...

    def logprobs(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> Sequence[float]:
        """Return the log-prob of each of `ids` after `prompt_ids`, at temperature 1."""
        ...


def write_whole(source: PolicySource, target: Path) -> None:
    """Write the policy beside `target`, then rename, so that it is never half written. Raises StorageError."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        source.save(partial)
        partial.rename(target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StorageError(
            f"{target}: the weights for the server could not be written: {error}",
            fix="free disk space, or name another rollout.server_weights",
        ) from error


def keep_only(target: Path) -> None:
    """Remove the other versions beside `target`, and what a killed run left half written there."""
    for path in target.parent.iterdir():
        if path != target and path.name.lstrip(".").startswith(PREFIX):
            shutil.rmtree(path, ignore_errors=True)
