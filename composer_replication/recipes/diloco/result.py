"""The policy that a job ends with: rank 0 puts it into the store, and the process that started the job fetches it."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from composer_replication.config import is_name
from composer_replication.diloco.store import Store
from composer_replication.types.errors import ObjectStoreError, StorageError

_NOT_OF_THE_POLICY = ("learner.pt", "loop.json", "MANIFEST.sha256")
"""Files of a checkpoint that only a resumed run reads."""

_ANEW = "go on with --resume: rank 0 puts it there again"


def put_policy(store: Store, arm: str, checkpoint: Path) -> None:
    """Put the policy of an arm's last checkpoint where `fetch_policy` looks. Raises ObjectStoreError."""
    digests = {}
    for path in sorted(checkpoint.iterdir()):
        if path.is_file() and path.name not in _NOT_OF_THE_POLICY:
            data = path.read_bytes()
            digests[path.name] = hashlib.sha256(data).hexdigest()
            store.put(f"policy/{arm}/{path.name}", data)
    told = {"folder": checkpoint.name, "sha256": digests}
    store.put(f"policy/{arm}/manifest.json", json.dumps(told).encode())  # last: what it names is there


def fetch_policy(store: Store, arm: str, folder: Path) -> Path:
    """Write the policy to `folder/ARM/step_NNNNN`, whole or not at all, in the format of `save_pretrained`.

    Raises:
        ObjectStoreError: the store cannot be read, or what it has is missing or not what was put.
        StorageError: the disk refuses.
    """
    found = store.get(f"policy/{arm}/manifest.json")
    if found is None:
        raise ObjectStoreError(f"{store.where(f'policy/{arm}')} has no policy", fix="go on with --resume: rank 0 puts it there")
    step, digests = _read(found, store.where(f"policy/{arm}/manifest.json"))
    target = folder / arm / step
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, digest in digests.items():
            data = store.get(f"policy/{arm}/{name}")
            if data is None or hashlib.sha256(data).hexdigest() != digest:
                where = store.where(f"policy/{arm}/{name}")
                raise ObjectStoreError(f"{where}: missing or not what was put", fix=_ANEW)
            (partial / name).write_bytes(data)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    except OSError as error:
        raise StorageError(
            f"{target}: the policy could not be written: {error}", fix="free disk space and go on with --resume"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _read(manifest: bytes, where: str) -> tuple[str, dict[str, str]]:
    """Return the folder's name and the files' digests.

    Raises ObjectStoreError, also for a name that leads out of the folder: write access to the bucket must not become write access
    to other folders of this machine.
    """
    try:
        told = json.loads(manifest)
        step, digests = str(told["folder"]), {str(name): str(digest) for name, digest in told["sha256"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ObjectStoreError(f"{where}: not what was put", fix=_ANEW) from error
    if not all(is_name(name) for name in (step, *digests)):
        raise ObjectStoreError(f"{where}: names what is no file of a policy", fix=_ANEW)
    return step, digests
