"""The host's end of a sandbox's pipes: feeds standard input, and keeps the first bytes of the output."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable

from composer_replication.sandbox.protocol import Limits
from composer_replication.sandbox.request import BoxFds, BoxReport, BoxRequest
from composer_replication.types.errors import SandboxError

_CHUNK = 1 << 16


class Pump:
    """Feeds one sandbox's stdin and keeps the first bytes of its output."""

    def __init__(self, stdin: bytes, limits: Limits) -> None:
        self._stdin = memoryview(stdin)
        self._limit = limits.output_bytes
        self._kept: dict[str, bytearray] = {name: bytearray() for name in ("stdout", "stderr", "channel", "report")}

    @property
    def kept(self) -> dict[str, bytes]:
        """Output of `stdout`, `stderr`, `channel` and `report`, up to the limit."""
        return {name: bytes(data) for name, data in self._kept.items()}

    def run(self, send: Callable[[BoxFds], None], request: BoxRequest, deadline: float) -> BoxReport:
        """Start the sandbox with `send`, which must not close the descriptors it is given, and return when it has ended. Raises
        SandboxError."""
        with contextlib.ExitStack() as stack:
            open_ends: set[int] = set()
            stack.callback(_close_all, open_ends)
            try:
                memory, pipes = _opened(request, open_ends)
            except OSError as error:
                raise SandboxError(
                    f"the pipes of a sandbox cannot be made: {error}", fix="allow more open files (ulimit -n)"
                ) from error
            theirs = [pipes[n][0 if n in ("stdin", "control") else 1] for n in pipes]
            ours = {name: pair[1 if name in ("stdin", "control") else 0] for name, pair in pipes.items()}
            try:
                send(BoxFds(memory, *theirs))
            finally:
                for fd in theirs:
                    open_ends.discard(fd)
                    os.close(fd)
            self._move(ours, open_ends, deadline)
        if not self._kept["report"]:
            raise SandboxError("the sandbox's supervisor ended without a report", fix="see the launcher's message on stderr")
        try:
            report = BoxReport.loads(bytes(self._kept["report"]))
        except (ValueError, EOFError, TypeError) as error:
            raise SandboxError(
                f"the sandbox's supervisor ended in the middle of its report ({error})", fix="see whether memory ran out"
            ) from error
        if report.setup_error:
            raise SandboxError(f"the sandbox could not be set up: {report.setup_error}")
        return report

    def _move(self, ours: dict[str, int], open_ends: set[int], deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            for name in self._kept:
                os.set_blocking(ours[name], False)
                selector.register(ours[name], selectors.EVENT_READ, name)
            os.set_blocking(ours["stdin"], False)
            selector.register(ours["stdin"], selectors.EVENT_WRITE, "stdin")
            while any(key.data != "stdin" for key in selector.get_map().values()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise SandboxError("the sandbox's supervisor does not answer; the machine may be overloaded")
                for key, _ in selector.select(left):
                    if not (self._feed(key.fd) if key.data == "stdin" else self._read(key.fd, key.data)):
                        selector.unregister(key.fd)
                        open_ends.discard(key.fd)
                        os.close(key.fd)

    def _feed(self, fd: int) -> bool:
        """Write some of stdin; False when everything is written or the reader is gone."""
        try:
            self._stdin = self._stdin[os.write(fd, self._stdin[:_CHUNK]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self._stdin)

    def _read(self, fd: int, name: str) -> bool:
        """Take what is there; False at the end."""
        data = os.read(fd, _CHUNK)
        kept = self._kept[name]
        if name == "report":
            kept += data
            return bool(data) and not BoxReport.is_whole(kept)
        kept += data[: max(0, self._limit - len(kept))]
        return bool(data)


def _opened(request: BoxRequest, opened: set[int]) -> tuple[int, dict[str, tuple[int, int]]]:
    """Open a file with the request in it and the pipes by name, all of which are in `opened` even when an OSError is raised."""
    memory = os.memfd_create("box-request")
    opened.add(memory)
    with open(memory, "wb", closefd=False) as file:
        file.write(request.dumps())
    os.lseek(memory, 0, os.SEEK_SET)
    pipes = {}
    for name in ("stdin", "stdout", "stderr", "channel", "report", "control"):
        pipes[name] = os.pipe()
        opened.update(pipes[name])
    return memory, pipes


def _close_all(fds: set[int]) -> None:
    for fd in fds:
        os.close(fd)
