"""The host's side of a sandbox: hand a request to the launcher, pump the pipes, and say how the command ended."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from composer_replication.sandbox.backends.cgroup import Cgroups
from composer_replication.sandbox.backends.launcher import BOOTSTRAP
from composer_replication.sandbox.backends.pump import Pump
from composer_replication.sandbox.interpreter import installation_of, reachable_by
from composer_replication.sandbox.protocol import Command, ExecResult, Installation, Isolation, Tree
from composer_replication.sandbox.request import WARM_FLAGS, BoxFds, BoxRequest
from composer_replication.sandbox.scratch import make_scratch, remove_abandoned
from composer_replication.sandbox.transfer.requests import PYTHON_ENVIRONMENT, check_paths, environment_of, result_of, rlimits_of
from composer_replication.types.errors import SandboxError

_GRACE_S = 20.0
"""Extra seconds beyond its wall limit for setting up and tearing down a sandbox before its supervisor counts as hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How to build one kind of sandbox on this machine."""

    backend: str
    isolation: Isolation
    cgroups: Cgroups | None
    overlay: bool = True
    sized_disk: bool = True
    """The sandbox's disk is a tmpfs: its pages count as the sandbox's memory, and no single file needs its own limit."""
    uids: tuple[int, ...] = ()
    """User ids for the sandboxes, one sandbox at a time each; empty: the user of this process."""
    program: str = ""
    ready: int = min(16, max(4, 2 * (os.cpu_count() or 2)))
    """Number of prepared sandboxes that wait for a command."""


class BoxSandbox:
    """A `Sandbox` whose sandboxes are forked from one launcher process."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.isolation = setup.isolation
        self._lock = threading.Lock()
        self.cpu_s = 0.0
        self._launchers: dict[str, _Launcher] = {}
        self._free_uids: queue.LifoQueue[int] = queue.LifoQueue()
        for uid in reversed(setup.uids):
            self._free_uids.put(uid)

    def with_isolation(self, isolation: Isolation) -> BoxSandbox:
        """Return the same sandbox with another description; both share the pool of users, one sandbox at a time each."""
        twin = BoxSandbox(dataclasses.replace(self._setup, isolation=isolation))
        twin._free_uids = self._free_uids
        return twin

    def run(self, tree: Tree, command: Command) -> ExecResult:
        setup = self._setup
        limits = command.limits
        with contextlib.ExitStack() as stack:
            uid = None
            if setup.uids and reachable_by(setup.uids[0], command.python):
                uid = self._free_uids.get()
                stack.callback(self._free_uids.put, uid)
            warm = setup.backend != "bubblewrap" and _can_be_warm(command)
            launcher = self._running_launcher(str(command.python) if warm else "")
            request = _request(setup, tree, command, launcher.scratch, uid, warm)
            started = time.monotonic()
            pump = Pump(command.stdin, limits)
            report = pump.run(launcher.send, request, started + limits.wall_s + _GRACE_S)
            result = result_of(tree, command, report, pump.kept, time.monotonic() - started)
        with self._lock:
            self.cpu_s += report.cpu_s
        return result

    def installation(self, python: Path) -> Installation:
        return installation_of(python)

    def _running_launcher(self, warm_python: str) -> _Launcher:
        with self._lock:
            launcher = self._launchers.get(warm_python)
            if launcher is None or not launcher.alive():
                launcher = self._launchers[warm_python] = _Launcher(self._setup, warm_python)
            return launcher


def _can_be_warm(command: Command) -> bool:
    """Return whether a running interpreter can become the command: same version as ours, and no different start-up setting."""
    flags = command.argv[1 : 1 + len(WARM_FLAGS)]
    if (command.argv[0], flags) != (str(command.python), WARM_FLAGS) or len(command.argv) <= 1 + len(WARM_FLAGS):
        return False
    if any(name.startswith("PYTHON") for name in command.env):
        return False
    return installation_of(command.python).version == sys.version_info[:2]


def _request(setup: Setup, tree: Tree, command: Command, scratch: str, uid: int | None, warm: bool) -> BoxRequest:
    check_paths(tree.changes)
    base = os.path.abspath(tree.base)
    try:
        owned = os.stat(base).st_uid == os.geteuid()
    except OSError as error:
        raise SandboxError(f"the tree's base folder cannot be read: {error}") from error
    installed = installation_of(command.python)
    return BoxRequest(
        base=base,
        changes={path: None if content is None else bytes(content) for path, content in tree.changes.items()},
        argv=list(command.argv),
        env=environment_of(command),
        binds=list(installed.binds),
        masks=list(installed.masks),
        scratch=scratch,
        wall_s=command.limits.wall_s,
        rlimits=rlimits_of(command.limits, counted=setup.cgroups is not None, sized_disk=setup.sized_disk),
        disk_mb=command.limits.disk_mb,
        memory_mb=command.limits.memory_mb + (command.limits.disk_mb if setup.sized_disk else 0),
        processes=command.limits.processes,
        overlay=setup.overlay and owned,
        uid=uid,
        program=setup.program,
        warm=warm,
        most_changed=(command.limits.changed_files, command.limits.changed_mb << 20) if command.read_back else None,
    )


class _Launcher:
    """The running fork server; ends when this object is collected or the process exits.

    With `warm_python` it is that interpreter, with its packages; without, ours with nothing but the standard library.
    """

    def __init__(self, setup: Setup, warm_python: str) -> None:
        """Start the launcher. Raises SandboxError."""
        try:
            self._start(setup, warm_python)
        except OSError as error:
            fix = (
                "free space for temporary files, allow more open files and processes (ulimit -n, ulimit -u), or use fewer workers"
            )
            raise SandboxError(f"the sandbox launcher cannot be started: {error}", fix=fix) from error

    def _start(self, setup: Setup, warm_python: str) -> None:
        with contextlib.ExitStack() as undo:
            self.scratch, held = make_scratch()
            undo.callback(remove_abandoned, self.scratch)
            undo.callback(os.close, held)
            os.chmod(self.scratch, 0o711)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(ours.close)
            root = Path(__file__).resolve().parents[3]
            facts = {"root": str(root), "connection": theirs.fileno(), "scratch": self.scratch, "warm": bool(warm_python)}
            facts |= {"backend": setup.backend, "ready": setup.ready, "groups": setup.cgroups and setup.cgroups.as_plain()}
            facts |= {"owner": os.getpid(), "held": held}
            program = [warm_python] if warm_python else [sys.executable, "-I", "-S"]
            with theirs:
                self._process = subprocess.Popen(
                    [*program, "-s", "-B", "-c", BOOTSTRAP.format(**facts)],
                    pass_fds=[theirs.fileno(), held],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env=PYTHON_ENVIRONMENT,
                    start_new_session=True,  # a signal to our whole process group leaves it time to clean up
                )
            undo.pop_all()
        self._connection = ours
        self._close = weakref.finalize(self, _close_launcher, self._process, ours, self.scratch, held, os.getpid())

    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, fds: BoxFds) -> None:
        try:
            socket.send_fds(self._connection, [b"1"], list(fds))
        except OSError as error:
            raise SandboxError(f"the sandbox launcher has ended ({error})", fix="try again; a new one is started") from error


def _close_launcher(process: subprocess.Popen[bytes], connection: socket.socket, scratch: str, held: int, owner: int) -> None:
    connection.close()
    os.close(held)
    if os.getpid() != owner:
        return
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    remove_abandoned(scratch)
