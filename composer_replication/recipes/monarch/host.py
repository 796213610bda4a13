"""The Monarch actor that holds a plain object and runs its methods."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from composer_replication.recipes.mesh.actor_shell import ActorShell, CallResult
from composer_replication.recipes.mesh.processes import Process
from composer_replication.recipes.monarch.library import Actor, Port, endpoint
from composer_replication.types.errors import BackendError

if TYPE_CHECKING:
    from composer_replication.recipes.monarch.weights import MonarchPort


class Host(Actor):
    """A Monarch actor that builds an object in its process and runs the methods that are called.

    Monarch lets an actor do one thing at a time, so every endpoint only starts its work; the answer, a `CallResult`, comes
    when it is done.

    Args:
        modules: additional folders to import the objects' modules from.
    """

    backend: ClassVar[str] = "monarch"
    role: ClassVar[str] = ""
    """Role of the object; empty for any object."""
    endpoints: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Method of the object -> name of its endpoint; methods without an entry are called through `run`."""

    def __init__(self, name: str, modules: Sequence[str]) -> None:
        sys.path += [folder for folder in modules if folder not in sys.path]  # before anything of theirs is unpickled
        self._name = name
        self._held = ActorShell(name)
        self._port: MonarchPort | None = None
        self._running: set[asyncio.Task[CallResult]] = set()

    @endpoint(explicit_response_port=True)
    async def build(self, reply: Port, host: Any, rank: int, env: Mapping[str, str], build: Any, args: tuple[Any, ...]) -> None:
        """Make the object. `host` is this actor as others reach it."""
        from composer_replication.recipes.monarch.processes import settle  # both need Monarch; the class can be read without
        from composer_replication.recipes.monarch.weights import MonarchPort

        settle()
        os.environ.update(env)
        self._port = MonarchPort(host, rank)
        self._begin(reply, self._held.begin(build, self._port, args))

    @endpoint(explicit_response_port=True)
    async def run(self, reply: Port, method: str, args: tuple[Any, ...]) -> None:
        """Call a method of the object."""
        self._run(reply, method, *args)

    @endpoint
    async def process(self) -> Process:
        """Return the identity of this process."""
        return Process.this()

    @endpoint
    async def holds(self, slot: int, stamp: int) -> bool:
        """Return `MonarchPort.holds`."""
        return self._port is not None and self._port.holds(slot, stamp)

    @endpoint
    async def die(self) -> None:
        """End the process at once, whatever it is doing."""
        os._exit(1)

    def _handle_undeliverable_message(self, _message: Any) -> bool:
        """Ignore an answer whose caller is gone; Monarch would count it as a failure of this actor."""
        return True

    def _run(self, reply: Port, method: str, *args: Any) -> None:
        self._begin(reply, self._held.run(method, args))

    def _begin(self, reply: Port, work: Coroutine[Any, Any, CallResult]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(partial(self._answer, reply))

    def _answer(self, reply: Port, task: asyncio.Task[CallResult]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return  # the process is being ended
        error = task.exception()
        try:
            reply.send(task.result() if error is None else _failed("".join(traceback.format_exception(error))))
        except (pickle.PicklingError, TypeError, AttributeError) as unsendable:
            reply.send(_failed(f"{self._name}: its answer cannot be pickled: {unsendable}"))


def _failed(why: str) -> CallResult:
    return CallResult(error=BackendError(why.strip()))
