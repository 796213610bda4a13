"""The manifest of a version of the weights: one object, created after all objects that it names."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter

from composer_replication.diloco.store import Store
from composer_replication.diloco.wire import Count, DamagedError, parsed
from composer_replication.weights.layout import Shard, StateLayout

MANIFESTS, OBJECTS, WANTS = "manifests", "objects", "wants"
MANIFEST_KEY = re.compile(rf"{MANIFESTS}/([0-9]{{10,18}})")
OBJECT_KEY = re.compile(rf"{OBJECTS}/([0-9]{{10,18}})/[0-9]{{5,9}}-(?:full|patch)-([0-9a-f]{{64}})")
"""Version and SHA-256."""
WANT_KEY = re.compile(rf"{WANTS}/[0-9]{{5,9}}")
_MARK = "composer weights 1"
_Sha256: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class Object:
    """An object of the store."""

    key: str
    sha256: _Sha256
    length: Count
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Full:
    """A whole shard, as a safetensors file."""

    content: _Sha256
    """Checksum of the values."""
    object: Object


@dataclass(frozen=True, slots=True)
class PatchStep:
    """A patch."""

    base: _Sha256
    """Checksum of the values that it changes."""
    content: _Sha256
    """Checksum of the values that it makes."""
    object: Object


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """How to obtain the values of a shard: from a whole copy, or from a local copy, by patches."""

    shard: Shard
    content: _Sha256
    """Checksum of the values."""
    full: Full
    steps: tuple[PatchStep, ...]
    """Patches in order; the last one produces `content`, and one of them applies to `full` unless that equals `content`."""

    def objects(self) -> list[Object]:
        """Return all steps that this shard may take."""
        return [self.full.object, *(step.object for step in self.steps)]

    def after(self, content: str) -> tuple[PatchStep, ...] | None:
        """Return the steps from these values on; None where they do not lead here."""
        if content == self.content:
            return ()
        starts = [index for index, step in enumerate(self.steps) if step.base == content]
        return self.steps[starts[-1] :] if starts else None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version."""

    run: str
    version: int
    entries: tuple[ShardEntry, ...]
    tied: tuple[tuple[str, str], ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The trainer's own, as JSON."""

    @property
    def layout(self) -> StateLayout:
        """Layout of the state dict."""
        return StateLayout(tuple(entry.shard for entry in self.entries), self.tied)


_MANIFEST = TypeAdapter(Manifest)


def versions(store: Store) -> list[int]:
    """Return the available versions, ascending."""
    found = [MANIFEST_KEY.fullmatch(key) for key in store.list(MANIFESTS)]
    return sorted(int(key[1]) for key in found if key is not None)


def manifest_key(version: int) -> str:
    """Return the key of a version's manifest."""
    return f"{MANIFESTS}/{version:010d}"


def object_key(version: int, shard: int, kind: str, sha256: str) -> str:
    """Return the key of an object made for a version; its name ends with its checksum."""
    return f"{OBJECTS}/{version:010d}/{shard:05d}-{kind}-{sha256}"


def write_manifest(manifest: Manifest) -> bytes:
    """Write a line with mark and SHA-256, and JSON.

    Raises:
        TypeError, ValueError: `facts` are not JSON, or hold half a surrogate pair.
    """
    text = json.dumps(asdict(manifest), separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()
    return f"{_MARK} {hashlib.sha256(text).hexdigest()}\n".encode() + text


def read_manifest(data: bytes | None, version: int) -> Manifest:
    """Read the manifest of a version.

    Raises:
        DamagedError: it is missing or not whole, another version's, or names what no publisher puts: its names become paths.
    """
    if data is None:
        raise DamagedError("it is missing")
    head, _, text = data.partition(b"\n")
    if head != f"{_MARK} {hashlib.sha256(text).hexdigest()}".encode():
        raise DamagedError("it does not have the checksum that it names")
    found = parsed(_MANIFEST, text)
    if found.version != version:
        raise DamagedError(f"it is that of version {found.version}")
    for named in (part for entry in found.entries for part in entry.objects()):
        key = OBJECT_KEY.fullmatch(named.key)
        if key is None or key[2] != named.sha256:
            raise DamagedError(f"{named.key!r} is not an object of a publisher with the checksum {named.sha256}")
    names = {name for entry in found.entries for name, _ in entry.shard.tensors}
    if loose := [name for name, owner in found.tied if owner not in names]:
        raise DamagedError(f"{loose[0]!r} is tied to no tensor of it")
    return found
