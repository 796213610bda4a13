"""Transfer of the policy's weights to a server through an object store: only what has changed travels."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from safetensors.torch import load_file

from composer_replication.diloco.store import Store
from composer_replication.rollouts.serving.weights import PolicySource, SharedFolder
from composer_replication.types.errors import ModelError
from composer_replication.weights.follow import folder_of, send_files
from composer_replication.weights.publish import WeightPublisher

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class ThroughStore:
    """A `WeightTransfer` through an object store. `composer weights follow`, on the server's machine, writes what arrives.

    Args:
        store: the run's own folder in an object store.
        scratch: a folder for one copy of the weights, as `save_pretrained` writes them.
        run: the run's name; versions of another run in the store are refused.
        timeout_s: most seconds from publishing a version until it is written on the server's machine.

    Raises:
        ConfigError: the store has versions of another run.
        ObjectStoreError: the store failed.
    """

    def __init__(self, store: Store, scratch: Path, *, run: str, timeout_s: float) -> None:
        self._store, self._scratch, self._timeout_s = store, SharedFolder(scratch), timeout_s
        self._publisher = WeightPublisher(store, run=run)
        self._sent: set[str] = set()

    def send(self, policy: PolicySource, label: str) -> Path:
        """Publish the weights and wait until they are written on the server's machine.

        Raises:
            ModelError: nobody wrote them in time.
            StorageError: the scratch folder cannot be written.
            ObjectStoreError: the store failed.
        """
        try:
            written = self._scratch.send(policy, label)
            state = {name: tensor for file in sorted(written.glob("*.safetensors")) for name, tensor in load_file(file).items()}
            facts = send_files(self._store, written, label, self._sent)
            version = self._publisher.publish(state, facts=facts).version
        finally:
            self._scratch.keep_only("")
        return self._written(version, label)

    def keep_only(self, label: str) -> None:
        """Leave the cleaning to the follower and the publisher, who keep the newest versions."""
        del label

    def _written(self, version: int, label: str) -> Path:
        """Wait for the follower. Gives up when the program ends, which waits for the thread that this runs in."""
        end, pause = time.monotonic() + self._timeout_s, _FIRST_PAUSE_S
        while (folder := folder_of(self._store, version, label)) is None:
            if time.monotonic() > end or not threading.main_thread().is_alive():
                raise ModelError(
                    f"nobody wrote version {version} of the weights from {self._store.where('')} within {self._timeout_s:g} s",
                    fix="run `composer weights follow` on the server's machine, and look at what it says",
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return folder
