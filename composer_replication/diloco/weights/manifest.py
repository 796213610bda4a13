"""What a version of the weights consists of: one object, created after all that it names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from composer_replication.diloco.weights.layout import Layout, Shard
from composer_replication.diloco.wire import DamagedError

__all__ = [
    "MANIFESTS",
    "OBJECTS",
    "WANTS",
    "Entry",
    "Full",
    "Manifest",
    "Object",
    "Source",
    "Step",
    "manifest_key",
    "object_key",
    "read_manifest",
    "versions",
    "write_manifest",
]

MANIFESTS, OBJECTS, WANTS = "manifests", "objects", "wants"
_MARK = "composer weights 1"


class Source(Protocol):
    """Where versions are read from: the store, or a relay."""

    def get(self, key: str) -> bytes | None:
        """The whole object; None where there is none."""

    def list(self, prefix: str = "") -> list[str]:
        """The keys under a folder, sorted."""

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one."""

    def where(self, key: str) -> str:
        """The whole address of an object."""


@dataclass(frozen=True, slots=True)
class Object:
    """An object of the store."""

    key: str
    sha256: str
    length: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Full:
    """A whole shard, as a safetensors file."""

    content: str
    """Checksum of the values."""
    object: Object


@dataclass(frozen=True, slots=True)
class Step:
    """A patch."""

    base: str
    """Checksum of the values that it changes."""
    content: str
    """Checksum of the values that it makes."""
    object: Object


@dataclass(frozen=True, slots=True)
class Entry:
    """How to get at the values of a shard: from a whole copy, or from what one has, by patches."""

    shard: Shard
    content: str
    """Checksum of the values."""
    full: Full
    steps: tuple[Step, ...]
    """In order; the last one makes `content`, one of them changes `full` unless that is it already."""

    def objects(self) -> list[Object]:
        """All that this shard may take."""
        return [self.full.object, *(step.object for step in self.steps)]

    def after(self, content: str) -> tuple[Step, ...] | None:
        """The steps from these values on; None where they do not lead here."""
        if content == self.content:
            return ()
        starts = [index for index, step in enumerate(self.steps) if step.base == content]
        return self.steps[starts[-1] :] if starts else None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version."""

    run: str
    version: int
    entries: tuple[Entry, ...]
    tied: tuple[tuple[str, str], ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The trainer's own, as JSON."""

    @property
    def layout(self) -> Layout:
        """Of the state dict."""
        return Layout(tuple(entry.shard for entry in self.entries), self.tied)


def versions(source: Source) -> list[int]:
    """The versions that can be had, ascending."""
    names = [key.rpartition("/")[2] for key in source.list(MANIFESTS)]
    return sorted(int(name) for name in names if name.isdigit())


def manifest_key(version: int) -> str:
    """Where the manifest of a version is."""
    return f"{MANIFESTS}/{version:010d}"


def object_key(version: int, shard: int, kind: str, sha256: str) -> str:
    """Where an object that was made for a version is; its name ends with its checksum."""
    return f"{OBJECTS}/{version:010d}/{shard:05d}-{kind}-{sha256}"


def write_manifest(manifest: Manifest) -> bytes:
    """A line with mark and SHA-256, and JSON.

    Raises:
        TypeError, ValueError: `facts` are no JSON.
    """
    text = json.dumps(asdict(manifest), separators=(",", ":"), allow_nan=False).encode()
    return f"{_MARK} {hashlib.sha256(text).hexdigest()}\n".encode() + text


def read_manifest(data: bytes | None, version: int) -> Manifest:
    """The manifest of a version.

    Raises:
        DamagedError: it is missing or not whole, or another version's.
    """
    if data is None:
        raise DamagedError("it is missing")
    head, _, text = data.partition(b"\n")
    if head != f"{_MARK} {hashlib.sha256(text).hexdigest()}".encode():
        raise DamagedError("it does not have the checksum that it names")
    try:
        facts = json.loads(text)
        found = Manifest(
            run=str(facts["run"]),
            version=int(facts["version"]),
            entries=tuple(_entry(part) for part in facts["entries"]),
            tied=tuple((str(name), str(owner)) for name, owner in facts["tied"]),
            facts=dict(facts["facts"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"it is of another kind: {error!r}") from error
    if found.version != version:
        raise DamagedError(f"it is that of version {found.version}")
    return found


def _entry(facts: Mapping[str, Any]) -> Entry:
    tensors = tuple((str(name), tuple(int(length) for length in shape)) for name, shape in facts["shard"]["tensors"])
    return Entry(
        shard=Shard(facts["shard"]["dtype"], tensors),
        content=facts["content"],
        full=Full(facts["full"]["content"], Object(**facts["full"]["object"])),
        steps=tuple(Step(step["base"], step["content"], Object(**step["object"])) for step in facts["steps"]),
    )
