"""What the tests of a fleet let replicas do in place of training."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from composer_replication.diloco.serverless import this_replica
from composer_replication.types.errors import ConfigError


def _lose() -> None:
    """The process that watches this one is killed, and with it this one: nobody tells the store."""
    os.kill(os.getppid(), signal.SIGKILL)
    wait("")


def report(run: str) -> int:
    return this_replica().rank


def wait(run: str) -> None:
    while True:
        time.sleep(1)


def lose_rank_1_once(run: str) -> int:
    me = this_replica()
    marker = Path(me.rendezvous_uri) / "lost"
    if me.rank == 1 and not marker.exists():
        marker.touch()
        _lose()
    return 10 * me.world_size + me.rank


def lose_rank_1_always(run: str) -> None:
    if this_replica().rank == 1:
        _lose()
    wait(run)


def fail_in_rank_1(run: str) -> None:
    if this_replica().rank == 1:
        raise ValueError("the boat has a hole")
    wait(run)


def refuse(run: str) -> None:
    raise ConfigError("lr is -1", fix="give it a sign")
