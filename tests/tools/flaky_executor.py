"""Replicas as real processes, behind a service that fails when it is told to."""

from __future__ import annotations

from collections import Counter

from composer_replication.diloco.serverless import LocalProcessExecutor
from composer_replication.diloco.serverless.base import Sight
from composer_replication.types.errors import BackendError


class FlakyExecutor(LocalProcessExecutor):
    """Real processes behind a service that fails when it is told to."""

    poll_interval_s = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.silent_looks = 0
        """How many of the next looks fail."""
        self.deaf: Counter[str] = Counter()
        """By the identity of a replica, how often it cannot be ended."""
        self.ends_none = False

    def _look(self, identity: str) -> Sight:
        if self.silent_looks:
            self.silent_looks -= 1
            raise BackendError("the service failed (503)", fix="try again")
        return super()._look(identity)

    def _stop(self, identity: str) -> None:
        if self.ends_none or self.deaf[identity] > 0:
            self.deaf.subtract([identity])
            raise BackendError(f"the service cannot end {identity}", fix="try again")
        super()._stop(identity)
