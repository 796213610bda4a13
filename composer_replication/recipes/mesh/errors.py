"""Errors of actors that die or stall. They can be pickled, and name the actor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from composer_replication.types.errors import BackendError

T = TypeVar("T")


class ActorDiedError(BackendError):
    """The process of an actor has ended; its work has to be done again."""

    def __init__(self, message: str, *, actor: str = "", fix: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.actor = actor
        """Its name."""


class ActorStalledError(ActorDiedError):
    """An actor makes no progress: it counts as dead, and its process has to be ended."""


class WeightsLostError(BackendError):
    """The weights of a handle are gone: their trainer died, or has published twice since."""


async def in_time(work: Awaitable[T], stall_s: float, what: str, *, actor: str) -> T:
    """Return the result of `work`, if it comes within `stall_s` seconds.

    Raises ActorStalledError otherwise; its message begins with `what`, a sentence such as "env-0 did not answer".
    """
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
