"""Replicas that take turns at every request, in an order and with deaths that a test chooses: a run is a function of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import obstore
from obstore.store import MemoryStore

from composer_replication.diloco.store import Store
from composer_replication.types.errors import ComposerError


class KilledError(ComposerError):
    """A replica was killed before a request."""


class GatedStore(Store):
    """A store over memory whose every request waits for its turn."""

    def __init__(self, backend: MemoryStore, gate: Callable[[str, str], None]) -> None:
        super().__init__(backend, "memory://gated")
        self._gate = gate

    def put(self, key, data):
        self._gate("put", key)
        super().put(key, data)

    def create(self, key, data):
        self._gate("create", key)
        return super().create(key, data)

    def get(self, key):
        self._gate("get", key)
        return super().get(key)

    def get_range(self, key, start, length):
        self._gate("get_range", key)
        return super().get_range(key, start, length)

    def get_many(self, asked):
        return [self.get_range(*one) for one in asked]

    def list(self, prefix=""):
        self._gate("list", prefix)
        return super().list(prefix)

    def delete(self, *keys):
        for key in keys:
            self._gate("delete", key)
            super().delete(key)


class Replica:
    """One of those who take turns: its clock is its own."""

    def __init__(self, crew: Crew, index: int, work: Callable[[Replica], Any]) -> None:
        self.crew, self.index = crew, index
        self.store = GatedStore(crew.backend, self._gate)
        self.time = 1000.0 * index
        self.asleep = 0.0
        """Seconds that it wants to sleep; 0 while it waits for a request."""
        self.doomed = False
        self.found: Any = None
        self._work = work
        self._turn = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.asleep = seconds
        self._wait()
        self.asleep = 0.0

    def let_go(self) -> None:
        """Run up to its next request."""
        self._turn.release()

    def _gate(self, _deed: str, _key: str) -> None:
        self._wait()

    def _wait(self) -> None:
        if self.doomed:  # what it would still clean up
            raise KilledError("killed")
        self.crew.arrived.release()
        self._turn.acquire()
        if self.doomed:
            raise KilledError("killed")

    def _run(self) -> None:
        try:
            self._wait()
            self.found = self._work(self)
        except ComposerError as error:
            self.found = error
        finally:
            self.crew.over.add(self)
            self.crew.arrived.release()


class Crew:
    """Runs replicas, one request at a time.

    Args:
        works: what each of them does.
    """

    def __init__(self, works: Sequence[Callable[[Replica], Any]]) -> None:
        self.backend = MemoryStore()
        self.arrived = threading.Semaphore(0)
        self.over: set[Replica] = set()
        self.replicas: list[Replica] = []
        for work in works:
            self.start(work)

    def start(self, work: Callable[[Replica], Any]) -> Replica:
        replica = Replica(self, len(self.replicas), work)
        self.replicas.append(replica)
        self.arrived.acquire()
        return replica

    @property
    def live(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica not in self.over]

    def step(self, replica: Replica, *, seconds: float | None = None, kill: bool = False) -> None:
        """One request of a replica; a sleeper sleeps `seconds`, by default as long as it wants."""
        if replica.asleep:
            replica.time += replica.asleep if seconds is None else seconds
        replica.doomed = kill
        replica.let_go()
        self.arrived.acquire()

    def damage(self, key: str, at: int) -> None:
        """Turn a bit of an object."""
        data = bytearray(obstore.get(self.backend, key).bytes().to_bytes())
        data[at % len(data)] ^= 1
        obstore.put(self.backend, key, bytes(data))

    def written(self) -> list[str]:
        return sorted(str(found["path"]) for page in obstore.list(self.backend) for found in page)
