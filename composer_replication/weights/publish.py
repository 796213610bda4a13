"""The side of the trainer: a version is what changed since the last one, and now and then all of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from torch import Tensor

from composer_replication.diloco.codecs.patch import make_patch
from composer_replication.diloco.store import Store
from composer_replication.diloco.wire import DamagedError
from composer_replication.types.errors import ConfigError, ObjectStoreError
from composer_replication.weights.layout import Shard, StateLayout, content_of, flatten, lay_out, write_full
from composer_replication.weights.manifest import (
    OBJECT_KEY,
    OBJECTS,
    WANT_KEY,
    WANTS,
    Full,
    Manifest,
    Object,
    PatchStep,
    ShardEntry,
    manifest_key,
    object_key,
    versions,
    write_manifest,
)
from composer_replication.weights.pull import WeightPuller

_WIDEST = 8
_MOST = 2**31 - 1
"""Bytes a value, and values, that patches are made of."""


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version, and what it took to publish it."""

    version: int
    bytes_up: int
    """Payload of shards and patches."""
    bytes_full: int
    """Size of the tensors in bytes."""
    full: int
    """Shards that were put whole."""
    patched: int
    """Shards that were put as a patch."""
    same: int
    """Shards in which nothing had changed."""
    seconds: float


@dataclass(frozen=True, slots=True)
class _EncodedShard:
    """A version's entry for a shard, and the bytes that are new."""

    entry: ShardEntry
    new: tuple[tuple[Object, bytes], ...]


