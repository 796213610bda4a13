"""Processes by number, not to be taken for a later one that has the same number."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import NamedTuple

__all__ = ["Process", "end", "is_gone", "watch"]

_ENDING_S = 10.0
"""The most that the kernel is given to end a process that it has killed."""


class Process(NamedTuple):
    """One process."""

    pid: int
    began: int
    """Ticks since its machine started."""
    machine: str

    @classmethod
    def this(cls) -> Process:
        return cls(os.getpid(), _began(os.getpid()), _machine())


def watch(process: Process) -> int | None:
    """A descriptor that becomes readable when the process ends; None when it is on another machine.

    Raises ProcessLookupError when it has ended and was waited for.
    """
    if process.machine != _machine():
        return None
    descriptor = os.pidfd_open(process.pid)
    if _began(process.pid) != process.began:
        os.close(descriptor)
        raise ProcessLookupError(f"process {process.pid} has ended, and another has its number")
    return descriptor


def is_gone(process: Process) -> bool:
    """Return whether it has ended; one on another machine is never known to have."""
    return _ended(process)


def end(process: Process) -> bool:
    """Kill it, stopped or not, where it is on this machine. Whether it is gone; one on another machine is never known to be."""
    return _ended(process, killed=True)


def _ended(process: Process, *, killed: bool = False) -> bool:
    try:
        descriptor = watch(process)
    except ProcessLookupError:
        return True
    if descriptor is None:
        return False
    try:
        if killed:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return bool(select.select([descriptor], [], [], _ENDING_S if killed else 0)[0])  # it may not have been waited for
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
    """Equal for processes that know each other by number: the same boot, and no container between them."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
