"""`Mesh` on Monarch: every actor in one process, or in several that train as one."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from composer_replication.recipes.mesh.actor_shell import CallResult, opened
from composer_replication.recipes.mesh.errors import ActorDiedError
from composer_replication.recipes.mesh.processes import Process, is_gone
from composer_replication.recipes.mesh.protocol import Build, Handle
from composer_replication.recipes.monarch.actors import actor_for
from composer_replication.recipes.monarch.host import Host
from composer_replication.recipes.monarch.library import (
    ActorError,
    HostMesh,
    MeshFailure,
    SPMDActor,
    SupervisionError,
    get_rdma_backend,
    hooks,
    this_host,
)
from composer_replication.recipes.monarch.processes import answer, at_home
from composer_replication.types.errors import BackendError, ConfigError

LOOPBACK = "127.0.0.1"
_log = logging.getLogger(__name__)
_OTHERS_S = 30.0
"""How long the other ranks may still take after one of them has failed."""
_ECHO_S, _ECHO_LOOKS = 1.0, 20
"""How long, and how often, a death is looked for behind the error of a rank that lived on."""


@dataclass(frozen=True, slots=True, eq=False)
class MonarchHandle:
    """A `Handle` of an actor: one process, or the ranks of a group, of which the first one answers."""

    name: str
    processes: tuple[Process, ...]
    """By rank."""
    hosts: Any
    """The Monarch actors, one a rank."""
    number: int
    """Its number in the mesh."""
    actor: type[Host]
    """Class of the Monarch actors."""

    @property
    def pid(self) -> int:
        """Number of the process that answers."""
        return self.processes[0].pid

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method on every rank, and return the first rank's answer; see `Handle.call`.

        When some ranks fail and others are then kept waiting, the whole group is ended: it would never meet again.
        """
        return (await self.call_all(method, *args))[0]

    async def call_all(self, method: str, *args: Any) -> list[Any]:
        """Call a method on every rank, and return the answers by rank."""
        own = self.actor.endpoints.get(method)
        order, arguments = (own, args) if own else ("run", (method, args))
        return await at_home(_ask(self, order, [arguments] * len(self.processes)))


