"""A program that starts processes: none of them outlives the program, nor the process that started it.

    this process -> guard (`python -m composer_replication.sandbox.program`) -> the program -> whatever it starts

The guard leads a new session and adopts every orphan below it. When the program ends, when the guard is told to or when
this process dies, `kill -9` included, it asks all that is below it to end, and kills what does not. A `kill -9` of the guard
itself leaves what the program has started to the system.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from composer_replication.sandbox.backends import linux

_PATIENCE_S = 30.0
_HEARD = {signal.SIGTERM, signal.SIGCHLD}


class RunningProgram:
    """A running program. As a context manager it ends everything that the program started.

    Args:
        log: file to which its output is appended.
        folder: its working directory; None for this process's.
        without: variables of this process that it must not inherit.
        patience_s: seconds between being asked to end and being killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        folder: Path | None = None,
        without: Sequence[str] = (),
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        inherited = {name: value for name, value in os.environ.items() if name not in without}
        with log.open("ab") as stream:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(os.getpid()), str(patience_s), *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=inherited | dict(environment),
                start_new_session=True,
            )  # without preexec_fn: libraries of this process may crash in what is forked from it

    @property
    def group(self) -> int:
        """The process group of the guard, of the program and of its children that do not leave the group."""
        return self._guard.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the program and everything it started, and return when all of it has ended."""
        self._guard.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(2 * self._patience_s)
            return
        os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.wait()

    def poll(self) -> int | None:
        """Return the exit status, 128 plus the signal's number for a killed program; None while it runs."""
        return self._guard.poll()

    async def wait(self) -> int:
        """Wait until the program has ended, and return its status as `poll` does."""
        while (code := self.poll()) is None:
            await asyncio.sleep(0.2)
        return code


# --- the guard --------------------------------------------------------------------------------------------------------


def _main(words: Sequence[str]) -> int:
    started_by, patience_s, *command = words
    linux.die_with_parent(signal.SIGTERM)
    if os.getppid() != int(started_by):  # it ended before it could be watched
        return 128 + signal.SIGTERM
    linux.set_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)  # they are waited for: nothing of this is interrupted half-way
    program = subprocess.Popen(command, preexec_fn=_begin)
    code: int | None = None
    while code is None and signal.sigwait(_HEARD) != signal.SIGTERM:
        code = _collect(program.pid)
    program.returncode = code or 0  # collected here, whatever it was
    _end(float(patience_s))
    return 128 + signal.SIGTERM if code is None else code


def _begin() -> None:
    linux.die_with_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)


def _collect(program: int) -> int | None:
    """Collect all that has ended; the exit status of the program when it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
            if ended[0] == program:
                found = os.waitstatus_to_exitcode(ended[1])
                code = found if found >= 0 else 128 - found
    return code


def _end(patience_s: float) -> None:
    """End all children. An orphan becomes a child of this process, so everything has ended when there is no child left."""
    deadline = time.monotonic() + patience_s
    _tell(signal.SIGTERM)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] != 0:
                continue
        except ChildProcessError:
            return
        if time.monotonic() > deadline:
            _tell(signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, 0.1)


def _tell(what: signal.Signals) -> None:
    for pid in _below():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def _below() -> list[int]:
    """Return every process that descends from this one."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            after_name = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
            children.setdefault(int(after_name[1]), []).append(int(name))
    found = children.get(os.getpid(), [])
    for pid in found:  # it grows
        found.extend(children.get(pid, []))
    return found


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
