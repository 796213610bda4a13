"""A request that a waiting sandbox goes through before the real one comes, so that its memory is its own by then.

A forked process shares its parent's pages until it writes to them, and CPython writes to an object that it only looks at: its
reference count. The first write to each page costs a fault and a copy, 5 to 10 microseconds on a virtual machine, and a request
meets about 150 such pages.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

from composer_replication.sandbox.backends.cgroup import USUAL, Cgroups, UsageMeter
from composer_replication.sandbox.backends.stage import REHEARSED
from composer_replication.sandbox.backends.supervisor import Backend, Started, read_request, receive_fds, send_fds, supervise
from composer_replication.sandbox.request import BoxFds, BoxRequest

_REQUEST = BoxRequest(
    base="/",
    changes=REHEARSED,
    argv=["program", "argument"],
    env={"NAME": "value"},
    binds=["/folder"],
    masks=[],
    scratch="/",
    wall_s=1.0,
    rlimits=[(0, 1, 1)],
    disk_mb=1,
    memory_mb=USUAL[0],
    processes=USUAL[1],
    overlay=True,
)


def rehearse(group: Cgroups | None, meter: UsageMeter | None) -> None:
    """Receive, read and supervise a request whose backend starts nothing. Raises OSError."""
    with ExitStack() as stack:

        def owned(*fds: int) -> list[int]:
            for fd in fds:
                stack.callback(os.close, fd)
            return list(fds)

        ours, theirs = owned(*(end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)))
        memory, nothing = owned(os.memfd_create("box-request"), os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        os.write(memory, _REQUEST.dumps())
        send_fds(ours, [memory] + [nothing] * (len(BoxFds._fields) - 1))
        fds = BoxFds(*owned(*receive_fds(theirs, len(BoxFds._fields))))
        supervise(refusing("a rehearsal"), read_request(fds.request), fds._replace(report=os.dup(nothing)), group, meter)


def refusing(reason: str) -> Backend:
    """Return a backend that gives this reason when it is asked to start a command."""

    def refuse(_request: BoxRequest, _fds: BoxFds, _error_fd: int) -> Started:
        raise OSError(reason)

    return refuse
