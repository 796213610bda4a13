"""What can happen to an actor from outside. Both errors can be pickled, and name the actor."""

from __future__ import annotations

from composer_replication.errors import BackendError

__all__ = ["ActorDiedError", "WeightsLostError"]


class ActorDiedError(BackendError):
    """The process of an actor is gone; what it was doing has to be done again."""

    def __init__(self, message: str, *, actor: str = "", fix: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.actor = actor
        """Its name."""


class WeightsLostError(BackendError):
    """A ticket's weights are gone: their trainer died, or has published twice since."""
