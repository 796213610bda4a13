"""The actors of a run and their supervision: whoever dies is replaced at once, also while it is idle."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_replication.errors import BackendError
from composer_replication.recipes.mesh.errors import ActorDiedError
from composer_replication.recipes.mesh.protocol import Build, Handle, Mesh

__all__ = ["MOST_DEATHS", "Crew"]

MOST_DEATHS = 5
"""Deaths of one actor without a step in between, after which the run stops: something kills it."""


@dataclass(slots=True)
class Crew:
    """Hires actors and keeps their present handles.

    Raises (all methods that wait):
        BackendError: an actor dies again and again, or cannot be built any more.
    """

    mesh: Mesh
    on_replaced: Callable[[str, float], None]
    """Told an actor's name and the seconds from the notice of its death until its successor was built."""
    handles: dict[str, Handle] = field(default_factory=dict)
    replaced: Counter[str] = field(default_factory=Counter)
    """Replacements by name."""
    gone: set[str] = field(default_factory=set)
    """Who is dead and not yet replaced."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _deaths: Counter[str] = field(default_factory=Counter)
    _cpu: dict[tuple[str, int], float] = field(default_factory=dict)

    async def hire(self, actors: Mapping[str, tuple[Build, Sequence[Any]]]) -> None:
        """Start actors at the same time."""
        async with asyncio.TaskGroup() as group:
            for name, (build, args) in actors.items():
                group.create_task(self._hire(name, build, args))

    async def look_after(self) -> None:
        """Replace who dies, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in self.handles:
                group.create_task(self._watch(name))

    async def get(self, name: str) -> Handle:
        """The living actor of this name; waits while it is being replaced."""
        async with self._changed:
            await self._changed.wait_for(lambda: name not in self.gone)
            return self.handles[name]

    async def successor(self, dead: ActorDiedError, used: Mapping[str, Handle]) -> None:
        """Wait until the actor that a call has found dead is not the one that was `used` any more. Raises the error when it
        names none of them."""
        if dead.actor not in used:
            raise dead
        async with self._changed:
            await self._changed.wait_for(lambda: self.handles[dead.actor] is not used[dead.actor])

    def progress(self) -> None:
        """A step was taken: whoever died until now has been worth replacing."""
        self._deaths.clear()

    async def cpu_s(self) -> float:
        """CPU-seconds of all actors, the dead ones as far as they were asked."""
        await asyncio.gather(*(self._ask_cpu(name) for name in self.handles))
        return sum(self._cpu.values())

    # --- inside -----------------------------------------------------------------------------------------------------------

    async def _hire(self, name: str, build: Build, args: Sequence[Any]) -> None:
        self.handles[name] = await self.mesh.spawn(name, build, *args)

    async def _watch(self, name: str) -> None:
        while True:
            try:
                await self.handles[name].call("watch")
            except ActorDiedError as dead:
                await self._replace(name, dead)

    async def _replace(self, name: str, dead: ActorDiedError) -> None:
        began = time.monotonic()
        self.gone.add(name)
        while True:
            self._deaths[name] += 1
            if self._deaths[name] > MOST_DEATHS:
                raise BackendError(
                    f"{name} died {self._deaths[name]} times without a step in between: {dead.message}",
                    fix="see whether memory runs out on its machine; then continue with --resume",
                ) from dead
            try:
                successor = await self.mesh.replace(self.handles[name])
                break
            except ActorDiedError as error:
                dead = error
        async with self._changed:
            self.handles[name] = successor
            self.replaced[name] += 1
            self.gone.remove(name)
            self._changed.notify_all()
        self.on_replaced(name, time.monotonic() - began)

    async def _ask_cpu(self, name: str) -> None:
        try:
            self._cpu[name, self.replaced[name]] = sum(await self.handles[name].call_all("cpu_s"))
        except ActorDiedError:
            return  # what it had spent when it was last asked stays counted
