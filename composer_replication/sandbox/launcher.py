"""The fork server behind every sandbox: a small single-threaded process from which each box is forked in about a millisecond.

A box is made of dozens of system calls between fork and exec. Made in the training process, with its threads and gigabytes,
they could deadlock; made by a fresh interpreter per box, they would cost a start-up of 20 to 40 ms each time.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import socket
import sys

from composer_replication.sandbox import bubblewrap, landlock, namespaces, unsafe
from composer_replication.sandbox.request import BoxFds, BoxRequest
from composer_replication.sandbox.supervise import Backend, supervise

__all__ = ["main"]

_BACKENDS: dict[str, Backend] = {
    "bubblewrap": bubblewrap.start,
    "landlock": landlock.start,
    "namespaces": namespaces.start,
    "unsafe-subprocess": unsafe.start,
}


def _serve_one(fds: BoxFds) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(fds.request, "rb", closefd=False) as file:
        request = BoxRequest.loads(file.read())
    supervise(_BACKENDS[request.backend], request, fds)


def main(connection_fd: int, scratch: str) -> None:
    """Serve until the host closes its end or dies; then wait for the boxes to end, and remove `scratch`."""
    connection = socket.socket(fileno=connection_fd)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    gc.freeze()
    while True:
        message, received, _, _ = socket.recv_fds(connection, 1, len(BoxFds._fields))
        if not message:
            break
        fds = BoxFds(*received)
        if os.fork() == 0:
            try:
                connection.close()
                _serve_one(fds)
            finally:
                sys.stderr.flush()
                os._exit(0)
        for fd in received:
            os.close(fd)
    with contextlib.suppress(ChildProcessError):
        os.wait()
    shutil.rmtree(scratch, ignore_errors=True)
