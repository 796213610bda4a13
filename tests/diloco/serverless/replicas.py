"""Functions that the tests launch as replicas, by name."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from composer_replication.diloco.serverless import this_replica
from composer_replication.types.errors import ConfigError


def report(**told) -> dict:
    me = this_replica()
    print(f"replica {me.rank} of {me.world_size}")
    return {"rank": me.rank, "env": os.environ.get("REPLICA_RANK"), "world_size": me.world_size, "pid": os.getpid(), **told}


def rename_the_window() -> None:
    os.write(1, "\x1b]0;owned\x07 é\n".encode())  # as native code would
    print("\x1b]0;owned\x07", flush=True)
    raise ValueError("\x1b]0;owned\x07")


ISSUED = "sk-or-v1-" + "0f3a9c5d7e1b2846" * 4


def tell_a_key() -> None:
    print(f"{ISSUED}{' ' * 1_950} the end", flush=True)  # an error quotes 2000 bytes
    os._exit(3)


def fail(rank: int) -> int:
    if this_replica().rank == rank:
        raise ValueError("the boat has a hole")
    return this_replica().rank


def fail_or_wait(rank: int) -> None:
    fail(rank)
    wait()


def refuse() -> None:
    raise ConfigError("lr is -1", fix="give it a sign")


def die() -> None:
    print("about to die", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def leave(status: int) -> None:
    os._exit(status)


def abort_at_exit() -> int:
    atexit.register(os.abort)
    return 5


def wait() -> None:
    print("waiting", flush=True)
    while True:
        time.sleep(1)


def wait_with_child(folder: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(1)"])
    me = this_replica()
    draft = Path(folder) / f"{me.rank}.draft"
    draft.write_text(f"{os.getpid()} {child.pid} {os.getppid()}")
    draft.rename(Path(folder) / f"{me.rank}.pids")
    wait()


def stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait()


def strange() -> object:
    return object()


def chatter(lines: int) -> int:
    for number in range(lines):
        print(f"line {number:06d} " + "x" * 90)
    return lines


class Nested:
    """Functions are found by qualified name."""

    @staticmethod
    def inner() -> str:
        return "inner"

    def method(self) -> str:
        return "method"
