"""States in the store, by round: the bytes, then a manifest with their checksum. Without its manifest a state is not there."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from composer_replication.diloco.store import Store
from composer_replication.diloco.trees import Tree, pack, unpack
from composer_replication.types.errors import CheckpointError

_ROUND = re.compile(r"[0-9]{8,18}")
_FIX = "delete this state; the one before it is used then"


@dataclass(frozen=True, slots=True)
class SavedStates:
    """The states under one folder of a store, `folder/ROUND/manifest.json` and a file beside each that is named by its hash."""

    store: Store
    folder: str

    def rounds(self) -> list[int]:
        """Return the rounds with a complete state, ascending."""
        keys = [key.rsplit("/", 2) for key in self.store.list(self.folder)]
        return sorted(int(key[-2]) for key in keys if key[-1] == "manifest.json" and _ROUND.fullmatch(key[-2]))

    def write(self, round: int, tree: Tree) -> bool:  # noqa: A002 - the term of the field
        """Save the state after `round` rounds, unless there is one. Whether this call wrote it.

        Raises:
            ObjectStoreError: the store refuses.
        """
        if self.store.exists(self._manifest(round)):
            return False
        data = pack(tree)
        digest = hashlib.sha256(data).hexdigest()
        name = f"{digest[:16]}.safetensors"
        self.store.put(f"{self.folder}/{round:08d}/{name}", data)
        manifest = {"round": round, "file": name, "bytes": len(data), "sha256": digest}
        return self.store.create(self._manifest(round), json.dumps(manifest).encode())

    def read(self, round: int) -> Tree:  # noqa: A002
        """Read the state after `round` rounds, which is one of `rounds()`; tensors are on the CPU.

        Raises:
            CheckpointError: it is not what was saved.
            ObjectStoreError: the store refuses.
        """
        where = self.store.where(self._manifest(round))
        try:
            manifest = json.loads(self.store.get(self._manifest(round)) or b"")
            name, digest = str(manifest["file"]), str(manifest["sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{where} is damaged or gone", fix=_FIX) from error
        key = f"{self.folder}/{round:08d}/{name}"
        data = self.store.get(key)
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            raise CheckpointError(f"{self.store.where(key)} is missing or not what was saved", fix=_FIX)
        return unpack(data, self.store.where(key))

    def forget_before(self, round: int) -> None:  # noqa: A002
        """Delete the states of earlier rounds: manifests first, so that none is there in part."""
        keys = [(key, key.rsplit("/", 2)[-2]) for key in self.store.list(self.folder)]
        old = [key for key, part in keys if _ROUND.fullmatch(part) and int(part) < round]
        self.store.delete(*sorted(old, key=lambda key: not key.endswith("manifest.json")))

    def _manifest(self, round: int) -> str:  # noqa: A002
        return f"{self.folder}/{round:08d}/manifest.json"