class MonarchMesh:
    """A `Mesh` on the machine it is made on, or on `hosts`.

    Args:
        ranks: how many processes an actor of that name is; one unless given. They find the environment of `torchrun`
            (RANK, WORLD_SIZE, MASTER_ADDR...) when they build their object, and every call goes to all of them.
        hosts: Monarch's machines (`monarch.actor.attach_to_workers`); actors are put on them in turn, and a replaced one on
            the machine it was on. None: this machine.
        master: address of the first machine, at which the ranks of a group meet.

    Raises:
        ConfigError: a number of ranks is below 1.
        MissingExtraError: torchmonarch is not installed (when this module is imported).
    """

    def __init__(self, *, ranks: Mapping[str, int] | None = None, hosts: HostMesh | None = None, master: str = LOOPBACK) -> None:
        for name, count in (ranks or {}).items():
            if count < 1:
                raise ConfigError(f"ranks[{name!r}] is {count}", fix="give at least 1")
        _survive_deaths()
        self._ranks = dict(ranks or {})
        self._machines = [this_host()] if hosts is None else [hosts.slice(hosts=i) for i in range(hosts.sizes["hosts"])]
        self._next = itertools.cycle(range(len(self._machines)))
        self._master = master
        self._spawned: dict[int, _Spawned] = {}
        self._numbers = itertools.count()
        self._ending: set[asyncio.Future[None]] = set()
        self._closed = False

    @property
    def transport(self) -> str:
        """How weights travel: `ibverbs` (RDMA) or `tcp`."""
        return str(get_rdma_backend())

    async def spawn(self, name: str, build: Build, *args: Any) -> MonarchHandle:
        """Start an actor; see `Mesh.spawn`."""
        return await self._start(name, next(self._next), build, args)

    async def replace(self, handle: Handle) -> MonarchHandle:
        """Replace an actor; see `Mesh.replace`. A failed call may be repeated."""
        assert isinstance(handle, MonarchHandle)
        old = self._spawned.get(handle.number)
        if old is None:
            raise BackendError(f"this mesh has no such actor {handle.name}, or has replaced it already")
        killed = [
            is_gone(process, kill=True) for process in old.processes
        ]  # Monarch asks first, and waits 20 s for one that is stopped
        ending = asyncio.ensure_future(old.end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        if not all(killed):  # of one that has died Monarch may hear much later
            await ending
        successor = await self._start(handle.name, old.machine, old.build, old.args)
        del self._spawned[handle.number]
        return successor

    async def close(self) -> None:
        """End every actor; see `Mesh.close`."""
        spawned, self._spawned = list(self._spawned.values()), {}
        self._closed = True
        await asyncio.gather(*self._ending, *(one.end() for one in spawned))

    async def _start(self, name: str, machine: int, build: Build, args: tuple[Any, ...]) -> MonarchHandle:
        if self._closed:
            raise BackendError(f"{name} cannot be spawned: the mesh is closed")
        count, actor = self._ranks.get(name, 1), actor_for(build)
        procs = self._machines[machine].spawn_procs(per_host={"ranks": count}, name=_plain(name))
        async with AsyncExitStack() as undo:
            spawned = _Spawned(procs, machine, build, args)
            undo.push_async_callback(spawned.end)
            try:
                env = {} if count == 1 else await self._meeting(procs)
                hosts = procs.spawn(_plain(name), actor, name, sys.path)
                processes = (await hosts.process.call()).values()
            except (SupervisionError, ActorError) as error:
                raise BackendError(f"no process for {name} could be started: {error}") from error
            handle = MonarchHandle(name, tuple(processes), hosts, next(self._numbers), actor)
            spawned.processes = handle.processes
            await _ask(handle, "build", [(hosts.slice(ranks=0), rank, env, build, args) for rank in range(count)])
            self._spawned[handle.number] = spawned
            undo.pop_all()
        return handle

    async def _meeting(self, procs: Any) -> dict[str, str]:
        """Give the processes the environment of torchrun, and return the other variables that they need."""
        spmd = procs.spawn("torchrun", SPMDActor)
        _, port = await spmd.slice(ranks=0).get_host_port.call_one(None)
        await spmd.setup_env.call(self._master, port)
        return {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")} if self._master == LOOPBACK else {}


@dataclass(slots=True)
class _Spawned:
    """The facts needed to end an actor and to start it again."""

    procs: Any
    machine: int
    build: Build
    args: tuple[Any, ...]
    processes: tuple[Process, ...] = ()

    async def end(self) -> None:
        """End its processes if they still run. Monarch asks first and kills those that do not exit."""
        try:
            await self.procs.stop()
        except (SupervisionError, ActorError) as error:
            _log.debug("processes that were gone were to be ended: %s", error)


async def _ask(handle: MonarchHandle, order: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call an endpoint on every rank, each with its own arguments, and return the answers.

    Raises:
        ActorDiedError: one of the processes is gone.
        ComposerError: one of them raised it; of several that did, the first by rank.
    """
    asked = [asyncio.ensure_future(_ask_one(handle, rank, order, given)) for rank, given in enumerate(arguments)]
    try:
        _, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            _, waiting = await asyncio.wait(waiting, timeout=_OTHERS_S)
        failed = [error for one in asked if one.done() and (error := one.exception())]
        failure = await _failure(handle, failed) if failed else None
        if waiting:  # only now: whom this ends must not be taken for the cause
            handle.hosts.die.broadcast()
            await asyncio.wait(waiting)
    finally:
        for one in asked:
            one.cancel()
    for one in asked:
        one.exception()  # known to be of no interest
    if failure is not None:
        raise failure
    return [one.result() for one in asked]


async def _failure(handle: MonarchHandle, failed: Sequence[BaseException]) -> BaseException:
    """Return the error to raise for failed ranks: a death where there is one, else the error of the first."""
    deaths = [error for error in failed if isinstance(error, ActorDiedError)]
    return deaths[0] if deaths else await _death_behind(handle) or failed[0]


async def _death_behind(handle: MonarchHandle) -> ActorDiedError | None:
    """Return the death of a rank that may have caused the error of another one, or None.

    When a rank dies after it has answered, the connections of the others break a moment before the kernel reports the death:
    their errors are only an echo of it.
    """
    for _ in range(_ECHO_LOOKS if len(handle.processes) > 1 else 0):
        for process in handle.processes:
            if is_gone(process):
                return ActorDiedError(f"a process of {handle.name} has ended", actor=handle.name)
        await asyncio.sleep(_ECHO_S / _ECHO_LOOKS)
    return None


async def _ask_one(handle: MonarchHandle, rank: int, order: str, arguments: tuple[Any, ...]) -> Any:
    host = handle.hosts.slice(ranks=rank)
    try:
        reply: CallResult = await answer(handle.processes[rank], getattr(host, order).call_one(*arguments))
    except ProcessLookupError as error:
        raise ActorDiedError(f"the process of {handle.name} is gone: {error}", actor=handle.name) from error
    except ActorError as error:
        raise BackendError(f"{handle.name} could not read what it was sent: {error}") from error
    return opened(reply)


def _survive_deaths() -> None:
    """Let this process outlive its actors; Monarch's own hook ends it. A hook set by other code stays."""
    if hooks.unhandled_fault_hook.__module__.partition(".")[0] == "monarch":
        hooks.unhandled_fault_hook = _note


def _note(failure: MeshFailure) -> None:
    _log.info("%s", failure.report())


def _plain(name: str) -> str:
    """Return a name that Monarch accepts."""
    return re.sub(r"\W", "_", name)
