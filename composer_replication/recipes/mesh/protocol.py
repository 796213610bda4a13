"""The interface of a backend of the mesh: processes that hold one object each, calls to them, and transfer of weights.

An actor is a plain object. Its process builds it by `build(port, *args)`; its methods may be `async`, and run in the process's
event loop; the others run in a separate thread, one at a time. Async methods may overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class WeightHandle:
    """The place of published weights; it is small and can be passed through any process."""

    version: int
    """Optimizer steps behind them."""
    publisher: str
    """Name of the actor that published them."""
    where: Any
    """The backend's own."""


class Port(Protocol):
    """An actor's channel for weights. They travel from process to process, never through the driver."""

    async def publish(self, name: str, version: int, weights: Mapping[str, Tensor]) -> WeightHandle:
        """Copy the weights of actor `name` to where others can fetch them.

        The present and the previous publication of a process can be fetched; older ones are let go.
        """
        ...

    async def fetch(self, ticket: WeightHandle) -> dict[str, Tensor]:
        """Return the weights on the CPU as they were when they were published: same names, shapes and types.

        Raises:
            WeightsLostError: they are gone, or their publisher is.
        """
        ...


Build = Callable[..., Any]
"""`build(port, *args)` makes an actor's object; pickled by reference, so a class or function of a module."""


class Handle(Protocol):
    """One actor. A handle may be passed to another actor, which can make calls through it."""

    @property
    def name(self) -> str:
        """As it was spawned, e.g. `generator-0`."""
        ...

    @property
    def pid(self) -> int:
        """Number of its process."""
        ...

    async def call(self, method: str, *args: Any) -> Any:
        """Run a method of the object and return what it returns.

        Raises:
            ActorDiedError: the process is gone, or dies before it answers. Never raised for another actor's death: an actor
                that meets one while it works for this call raises it, and then `actor` is that one's name.
            ComposerError: what the method raised, as itself.
            BackendError: the method raised anything else; the message ends with its traceback.
        """
        ...

    async def call_all(self, method: str, *args: Any) -> list[Any]:
        """Call every process of the actor, and return the answers by rank; `call` returns that of the first."""
        ...


class Mesh(Protocol):
    """A backend that runs actors."""

    async def spawn(self, name: str, build: Build, *args: Any) -> Handle:
        """Start a process that holds `build(port, *args)`, and return when it is built. Raises as `Handle.call`."""
        ...

    async def replace(self, handle: Handle) -> Handle:
        """Build the actor again in a new process. The old process is ended first if it still runs."""
        ...

    async def close(self) -> None:
        """End every process that was started. Closing twice is harmless."""
        ...