class WeightPublisher:
    """Publishes versions of a state dict for any number of `WeightPuller`. One publisher at a time.

    A shard is put as a patch against the last version where that is smaller, and whole when no whole copy is left that the last
    `full_every` patches, or patches of a whole copy's length, lead on from. The manifest is created after all that it names: a
    version is there whole or not at all. A new publisher continues from the newest version in the store, which it reads first.

    Args:
        store: a separate folder for each run.
        run: a name that is compared with that of what is there.
        shard_bytes: most in a shard, unless one tensor alone has more.
        full_every: most patches from a whole copy to a version.
        keep: versions that stay; what they need is never removed.
        threads: shards that are put at once.

    Raises:
        ConfigError: a number is too small, or the store has weights of another run.
        ObjectStoreError: the store failed.
    """

    def __init__(
        self,
        store: Store,
        *,
        run: str = "",
        shard_bytes: int = 256 * 2**20,
        full_every: int = 32,
        keep: int = 8,
        threads: int = 4,
    ) -> None:
        for name, value in {"shard_bytes": shard_bytes, "full_every": full_every, "keep": keep, "threads": threads}.items():
            if value < 1:
                raise ConfigError(f"{name} is {value}", fix="1 or more")
        self._store = store
        self._run = run
        self._shard_bytes = shard_bytes
        self._full_every = full_every
        self._keep = keep
        self._threads = threads
        self._last: Manifest | None = None
        self._flats: list[Tensor | None] = []
        self._resume()

    @property
    def version(self) -> int | None:
        """The newest version; None before the first."""
        return None if self._last is None else self._last.version

    def publish(
        self, state: Mapping[str, Tensor], *, version: int | None = None, facts: Mapping[str, Any] | None = None
    ) -> PublishedVersion:
        """Put a version; when this returns, pullers can have it.

        Args:
            state: tensors of any shape and device; those that share memory are put once. Copied before this returns.
            version: its number, higher than the last; the next one when left out.
            facts: JSON that goes with it: the step, the reward, the hash of the run file.

        Raises:
            ConfigError: the number is not higher than the last, an entry is not a dense tensor, or the facts are not JSON.
            ObjectStoreError: someone else published this version, or the store failed; a new publisher takes up what is there.
        """
        start = time.monotonic()
        last = -1 if self._last is None else self._last.version
        number = last + 1 if version is None else version
        if number <= last:
            raise ConfigError(
                f"version {number} is not newer than {last}, which is published", fix=f"publish {last + 1} or later"
            )
        layout = lay_out(state, self._shard_bytes)
        flats = [flatten(state, shard) for shard in layout.shards]
        wanted = [key for key in self._store.list(WANTS) if WANT_KEY.fullmatch(key)]
        with ThreadPoolExecutor(self._threads, "weights") as pool:
            made = list(pool.map(lambda at: self._put(number, at, layout, flats, wanted), range(len(flats))))
        manifest = Manifest(self._run, number, tuple(one.entry for one in made), layout.tied, dict(facts or {}))
        self._announce(manifest)
        self._last, self._flats = manifest, list(flats)
        self._store.delete(*wanted)
        self._collect()
        kinds = [{entry.key.rsplit("-", 2)[1] for entry, _ in one.new} for one in made]
        return PublishedVersion(
            version=number,
            bytes_up=sum(len(data) for one in made for _, data in one.new),
            bytes_full=sum(flat.numel() * flat.dtype.itemsize for flat in flats),
            full=sum("full" in kind for kind in kinds),
            patched=sum("patch" in kind for kind in kinds),
            same=sum(not kind for kind in kinds),
            seconds=time.monotonic() - start,
        )

    def _resume(self) -> None:
        """Take up the newest version. What is damaged in it is put whole the next time."""
        there = versions(self._store)
        if not there:
            return
        puller = WeightPuller(self._store, threads=self._threads)
        try:
            self._last = puller.manifest(there[-1])
        except DamagedError:
            self._last = Manifest(self._run, there[-1], (), ())
        if self._last.run != self._run:
            raise ConfigError(
                f"{self._store.uri} has weights of the run {self._last.run!r}, and this is {self._run!r}",
                fix="name a separate folder for each run",
            )
        self._flats = [None if isinstance(found, DamagedError) else found for found in puller.shards(self._last)]

    def _put(self, version: int, at: int, layout: StateLayout, flats: Sequence[Tensor], wanted: Sequence[str]) -> _EncodedShard:
        made = self._made(version, at, layout.shards[at], flats[at], whole=f"{WANTS}/{at:05d}" in wanted)
        for where, data in made.new:
            self._store.put(where.key, data)
        return made

    def _made(self, version: int, at: int, shard: Shard, flat: Tensor, *, whole: bool) -> _EncodedShard:
        """Return what to upload for a shard: nothing, a patch, a whole copy, or both."""
        content, before = content_of(flat), self._base(at, shard)
        last = before[0] if before is not None else None
        if last is not None and last.content == content and not whole:
            return _EncodedShard(last, ())
        length = shard.size * shard.type.itemsize
        new: list[tuple[Object, bytes]] = []
        steps = last.steps if last is not None else ()
        if before is not None and before[0].content != content:
            steps = ()
            patch = make_patch(before[1], flat) if shard.type.itemsize <= _WIDEST and shard.size <= _MOST else None
            if patch is not None and len(patch) < length:
                new.append(_object(version, at, "patch", patch))
                steps = self._bounded((*before[0].steps, PatchStep(before[0].content, content, new[0][0])), length)
        if whole or last is None or last.full.content not in {content, *(step.base for step in steps)}:
            if any(2 * part.length > length for part, _ in new):
                new, steps = [], ()  # not worth having both
            new.append(_object(version, at, "full", write_full(shard, flat)))
            return _EncodedShard(ShardEntry(shard, content, Full(content, new[-1][0]), steps), tuple(new))
        return _EncodedShard(ShardEntry(shard, content, last.full, steps), tuple(new))

    def _base(self, at: int, shard: Shard) -> tuple[ShardEntry, Tensor] | None:
        """Return the same shard of the last version, where it was of the same tensors and can be read."""
        if self._last is None or at >= len(self._flats):
            return None
        entry, flat = self._last.entries[at], self._flats[at]
        return (entry, flat) if entry.shard == shard and flat is not None else None

    def _bounded(self, steps: tuple[PatchStep, ...], length: int) -> tuple[PatchStep, ...]:
        """Return the last steps that together are no more numerous, and no longer, than a whole copy is worth."""
        taken, total = 0, 0
        for step in reversed(steps[-self._full_every :]):
            total += step.object.length
            if total > length:
                break
            taken += 1
        return steps[len(steps) - taken :]

    def _announce(self, manifest: Manifest) -> None:
        try:
            data = write_manifest(manifest)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the facts of version {manifest.version} are not JSON: {error}", fix="strings and numbers"
            ) from error
        key = manifest_key(manifest.version)
        if not self._store.create(key, data) and self._store.get(key) != data:
            raise ObjectStoreError(
                f"{self._store.where(key)} is another publisher's", fix="let one trainer publish to a folder, and start it again"
            )

    def _collect(self) -> None:
        """Remove old versions and what only they needed; nothing of a version that is not announced yet."""
        there = versions(self._store)
        kept = there[-self._keep :]
        self._store.delete(*(manifest_key(version) for version in there if version < kept[0]))
        puller = WeightPuller(self._store)
        try:
            needed = {entry.key for version in kept for one in puller.manifest(version).entries for entry in one.objects()}
        except DamagedError:
            return  # its needs are unknown: it stays until the version is too old
        found = [OBJECT_KEY.fullmatch(key) for key in self._store.list(OBJECTS)]
        ours = {key[0]: int(key[1]) for key in found if key is not None}
        self._store.delete(*(key for key, version in ours.items() if version <= kept[-1] and key not in needed))


def _object(version: int, at: int, kind: str, data: bytes) -> tuple[Object, bytes]:
    mark = sha256(data).hexdigest()
    return Object(object_key(version, at, kind, mark), mark, len(data)), data
