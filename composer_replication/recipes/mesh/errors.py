"""What can happen to an actor from outside. The errors can be pickled, and name the actor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from composer_replication.types.errors import BackendError

__all__ = ["ActorDiedError", "ActorStalledError", "WeightsLostError", "in_time"]

T = TypeVar("T")


class ActorDiedError(BackendError):
    """The process of an actor is gone; what it was doing has to be done again."""

    def __init__(self, message: str, *, actor: str = "", fix: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.actor = actor
        """Its name."""


class ActorStalledError(ActorDiedError):
    """An actor does not get on: it counts as dead, and its process has to be ended."""


class WeightsLostError(BackendError):
    """A ticket's weights are gone: their trainer died, or has published twice since."""


async def in_time(work: Awaitable[T], stall_s: float, what: str, *, actor: str) -> T:
    """What `work` gives. Raises ActorStalledError, which says that `what` was so, when it takes longer than `stall_s` seconds."""
    limit = asyncio.timeout(stall_s)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise ActorStalledError(
            f"{what} in {stall_s:g} s",
            actor=actor,
            fix="raise rollout.stall_s if that may take so long, else look at what its process waits for; then --resume",
        ) from None
