"""Transfer of the policy's weights to a server through an object store: only what has changed travels."""

from __future__ import annotations

import time
from pathlib import Path

from safetensors.torch import load_file

from composer_replication.diloco.store import Store
from composer_replication.rollouts.serving.weights import PolicySource, SharedFolder
from composer_replication.types.errors import ModelError
from composer_replication.weights.follow import folder_of, send_files
from composer_replication.weights.publish import WeightPublisher

__all__ = ["ThroughStore"]

_POLL_S = 0.2


class ThroughStore:
    """Publishes what has changed in the weights; `composer weights follow`, on the server's machine, writes them into a folder.

    Args:
        store: the run's own folder in an object store.
        scratch: a folder for one copy of the weights, as `save_pretrained` writes them.
        run: the run's name; versions of another run in the store are refused.
        timeout_s: most seconds until a version is written on the server's machine.

    Raises:
        ConfigError: the store has versions of another run.
        ObjectStoreError: the store failed.
    """

    def __init__(self, store: Store, scratch: Path, *, run: str, timeout_s: float) -> None:
        self._store, self._scratch, self._timeout_s = store, SharedFolder(scratch), timeout_s
        self._publisher = WeightPublisher(store, run=run)

    def send(self, policy: PolicySource, label: str) -> Path:
        """Publish the weights and wait until they are written on the server's machine."""
        written = self._scratch.send(policy, label)
        state = {name: tensor for file in sorted(written.glob("*.safetensors")) for name, tensor in load_file(file).items()}
        published = self._publisher.publish(state, facts=send_files(self._store, written, label))
        self._scratch.keep_only("")
        end = time.monotonic() + self._timeout_s
        while (folder := folder_of(self._store, published.version)) is None:
            if time.monotonic() > end:
                raise ModelError(
                    f"nobody wrote version {published.version} of the weights from {self._store.where('')} within "
                    f"{self._timeout_s:g} s",
                    fix="run `composer weights follow` on the server's machine, and look at what it says",
                )
            time.sleep(_POLL_S)
        return folder

    def keep_only(self, label: str) -> None:
        """Leave the cleaning to the follower and the publisher, who keep the newest versions."""
        del label
