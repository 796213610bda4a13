"""What both test servers do with a submitted command: run it as a real process, in a process group of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

FOUND_IN_IMAGE = ("HOME", "LANG", "PYTHONPATH", "OMP_NUM_THREADS", "SSL_CERT_FILE")


class Container:
    """A command with the environment that was submitted, and little else of this process's."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> None:
        inherited = {name: os.environ[name] for name in FOUND_IN_IMAGE if name in os.environ}
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"  # `python` is the interpreter that runs the tests
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - until it is closed
        self.process = subprocess.Popen(
            list(command),
            env={**inherited, "PATH": path, **environment},
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.terminated = self.timed_out = False
        self._timer = threading.Timer(timeout_s, self.time_is_up)
        self._timer.daemon = True
        self._timer.start()

    @property
    def status(self) -> int | None:
        return self.process.poll()

    def printed(self) -> str:
        self.output.seek(0)
        return self.output.read().decode("utf-8", "replace")

    def terminate(self) -> None:
        if self.process.poll() is None:
            self.terminated = True
            self.kill()

    def kill(self) -> None:
        """At once, and everything in it: as when a machine goes."""
        self._timer.cancel()
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.output.close()

    def time_is_up(self) -> None:
        if self.process.poll() is None:
            self.timed_out = True
            self.kill()


def descendants(root: int) -> list[int]:
    """Processes below `root`, the nearest first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(entry.parent.name))
    found, todo = [], [root]
    while todo:
        todo = [child for parent in todo for child in children.get(parent, ())]
        found += todo
    return found
