"""The fork server behind every sandbox: a small single-threaded process that keeps a few sandboxes waiting for their commands.

A sandbox is made of dozens of system calls between fork and exec. Made in the training process, with its threads and gigabytes,
they could deadlock; made by a fresh interpreter per sandbox, they would cost a start-up of 20 to 40 ms each time. Most of them
are made before the command is there, and a new sandbox takes the place of each that is taken.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import struct
import sys
import time
import types
from collections.abc import Iterator
from typing import TypeAlias

from composer_replication.sandbox.backends import bubblewrap, landlock, linux, namespaces, seccomp, system, unsafe
from composer_replication.sandbox.backends.cgroup import Cgroups, UsageMeter
from composer_replication.sandbox.backends.preload import ONLY_STANDARD_LIBRARY, OUR_BACKENDS, preload
from composer_replication.sandbox.backends.rehearsal import refusing, rehearse
from composer_replication.sandbox.backends.supervisor import (
    SETUP_ERRORS,
    Backend,
    Started,
    occupy_low_numbers,
    read_request,
    receive_fds,
    supervise,
)
from composer_replication.sandbox.request import BoxFds, BoxRequest, WarmProgram

Groups: TypeAlias = tuple[int, str, str, str | None] | None
"""`Cgroups.as_plain`, where there are any."""

_BACKENDS: dict[str, Backend] = {"bubblewrap": bubblewrap.start, "landlock": landlock.start, "unsafe-subprocess": unsafe.start}
"""Functions that build a sandbox when its command arrives; a sandbox of `namespaces` is built before."""

_NEWS = struct.Struct("ci")
_TAKEN, _DONE = b"t", b"d"
"""Messages of a sandbox to the launcher, sent with its process id."""
_LOOK_ROUND_MS = 1000
_HOST_FIRST_S = 0.002
"""Time in which the host, which the kernel wakes on the same processor, reads a report: the end of a process takes a while."""


def main(
    connection: int, scratch: str, *, held: int, backend: str, ready: int, groups: Groups, owner: int, packages: list[str] | None
) -> WarmProgram | None:
    """Keep `ready` sandboxes waiting until the host closes its end or dies; then wait for them to end, and remove `scratch`.

    All of them receive from the one connection, and the first to get a request serves it. `held` locks `scratch`, so that no
    process takes it for abandoned before the last process has ended. With `packages`, where modules are found, this interpreter
    is one that programs are written for: pytest is imported before the first sandbox is forked, and in a sandbox's process the
    program to turn into is returned.
    """
    for fd in (connection, held):
        os.set_inheritable(fd, False)
    occupy_low_numbers()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if packages is not None:
        preload(packages)
    if backend != "unsafe-subprocess":
        _prepare_seal()
    gc.disable()
    gc.freeze()
    news, news_end = os.pipe()
    poll = select.poll()
    poll.register(connection, 0)  # its end is always reported
    poll.register(news, select.POLLIN)
    cgroups = Cgroups.from_plain(*groups) if groups else None
    if cgroups is not None:
        cgroups.sweep()  # left by a launcher that was killed
    waiting: set[int] = set()
    wanted = ready
    while True:
        while len(waiting) < wanted:
            pid = os.fork()
            if pid == 0:
                try:
                    _serve_one(connection, news_end, backend, scratch, cgroups, owner)
                except WarmProgram as program:
                    return program
                sys.stderr.flush()
                os._exit(0)
            waiting.add(pid)
        events = dict(poll.poll(_LOOK_ROUND_MS))
        if connection in events:
            break
        heard = list(_NEWS.iter_unpack(os.read(news, _NEWS.size * ready))) if news in events else []
        waiting -= {pid for _, pid in heard}
        done = any(what == _DONE for what, _ in heard)
        if done or not heard:  # make and remove sandboxes between commands, not during one
            waiting -= set(_buried(os.WNOHANG, cgroups, owner))
        wanted = ready if done or not waiting else len(waiting)
    os.close(connection)
    list(_buried(0, cgroups, owner))
    shutil.rmtree(scratch, ignore_errors=True)
    return None


def _prepare_seal() -> None:
    """Do once what no sandbox has to repeat: look up what it shows of the system, compile the filters of system calls, and leave
    the host's session keyring.

    So a sandbox that gets no keyring of its own, for lack of quota, has nothing of the host's either.
    """
    with contextlib.suppress(OSError):  # each sandbox says why it cannot be sealed
        system.system_view()
        linux.join_session_keyring()
        seccomp.box_filter()
        for own_user in (False, True):
            landlock.box_filter(own_user=own_user)


def _serve_one(connection: int, news: int, backend: str, scratch: str, cgroups: Cgroups | None, owner: int) -> None:
    """Prepare a sandbox with a session keyring of its own, wait for a request, and serve it."""
    os.setsid()
    group: Cgroups | None = None
    meter: UsageMeter | None = None
    start: Backend
    try:
        linux.join_session_keyring()  # the sandbox's processes inherit it
        if cgroups is not None:
            group = cgroups.create(owner)
            meter = group.meter()
        start = _BACKENDS[backend] if backend in _BACKENDS else namespaces.prepare(scratch, group.procs if group else []).start
        rehearse(group, meter)
    except SETUP_ERRORS as error:
        start = refusing(str(error))
    received = receive_fds(connection, len(BoxFds._fields))
    if not received:
        return
    os.close(connection)
    fds = BoxFds(*received)

    def start_and_tell(request: BoxRequest, fds: BoxFds, error_fd: int) -> Started:
        started = start(request, fds, error_fd)
        os.write(news, _NEWS.pack(_TAKEN, os.getpid()))  # not before: the launcher would wake up beside the sandbox
        return started

    supervise(start_and_tell, read_request(fds.request), fds, group, meter)
    time.sleep(_HOST_FIRST_S)
    os.write(news, _NEWS.pack(_DONE, os.getpid()))


def _buried(how: int, cgroups: Cgroups | None, owner: int) -> Iterator[int]:
    """Collect the processes that have ended (with 0 for `how`: wait for all of them), and remove their control groups."""
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, how)[0]) != 0:
            if cgroups is not None:
                cgroups.remove_of(owner, pid)
            yield pid


def become(program: WarmProgram, path: list[str]) -> types.ModuleType:
    """Make this process look like a fresh interpreter with this `sys.path`: in the returned `__main__` the program's source is to
    run."""
    main_module = types.ModuleType("__main__")
    sys.modules["__main__"] = main_module
    package = __name__.partition(".")[0]
    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        del sys.modules[name]
    sys.argv = program.argv
    sys.path[:] = [entry for entry in path if os.path.exists(entry) or entry.endswith(".zip")]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    time.tzset()
    gc.enable()
    return main_module


BOOTSTRAP = (
    ONLY_STANDARD_LIBRARY.replace("{", "{{").replace("}", "}}")
    + OUR_BACKENDS
    + """
from composer_replication.sandbox.backends import launcher
program = launcher.main(
    {connection}, {scratch!r}, held={held}, backend={backend!r}, ready={ready}, groups={groups!r}, owner={owner},
    packages=everything if {warm} else None,
)
if program is not None:
    place = launcher.become(program, everything).__dict__
    source = program.source
    del sys, os, everything, home, standard, name, launcher, program
    exec(compile(source, "<string>", "exec"), place)
"""
)
"""The launcher's `__main__`: a sandbox's program runs at its top level, with none of the launcher's frames below it."""
