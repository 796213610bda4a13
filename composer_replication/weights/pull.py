"""The generator's side: pulls the newest complete version, fetching only what it lacks."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from composer_replication.diloco.codecs.patch import apply_patch
from composer_replication.diloco.codecs.raw import to_bytes, to_tensor
from composer_replication.diloco.store import Store
from composer_replication.diloco.wire import DamagedError, reread
from composer_replication.types.errors import ConfigError, ObjectStoreError, StorageError
from composer_replication.weights.layout import content_of, read_full, unflatten
from composer_replication.weights.manifest import (
    WANTS,
    Manifest,
    Object,
    PatchStep,
    ShardEntry,
    manifest_key,
    read_manifest,
    versions,
)

_log = logging.getLogger(__name__)

_OURS = re.compile(r"[0-9a-f]{64}(?:\.[0-9]+\.part)?")
"""Files of the cache: the values of a shard, and some that were being written."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class Pulled:
    """A version of the weights, and the cost of getting it."""

    version: int
    state: Mapping[str, Tensor]
    """On the CPU; views of memory that the puller patches the next version from: copy before changing them."""
    facts: Mapping[str, Any]
    """Facts that the trainer stored with it."""
    newest: int
    """The newest version that was there."""
    bytes_down: int = 0
    """Payload of shards and patches."""
    full: int = 0
    """Shards that came whole."""
    patched: int = 0
    """Shards that were patched."""
    refetched: int = 0
    """Objects that were read again, as they were damaged."""
    seconds: float = 0.0
    apply_seconds: float = 0.0
    """Seconds of these spent unpacking, patching and checking shards; summed over threads."""
    problems: tuple[str, ...] = ()
    """Why newer versions, or shorter ways to this one, could not be taken."""

    @property
    def behind(self) -> int:
        """How many versions the newest one is ahead."""
        return self.newest - self.version


