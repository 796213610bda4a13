"""Follower of a run's weights: writes each version from a store into a folder for the server, and acknowledges it there."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from composer_replication.diloco.store import Store
from composer_replication.diloco.wire import DamagedError, reread
from composer_replication.types.errors import ConfigError, ObjectStoreError, StorageError
from composer_replication.weights.pull import Pulled, WeightPuller

_WRITTEN = "written"
"""Folder in the store with one acknowledgement: where the newest version was written."""
_FOLLOWER = "follower"
"""Object in the store: the follower that began last. Any other one has to stop."""
_FILES = "files"
"""Folder in the store: configuration and tokenizer, by their SHA-256."""
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_TENSORS = (".safetensors", ".safetensors.index.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LABEL = re.compile(r"composer-[0-9a-f]{8}-[0-9]+-[0-9]+")
"""Names that a serving engine gives its versions."""
_FULL, _ADAPTER = "model.safetensors", "adapter_model.safetensors"
_FOREVER_S = float("inf")


def send_files(store: Store, folder: Path, label: str, sent: set[str]) -> dict[str, Any]:
    """Put what a follower needs besides the tensors into the store, and return the facts of a version that name it.

    Args:
        folder: as `save_pretrained` writes it.
        label: the name of the folder to be.
        sent: digests of the files that are in the store; those sent now are added.
    """
    files = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and _FILE.fullmatch(path.name) and not path.name.endswith(_TENSORS):
            data = path.read_bytes()
            digest = files[path.name] = sha256(data).hexdigest()
            if digest not in sent:
                store.put(f"{_FILES}/{digest}", data)
                sent.add(digest)
    return {"label": label, "weights": _ADAPTER if (folder / _ADAPTER).is_file() else _FULL, "files": files}


def folder_of(store: Store, version: int, label: str) -> Path | None:
    """Return where a follower has written a version; None when none has.

    Raises:
        ObjectStoreError: the acknowledgement names no folder of this version.
    """
    said = store.get(_key(version))
    if said is None:
        return None
    try:
        folder = Path(json.loads(said)["folder"])
    except (ValueError, KeyError, TypeError):
        folder = Path()
    if not folder.is_absolute() or folder.name != label:
        raise ObjectStoreError(f"{store.where(_key(version))} does not name a folder {label}", fix="remove it, and follow again")
    return folder


def follow(store: Store, into: Path, *, run: str, versions: int | None = None) -> Iterator[Pulled]:
    """Write every new version into the folder `into/RUN`, under its label, and yield it once it is there.

    Versions that come while one is written are passed over for the newest. A follower that was killed begins with the newest
    version, from what its cache still holds. The folder then has up to two versions and the cache: three copies of the weights.

    Args:
        store: where the trainer publishes.
        into: on this machine; the server must be able to read it under the same path.
        run: the run that the versions have to be of.
        versions: how many to write; None goes on until it is interrupted.

    Raises:
        ConfigError: the versions are another run's, or were not published for a server; another follower writes into the folder;
            or one that began later follows the store.
        ObjectStoreError: the store failed, or a file in it is damaged.
        StorageError: the folder cannot be written.
    """
    folder = into.absolute() / run
    with _alone(folder):
        puller = WeightPuller(store, run=run, cache=folder / ".cache")
        name = f"{socket.gethostname()}:{folder} ({uuid.uuid4().hex[:8]})".encode()
        store.put(_FOLLOWER, name)
        done, newest = 0, -1
        while versions is None or done < versions:
            pulled = puller.wait_for(newest + 1, timeout_s=_FOREVER_S)
            if (other := store.get(_FOLLOWER)) != name:
                who = "nobody" if other is None else other.decode(errors="replace")
                raise ConfigError(f"{store.where('')} is followed by {who} now", fix="keep one follower for each server")
            target = _write(store, pulled, folder)
            store.put(_key(pulled.version), json.dumps({"folder": str(target)}).encode())
            done, newest = done + 1, pulled.version
            store.delete(*(key for key in store.list(_WRITTEN) if key < _key(newest)))
            yield pulled


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises ConfigError when another follower does, and StorageError when it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error}", fix="name a folder that can be written") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another follower writes into {folder}", fix="stop it, or name another --into") from error
        yield


def _key(version: int) -> str:
    return f"{_WRITTEN}/{version:012d}"


def _write(store: Store, pulled: Pulled, folder: Path) -> Path:
    """Write a version beside its place, then rename; remove those before that no server reads any more."""
    label, weights, files = _checked(pulled.facts)
    target, partial = folder / label, folder / f".{label}.partial"
    try:
        _remove_old(folder)
        if not target.exists():
            partial.mkdir(parents=True)
            save_file(dict(pulled.state), partial / weights, metadata={"format": "pt"})
            for name, digest in files.items():
                (partial / name).write_bytes(_file(store, digest))
            partial.rename(target)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{target}: the weights could not be written: {error}", fix="see whether the disk is full") from error
    return target


def _file(store: Store, digest: str) -> bytes:
    """Return a file by its SHA-256. Raises ObjectStoreError when the store has another one, or none, three times."""
    key = f"{_FILES}/{digest}"

    def read() -> bytes:
        data = store.get(key)
        if data is None or sha256(data).hexdigest() != digest:
            raise DamagedError(f"{store.where(key)} is missing or damaged")
        return data

    try:
        return reread(read)
    except DamagedError as error:
        raise ObjectStoreError(str(error), fix="continue the run with --resume: it writes the file again") from error


def _remove_old(folder: Path) -> None:
    """Remove what a killed follower left half written, and all versions but the newest, which the server may still read."""
    ours = [path for path in folder.iterdir() if _LABEL.fullmatch(path.name.removeprefix(".").removesuffix(".partial"))]
    whole = sorted((path for path in ours if not path.name.startswith(".")), key=lambda path: path.stat().st_mtime)
    for path in {*ours} - {*whole[-1:]}:
        shutil.rmtree(path)


def _checked(facts: Mapping[str, Any]) -> tuple[str, str, Mapping[str, str]]:
    """Return label, file of the tensors and other files, all of them plain names: the store's word is not taken for a path."""
    label, weights, files = facts.get("label"), facts.get("weights"), facts.get("files")
    if (
        not isinstance(label, str)
        or not _LABEL.fullmatch(label)
        or weights not in (_FULL, _ADAPTER)
        or not isinstance(files, dict)
        or not all(_FILE.fullmatch(name) and not name.endswith(_TENSORS) for name in files)
        or not all(isinstance(digest, str) and _SHA256.fullmatch(digest) for digest in files.values())
    ):
        raise ConfigError(
            "these weights were not published for a server", fix="follow the store of a run with rollout.server_store"
        )
    return label, weights, files
