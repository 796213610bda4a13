"""Transfer of the policy's weights to a server: whole folders, each with a unique name."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError

from composer_replication.types.errors import StorageError

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

    def make_room(self) -> None:
        """Give memory of its GPU that no tensor uses back, for a server that shares it."""
        ...

    def save(self, folder: Path) -> None:
        """Write it as `save_pretrained` does."""
        ...

    def logprobs(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> Sequence[float]:
        """Return the log-prob of each of `ids` after `prompt_ids`, at temperature 1."""
        ...


class WeightTransfer(Protocol):
    """A way for the policy's weights to a server's machine."""

    def send(self, policy: PolicySource, label: str) -> Path:
        """Bring the weights there under a new name, and return the folder in which the server finds them.

        Raises:
            ModelError: they did not arrive.
            StorageError: they cannot be written.
            ObjectStoreError: the store failed.
        """
        ...

    def keep_only(self, label: str) -> None:
        """Remove all that was sent before: the server has loaded this one."""
        ...


class SharedFolder:
    """Writes whole weights into a folder that the server sees under the same path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def send(self, policy: PolicySource, label: str) -> Path:
        """Write the policy beside its place, then rename, so that it is never half written."""
        target = self._folder / label
        partial = target.with_name(f".{label}.partial")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            policy.save(partial)
            partial.rename(target)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise StorageError(
                f"{target}: the weights for the server could not be written: {error}",
                fix="free disk space, or name another rollout.server_weights",
            ) from error
        return target

    def keep_only(self, label: str) -> None:
        """Remove the other versions, and what a killed run left half written there."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name != label and path.name.lstrip(".").startswith(PREFIX):
                shutil.rmtree(path, ignore_errors=True)
