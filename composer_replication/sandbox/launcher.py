"""The fork server behind every sandbox: a small single-threaded process from which each box is forked in about a millisecond.

A box is made of dozens of system calls between fork and exec. Made in the training process, with its threads and gigabytes,
they could deadlock; made by a fresh interpreter per box, they would cost a start-up of 20 to 40 ms each time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import signal
import socket
import sys
import time
import types

from composer_replication.sandbox import bubblewrap, landlock, namespaces, unsafe
from composer_replication.sandbox.request import BoxFds, BoxRequest, WarmProgram
from composer_replication.sandbox.scratch import hold
from composer_replication.sandbox.supervise import Backend, supervise

__all__ = ["BOOTSTRAP", "become", "main"]

_BACKENDS: dict[str, Backend] = {
    "bubblewrap": bubblewrap.start,
    "landlock": landlock.start,
    "namespaces": namespaces.start,
    "unsafe-subprocess": unsafe.start,
}


_PRELOADED = "pytest"
"""What nearly every program of a box imports first; costs ten times the start of the interpreter."""


def _serve_one(fds: BoxFds) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(fds.request, "rb", closefd=False) as file:
        request = BoxRequest.loads(file.read())
    supervise(_BACKENDS[request.backend], request, fds)


def main(connection_fd: int, scratch: str, *, warm: bool) -> WarmProgram | None:
    """Serve until the host closes its end or dies; then wait for the boxes to end, and remove `scratch`, held until then.

    With `warm`, this interpreter is one that programs are written for: pytest is imported before the first box is forked, and
    in a box's process the program to turn into is returned.
    """
    connection = socket.socket(fileno=connection_fd)
    hold(scratch)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if warm:
        _preload()
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
            except WarmProgram as program:
                return program
            sys.stderr.flush()
            os._exit(0)
        for fd in received:
            os.close(fd)
    with contextlib.suppress(ChildProcessError):
        os.wait()
    shutil.rmtree(scratch, ignore_errors=True)
    return None


def _preload() -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module(_PRELOADED)
        for name in importlib.import_module("_pytest.config").default_plugins:
            importlib.import_module(f"_pytest.{name}")


def become(program: WarmProgram) -> types.ModuleType:
    """Make this process look like a fresh interpreter: the returned `__main__` is where the program's source is to run."""
    main_module = types.ModuleType("__main__")
    sys.modules["__main__"] = main_module
    package = __name__.partition(".")[0]
    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        del sys.modules[name]
    sys.argv = program.argv
    sys.path[:] = [entry for entry in sys.path if os.path.exists(entry) or entry.endswith(".zip")]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    time.tzset()
    gc.enable()
    return main_module


BOOTSTRAP = """
import sys
sys.path.insert(0, {root!r})
from composer_replication.sandbox import launcher
sys.path.remove({root!r})
program = launcher.main({connection}, {scratch!r}, warm={warm})
if program is not None:
    place = launcher.become(program).__dict__
    source = program.source
    del sys, launcher, program
    exec(compile(source, "<string>", "exec"), place)
"""
"""The launcher's `__main__`: a box's program runs at its top level, with none of the launcher's frames below it."""