@dataclass(slots=True)
class Tally:
    """Costs of one shard."""

    bytes_down: int = 0
    full: int = 0
    patched: int = 0
    refetched: int = 0
    apply_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class WeightPuller:
    """Keeps the newest version of what a `WeightPublisher` puts.

    Every object is checked against its SHA-256 before it is used, and read up to three times; every shard is checked against
    the SHA-256 of the trainer's values after it was patched. A shard that cannot be patched is taken from its newest whole copy.

    Args:
        store: the publisher's.
        run: take versions of this run only; empty takes any.
        cache: a folder to keep the shards in, so that a new process downloads only what has changed since; none keeps nothing.
            Other files in it are left alone.
        threads: shards that are fetched at once.

    Raises:
        StorageError: the folder cannot be made.
    """

    def __init__(self, store: Store, *, run: str = "", cache: Path | None = None, threads: int = 4) -> None:
        if threads < 1:
            raise ConfigError(f"threads is {threads}", fix="fetch one shard at a time or more")
        self._store = store
        self._run = run
        self._cache = cache
        self._threads = threads
        self._flats: dict[str, Tensor] = {}
        """The values of shards, by checksum."""
        self.held: Pulled | None = None
        """The result of the last pull."""
        if cache is not None:
            try:
                cache.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"{cache} cannot be made: {error}", fix="name a folder that can be written") from error

    def newest(self) -> int | None:
        """Return the newest version that was published; None before the first."""
        return max(versions(self._store), default=None)

    def pull(self) -> Pulled:
        """Return the newest complete version; never an older one than before.

        A version that is damaged in the store is passed over (`problems` say so, `behind` says by how much), and the publisher is
        asked for whole copies.

        Raises:
            ConfigError: the versions are another run's.
            ObjectStoreError: nothing was published, nothing is whole, or the store failed.
        """
        problems: list[str] = []
        tried: set[int] = set()
        while True:
            there = versions(self._store)
            if not there:
                raise ObjectStoreError(f"{self._store.where('')} has no weights yet", fix="wait for the first: wait_for(0)")
            floor = -1 if self.held is None else self.held.version
            left = [version for version in there if version > floor and version not in tried]
            if not left:
                break
            tried.add(left[-1])
            try:
                return self._take(left[-1], there[-1], problems)
            except DamagedError as error:
                problems.append(f"version {left[-1]}: {error}")
        if self.held is None:
            raise ObjectStoreError(
                f"{self._store.where('')} has no complete version: {problems[0]}",
                fix="publish once more: the next version brings whole copies of what is damaged",
            )
        old = self.held
        self.held = Pulled(old.version, old.state, old.facts, max(there[-1], old.version), problems=tuple(problems))
        return self.held

    def wait_for(self, version: int, *, timeout_s: float = 1800.0) -> Pulled:
        """Return this version or a newer one, as soon as one is there and complete.

        Raises:
            ObjectStoreError: none came in time; or as `pull`.
        """
        end, pause = time.monotonic() + timeout_s, _FIRST_PAUSE_S
        told: tuple[str, ...] = ()
        while True:
            newest = self.newest()
            if newest is not None and newest >= version:
                found = self.pull()
                if found.version >= version:
                    return found
                if found.problems != told:
                    told = found.problems
                    _log.warning("%s is damaged, and a newer version is waited for: %s", self._store.where(""), "; ".join(told))
            if time.monotonic() + pause > end:
                raise ObjectStoreError(
                    f"version {version} did not come to {self._store.where('')} within {timeout_s:g} s:"
                    f" the newest is {'none' if newest is None else newest}",
                    fix="see whether the trainer publishes there",
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _take(self, version: int, newest: int, problems: list[str]) -> Pulled:
        """Fetch a version. Raises DamagedError."""
        start = time.monotonic()
        manifest = self.manifest(version)
        tallies = [Tally() for _ in manifest.entries]
        found = self.shards(manifest, tallies)
        failed = {index: one for index, one in enumerate(found) if isinstance(one, DamagedError)}
        if failed:
            if version in versions(self._store):  # or it was removed while it was read
                for index in failed:
                    self._store.create(f"{WANTS}/{index:05d}", b"")
            raise DamagedError("; ".join(f"shard {index}: {error}" for index, error in failed.items()))
        flats = [one for one in found if isinstance(one, Tensor)]
        self._flats = {entry.content: flat for entry, flat in zip(manifest.entries, flats, strict=True)}
        self._forget()
        self.held = Pulled(
            version,
            unflatten(manifest.layout, flats),
            manifest.facts,
            newest,
            bytes_down=sum(tally.bytes_down for tally in tallies),
            full=sum(tally.full for tally in tallies),
            patched=sum(tally.patched for tally in tallies),
            refetched=sum(tally.refetched for tally in tallies),
            seconds=time.monotonic() - start,
            apply_seconds=sum(tally.apply_seconds for tally in tallies),
            problems=(*problems, *(problem for tally in tallies for problem in tally.problems)),
        )
        return self.held

    def manifest(self, version: int) -> Manifest:
        """Read the manifest of a version.

        Raises:
            ConfigError: it is another run's.
            DamagedError: it is not there or not whole.
        """
        manifest = reread(lambda: read_manifest(self._store.get(manifest_key(version)), version))
        if self._run and manifest.run != self._run:
            raise ConfigError(
                f"{self._store.where('')} has weights of the run {manifest.run!r}, and {self._run!r} was asked for",
                fix="name the folder of that run",
            )
        return manifest

    def shards(self, manifest: Manifest, tallies: Sequence[Tally] = ()) -> list[Tensor | DamagedError]:
        """Return the values of each shard of a version, or why there are none."""
        tallies = tallies or [Tally() for _ in manifest.entries]

        def one(entry: ShardEntry, tally: Tally) -> Tensor | DamagedError:
            try:
                return self._shard(entry, tally)
            except DamagedError as error:
                return error

        with ThreadPoolExecutor(self._threads, "weights") as pool:
            return list(pool.map(one, manifest.entries, tallies))

    def _shard(self, entry: ShardEntry, tally: Tally) -> Tensor:
        """Return the values of a shard: unchanged, patched, or from the whole copy. Raises DamagedError."""
        held = self._kept(entry)
        if held is not None:
            try:
                return self._patched(entry, *held, tally)
            except DamagedError as error:
                tally.problems.append(f"the whole copy was taken, as {error}")
        data = self._fetch(entry.full.object, tally)
        flat = _timed(tally, lambda: read_full(entry.shard, data))
        tally.full += 1
        after = entry.after(entry.full.content)
        if after is None:
            raise DamagedError("its patches do not fit its whole copy")
        return self._patched(entry, flat, after, tally)

    def _patched(self, entry: ShardEntry, base: Tensor, steps: tuple[PatchStep, ...], tally: Tally) -> Tensor:
        flat = base
        for step in steps:
            patch = self._fetch(step.object, tally)
            try:
                flat = _timed(tally, lambda flat=flat, patch=patch: apply_patch(flat, patch))  # type: ignore[misc]
            except ValueError as error:
                raise DamagedError(f"{step.object.key} cannot be applied: {error}") from error
        if (steps or entry.content not in self._flats) and _timed(tally, lambda: content_of(flat)) != entry.content:
            raise DamagedError("the values do not have the checksum that the trainer took")
        tally.patched += bool(steps)
        self._keep(entry.content, flat)
        return flat

    def _fetch(self, wanted: Object, tally: Tally) -> bytes:
        """Return the bytes of an object, as they were uploaded. Raises DamagedError."""

        def read() -> bytes:
            data = self._store.get(wanted.key)
            if data is None:
                raise DamagedError(f"{wanted.key} is missing")
            tally.bytes_down += len(data)
            if len(data) != wanted.length or sha256(data).hexdigest() != wanted.sha256:
                tally.refetched += 1
                raise DamagedError(f"{wanted.key} does not have the checksum that the manifest names")
            return data

        return reread(read)

    def _kept(self, entry: ShardEntry) -> tuple[Tensor, tuple[PatchStep, ...]] | None:
        """Return the values at hand, in memory or in the folder, and the steps that continue from them."""
        for content in (entry.content, *(step.base for step in reversed(entry.steps))):
            steps = entry.after(content)
            flat = self._flats.get(content)
            flat = self._cached(entry, content) if flat is None else flat
            if flat is not None and steps is not None and flat.numel() == entry.shard.size and flat.dtype == entry.shard.type:
                return flat, steps
        return None

    def _cached(self, entry: ShardEntry, content: str) -> Tensor | None:
        if self._cache is None:
            return None
        path = self._cache / content
        try:
            flat = to_tensor(path.read_bytes(), entry.shard.type, entry.shard.size)
            if content_of(flat) == content:
                self._flats[content] = flat
                return flat
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            pass  # cut short, or unreadable
        with suppress(OSError):
            path.unlink()
        return None

    def _keep(self, content: str, flat: Tensor) -> None:
        if self._cache is None or content in self._flats or (self._cache / content).exists():
            return
        part = self._cache / f"{content}.{os.getpid()}.part"
        try:
            part.write_bytes(to_bytes(flat))
            part.replace(self._cache / content)
        except OSError as error:
            raise StorageError(f"{self._cache} cannot be written: {error}", fix="free space there") from error

    def _forget(self) -> None:
        """Remove what the newest version does not need from the folder; what others keep there stays."""
        for path in self._cache.iterdir() if self._cache is not None else ():
            if _OURS.fullmatch(path.name) and path.name not in self._flats:
                with suppress(OSError):
                    path.unlink()


def _timed(tally: Tally, work: Callable[[], Any]) -> Any:
    start = time.monotonic()
    found = work()
    tally.apply_seconds += time.monotonic() - start
    return found
