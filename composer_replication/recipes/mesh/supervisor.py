"""The actors of a run and their supervision: an actor that dies or stalls is replaced, even while it is idle."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_replication.recipes.mesh.errors import ActorDiedError, ActorStalledError, in_time
from composer_replication.recipes.mesh.protocol import Build, Handle, Mesh
from composer_replication.types.errors import BackendError

MOST_DEATHS = 5
"""Deaths of one actor without a step in between, after which the run stops: something kills it."""


@dataclass(slots=True)
class Supervisor:
    """The actors of a run and their present handles.

    Raises (all methods that wait):
        BackendError: an actor dies again and again, or cannot be built any more.
    """

    mesh: Mesh
    on_replaced: Callable[[ActorDiedError, float], None]
    """Called after a replacement with the death, and the seconds from its notice until the successor was built."""
    stall_s: float
    """Seconds after which an actor that does not answer counts as dead: its process is stopped, or a call does not return."""
    handles: dict[str, Handle] = field(default_factory=dict)
    replaced: Counter[str] = field(default_factory=Counter)
    """Replacements by name."""
    gone: set[str] = field(default_factory=set)
    """Names of actors that are dead and not yet replaced."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _deaths: Counter[str] = field(default_factory=Counter)
    _stalled: dict[str, ActorStalledError] = field(default_factory=dict)
    """Actors that were reported as stalled and are not yet replaced."""
    _cpu: dict[tuple[str, int], float] = field(default_factory=dict)

    async def hire(self, actors: Mapping[str, tuple[Build, Sequence[Any]]]) -> None:
        """Start actors at the same time."""
        async with asyncio.TaskGroup() as group:
            for name, (build, args) in actors.items():
                group.create_task(self._hire(name, build, args))

    async def look_after(self) -> None:
        """Replace actors that die or stall, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in self.handles:
                group.create_task(self._watch(name))

    async def get(self, name: str) -> Handle:
        """Return the living actor of this name; wait while it is being replaced."""
        async with self._changed:
            await self._changed.wait_for(lambda: name not in self.gone)
            return self.handles[name]

    async def call(self, handle: Handle, method: str, *args: Any) -> Any:
        """Call an actor as `Handle.call` does, for at most `stall_s` seconds. Raises ActorStalledError after that."""
        return await in_time(
            handle.call(method, *args), self.stall_s, f"{handle.name} did not finish `{method}`", actor=handle.name
        )

    async def successor(self, dead: ActorDiedError, used: Mapping[str, Handle]) -> None:
        """Wait until the actor that a call found dead or stalled is replaced. Raises the error when it names none of `used`."""
        if dead.actor not in used:
            raise dead
        async with self._changed:
            if isinstance(dead, ActorStalledError) and self.handles[dead.actor] is used[dead.actor]:
                self._stalled[dead.actor] = dead
                self._changed.notify_all()
            await self._changed.wait_for(lambda: self.handles[dead.actor] is not used[dead.actor])

    def progress(self) -> None:
        """Note that a step was taken, and forget the deaths before it."""
        self._deaths.clear()

    async def cpu_s(self) -> float:
        """Return the CPU-seconds of all actors, those of dead ones as last reported."""
        await asyncio.gather(*(self._ask_cpu(name) for name in self.handles))
        return sum(self._cpu.values())

    # --- inside -----------------------------------------------------------------------------------------------------------

    async def _hire(self, name: str, build: Build, args: Sequence[Any]) -> None:
        self.handles[name] = await in_time(self.mesh.spawn(name, build, *args), self.stall_s, f"{name} was not built", actor=name)

    async def _watch(self, name: str) -> None:
        while True:
            try:
                await self._until_dead(self.handles[name])
            except ActorDiedError as dead:
                await self._replace(name, dead)

    async def _until_dead(self, handle: Handle) -> None:
        """Wait until the actor dies, does not answer or is reported as stalled. Raises ActorDiedError then."""
        ways = [asyncio.ensure_future(way) for way in (handle.call("watch"), self._feel(handle), self._told(handle.name))]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        await done.pop()

    async def _feel(self, handle: Handle) -> None:
        while True:
            await asyncio.sleep(self.stall_s / 4)
            await in_time(handle.call("pulse"), self.stall_s, f"{handle.name} did not answer", actor=handle.name)

    async def _told(self, name: str) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: name in self._stalled)
            raise self._stalled[name]

    async def _replace(self, name: str, dead: ActorDiedError) -> None:
        began = time.monotonic()
        self.gone.add(name)
        while True:
            self._deaths[name] += 1
            if self._deaths[name] > MOST_DEATHS:
                raise BackendError(
                    f"{name} died {self._deaths[name]} times without a step in between: {dead.message}",
                    fix=dead.fix or "see whether memory runs out on its machine; then continue with --resume",
                ) from dead
            try:
                replacing = self.mesh.replace(self.handles[name])
                successor = await in_time(replacing, self.stall_s, f"{name} was not built again", actor=name)
                break
            except ActorDiedError as error:
                dead = error
        async with self._changed:
            self.handles[name] = successor
            self.replaced[name] += 1
            self.gone.remove(name)
            self._stalled.pop(name, None)
            self._changed.notify_all()
        self.on_replaced(dead, time.monotonic() - began)

    async def _ask_cpu(self, name: str) -> None:
        try:
            asked = self.handles[name].call_all("cpu_s")
            self._cpu[name, self.replaced[name]] = sum(await in_time(asked, self.stall_s, "", actor=name))
        except ActorDiedError:
            return  # what it had spent when it was last asked stays counted
