"""Identities of processes that a later process with the same number cannot be mistaken for."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import NamedTuple

_ENDING_S = 10.0
"""The most that the kernel is given to end a process that it has killed."""


class Process(NamedTuple):
    """The identity of one process."""

    pid: int
    began: int
    """Ticks since its machine started."""
    machine: str

    @classmethod
    def this(cls) -> Process:
        return cls(os.getpid(), _began(os.getpid()), _machine())


def watch(process: Process) -> int | None:
    """Open a descriptor that becomes readable when the process ends; return None for a process on another machine.

    Raises:
        ProcessLookupError: it has ended, and its parent has collected its status.
    """
    if process.machine != _machine():
        return None
    descriptor = os.pidfd_open(process.pid)
    if _began(process.pid) != process.began:
        os.close(descriptor)
        raise ProcessLookupError(f"process {process.pid} has ended, and another has its number")
    return descriptor


def is_gone(process: Process, *, kill: bool = False) -> bool:
    """Return whether a process has ended; one on another machine is never known to have.

    With `kill`, kill it first where it is on this machine, stopped or not.
    """
    try:
        descriptor = watch(process)
    except ProcessLookupError:
        return True
    if descriptor is None:
        return False
    try:
        if kill:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return bool(select.select([descriptor], [], [], _ENDING_S if kill else 0)[0])  # it may not have been waited for
    except ProcessLookupError:
        return True
    finally:
        os.close(descriptor)


def _began(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {pid} has ended") from error


def _machine() -> str:
    """Return a text that is equal for processes that can reach each other by number: same boot, no container between them."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
