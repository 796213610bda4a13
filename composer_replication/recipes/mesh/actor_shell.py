"""The object of an actor in its process: it is built once, its methods run there, and errors for the user travel as values."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from composer_replication.recipes.mesh.protocol import Build, Port
from composer_replication.types.errors import BackendError, ComposerError


@dataclass(frozen=True, slots=True)
class CallResult:
    """The outcome of a call; it can be pickled if the value can."""

    value: Any = None
    error: ComposerError | None = None


class ActorShell:
    """One object, and the thread that runs those of its methods that are not `async`.

    A `ComposerError` of the object is a value of the reply. Any other exception is a bug, and is raised: the backend makes a
    `BackendError` with its traceback of it.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self._object: Any = None

    async def begin(self, build: Build, port: Port, args: Sequence[Any]) -> CallResult:
        """Build the object, in its thread."""
        try:
            self._object = await self._in_thread(build, port, *args)
        except ComposerError as error:
            return CallResult(error=_fit_to_travel(error))
        return CallResult()

    async def run(self, method: str, args: Sequence[Any]) -> CallResult:
        """Run one of the object's methods."""
        found = getattr(self._object, method)
        try:
            return CallResult(await (found(*args) if inspect.iscoroutinefunction(found) else self._in_thread(found, *args)))
        except ComposerError as error:
            return CallResult(error=_fit_to_travel(error))

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


def opened(reply: CallResult) -> Any:
    """Return the value of a call. Raises its error."""
    if reply.error is not None:
        raise reply.error
    return reply.value


def _fit_to_travel(error: ComposerError) -> ComposerError:
    try:
        pickle.loads(pickle.dumps(error))
    except (pickle.PicklingError, TypeError, AttributeError):
        return BackendError(str(error), fix=error.fix)
    return error
