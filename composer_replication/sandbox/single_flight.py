"""A thread-safe LRU cache with single-flight computation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlightCache(Generic[K, V]):
    """At most `most` values by key. Safe to use from threads: of equal questions at once one is answered, the others wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, V] = {}
        self._making: set[K] = set()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: K, value: V) -> None:
        """Keep `value`, and evict the least recently used one when there are too many."""
        with self._changed:
            self._values.pop(key, None)
            self._values[key] = value
            while len(self._values) > self._most:
                del self._values[next(iter(self._values))]

    def get_or_make(self, key: K, make: Callable[[], tuple[V, bool]]) -> tuple[V, bool]:
        """Return the value kept under `key` and True, or that of `make` and False; `make` also says whether to keep its value."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or key not in self._making)
            if key in self._values:
                self._values[key] = value = self._values.pop(key)
                return value, True
            self._making.add(key)
        try:
            value, kept = make()
            if kept:
                self.put(key, value)
        finally:
            with self._changed:
                self._making.remove(key)
                self._changed.notify_all()
        return value, False
