"""The host's side of a sandbox: hand a request to the launcher, pump the pipes, and say how the command ended."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import queue
import resource
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from composer_replication.errors import SandboxError
from composer_replication.sandbox.cgroup import Cgroups
from composer_replication.sandbox.interpreter import installation_of, reachable_by
from composer_replication.sandbox.launcher import BOOTSTRAP
from composer_replication.sandbox.protocol import Command, Ending, ExecResult, Isolation, Limits, Tree
from composer_replication.sandbox.request import WARM_FLAGS, BoxFds, BoxReport, BoxRequest
from composer_replication.sandbox.scratch import make_scratch, remove_abandoned
from composer_replication.sandbox.supervise import CHANNEL_FD

__all__ = ["BoxSandbox", "Setup"]

_GRACE_S = 20.0
"""How much longer than its wall limit a box may take to be set up and torn down before its supervisor counts as hung."""
_CHUNK = 1 << 16
_PYTHON_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
}
"""The same for a program that starts and for the interpreter that others are forked from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How one kind of sandbox is made on this machine."""

    backend: str
    isolation: Isolation
    cgroups: Cgroups | None
    overlay: bool = True
    sized_disk: bool = True
    """The box's disk is a tmpfs: its pages count as the box's memory, and no single file needs a limit of its own."""
    uids: tuple[int, ...] = ()
    """Users the boxes run as, one box at a time each; empty: the user of this process."""
    program: str = ""
    ready: int = min(16, max(4, 2 * (os.cpu_count() or 2)))
    """Boxes that wait for their command."""


class BoxSandbox:
    """A `Sandbox` whose boxes are forked from one launcher process."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._lock = threading.Lock()
        self._cpu_s = 0.0
        self._launchers: dict[str, _Launcher] = {}
        self._free_uids: queue.LifoQueue[int] = queue.LifoQueue()
        for uid in reversed(setup.uids):
            self._free_uids.put(uid)

    @property
    def isolation(self) -> Isolation:
        return self._setup.isolation

    @property
    def cpu_s(self) -> float:
        """See `Sandbox.cpu_s`."""
        return self._cpu_s

    def with_isolation(self, isolation: Isolation) -> BoxSandbox:
        """The same boxes, described otherwise."""
        return BoxSandbox(dataclasses.replace(self._setup, isolation=isolation))

    def run(self, tree: Tree, command: Command) -> ExecResult:
        """See `Sandbox.run`."""
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
            pump = _Pump(command.stdin, limits)
            report = pump.run(launcher, request, started + limits.wall_s + _GRACE_S)
            wall_s = time.monotonic() - started
            ending = _ending(report, limits, pump.kept("stderr"))
        with self._lock:
            self._cpu_s += report.cpu_s
        return ExecResult(
            ending=ending,
            returncode=report.returncode,
            stdout=pump.kept("stdout"),
            stderr=pump.kept("stderr"),
            channel=pump.kept("channel"),
            wall_s=wall_s,
            cpu_s=report.cpu_s,
            changes=(tree.changes if report.changes is None else report.changes) if command.read_back else None,
            not_kept=report.not_kept,
        )

    def _running_launcher(self, warm_python: str) -> _Launcher:
        with self._lock:
            launcher = self._launchers.get(warm_python)
            if launcher is None or not launcher.alive():
                launcher = self._launchers[warm_python] = _Launcher(self._setup, warm_python)
            return launcher


def _can_be_warm(command: Command) -> bool:
    """Whether a running interpreter can turn into the command: same version as ours, and nothing set at its start differs."""
    flags = command.argv[1 : 1 + len(WARM_FLAGS)]
    if (command.argv[0], flags) != (str(command.python), WARM_FLAGS) or len(command.argv) <= 1 + len(WARM_FLAGS):
        return False
    if any(name.startswith("PYTHON") for name in command.env):
        return False
    return installation_of(command.python).version == sys.version_info[:2]


def _request(setup: Setup, tree: Tree, command: Command, scratch: str, uid: int | None, warm: bool) -> BoxRequest:
    _check_paths(tree.changes)
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
        env=_environment(command),
        binds=list(installed.binds),
        masks=list(installed.masks),
        scratch=scratch,
        wall_s=command.limits.wall_s,
        rlimits=_rlimits(command.limits, counted=setup.cgroups is not None, sized_disk=setup.sized_disk),
        disk_mb=command.limits.disk_mb,
        memory_mb=command.limits.memory_mb + (command.limits.disk_mb if setup.sized_disk else 0),
        processes=command.limits.processes,
        overlay=setup.overlay and owned,
        uid=uid,
        program=setup.program,
        warm=warm,
        most_changed=(command.limits.changed_files, command.limits.changed_mb << 20) if command.read_back else None,
    )


def _check_paths(changes: Mapping[str, bytes | None]) -> None:
    for path in changes:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == "." or "\0" in path:
            raise SandboxError(f"{path!r} is not a plain path relative to the tree's root")


def _environment(command: Command) -> dict[str, str]:
    return {
        "PATH": f"{os.path.dirname(os.path.abspath(command.python))}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        **_PYTHON_ENVIRONMENT,
        **command.env,
        "COMPOSER_RESULT_FD": str(CHANNEL_FD),
    }


def _rlimits(limits: Limits, *, counted: bool, sized_disk: bool) -> list[tuple[int, int, int]]:
    cpu_s, memory, disk = max(1, math.ceil(limits.cpu_s)), limits.memory_mb << 20, limits.disk_mb << 20
    values = [
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_NOFILE, 1024, 1024),
    ]
    if not counted:
        values += [(resource.RLIMIT_AS, memory, memory), (resource.RLIMIT_NPROC, limits.processes, limits.processes)]
    if not sized_disk:
        values.append((resource.RLIMIT_FSIZE, disk, disk))
    return values


def _ending(report: BoxReport, limits: Limits, stderr: bytes) -> Ending:
    """Name what ended the command, from what the kernel counted first and what the program said last."""
    counted = report.oom_killed is not None
    if report.oom_killed:
        return Ending.OUT_OF_MEMORY
    if report.disk_full or report.returncode == -signal.SIGXFSZ:
        return Ending.OUTPUT_LIMIT
    if report.timed_out or report.returncode == -signal.SIGXCPU:
        return Ending.TIMEOUT
    if report.returncode == -signal.SIGKILL and report.cpu_s >= limits.cpu_s:  # it ignored SIGXCPU
        return Ending.TIMEOUT
    # a group counts every kill of its own, so a kill that only the machine counted was somebody else's
    if not counted and report.host_oom and report.returncode == -signal.SIGKILL:
        raise SandboxError("the machine ran out of memory while the box ran", fix="run fewer boxes at once")
    if report.returncode < 0:
        return Ending.KILLED
    if not counted and report.returncode != 0 and stderr.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError"):
        return Ending.OUT_OF_MEMORY
    return Ending.EXITED


class _Launcher:
    """The running fork server; ends when this object is collected or the process exits.

    With `warm_python` it is that interpreter, with its packages; without, ours with nothing but the standard library.
    """

    def __init__(self, setup: Setup, warm_python: str) -> None:
        self.scratch, held = make_scratch()
        os.chmod(self.scratch, 0o711)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = Path(__file__).resolve().parents[2]
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
                env=_PYTHON_ENVIRONMENT,
                start_new_session=True,  # what kills our whole group leaves it the time to clean up
            )
        self._connection = ours
        self._close = weakref.finalize(self, _close_launcher, self._process, ours, self.scratch, held, os.getpid())

    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, fds: BoxFds) -> None:
        try:
            socket.send_fds(self._connection, [b"1"], list(fds))
        except OSError as error:
            raise SandboxError(f"the sandbox launcher has ended ({error})", fix="try again; it is started anew") from error


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


def _close_all(fds: set[int]) -> None:
    for fd in fds:
        os.close(fd)


class _Pump:
    """Feeds one box's stdin and keeps the first bytes of what it says."""

    def __init__(self, stdin: bytes, limits: Limits) -> None:
        self._stdin = memoryview(stdin)
        self._limit = limits.output_bytes
        self._kept: dict[str, bytearray] = {name: bytearray() for name in ("stdout", "stderr", "channel", "report")}

    def kept(self, name: str) -> bytes:
        return bytes(self._kept[name])

    def run(self, launcher: _Launcher, request: BoxRequest, deadline: float) -> BoxReport:
        """Start the box and return when it has gone. Raises SandboxError."""
        with contextlib.ExitStack() as stack:
            memory = os.memfd_create("box-request")
            stack.callback(os.close, memory)
            with open(memory, "wb", closefd=False) as file:
                file.write(request.dumps())
            os.lseek(memory, 0, os.SEEK_SET)
            pipes = {name: os.pipe() for name in ("stdin", "stdout", "stderr", "channel", "report", "control")}
            theirs = [pipes[n][0 if n in ("stdin", "control") else 1] for n in pipes]
            ours = {name: pair[1 if name in ("stdin", "control") else 0] for name, pair in pipes.items()}
            open_ends = set(ours.values())
            stack.callback(_close_all, open_ends)
            try:
                launcher.send(BoxFds(memory, *theirs))
            finally:
                for fd in theirs:
                    os.close(fd)
            self._move(ours, open_ends, deadline)
        if not self._kept["report"]:
            raise SandboxError("the box's supervisor ended without a report", fix="see the launcher's message on stderr")
        report = BoxReport.loads(self.kept("report"))
        if report.setup_error:
            raise SandboxError(f"the box could not be set up: {report.setup_error}")
        return report

    def _move(self, ours: dict[str, int], open_ends: set[int], deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            for name in self._kept:
                os.set_blocking(ours[name], False)
                selector.register(ours[name], selectors.EVENT_READ, name)
            os.set_blocking(ours["stdin"], False)
            selector.register(ours["stdin"], selectors.EVENT_WRITE, "stdin")
            while len(selector.get_map()) > ("stdin" in {key.data for key in selector.get_map().values()}):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise SandboxError("the box's supervisor does not answer; the machine may be overloaded")
                for key, _ in selector.select(left):
                    if not (self._feed(key.fd) if key.data == "stdin" else self._read(key.fd, key.data)):
                        selector.unregister(key.fd)
                        open_ends.discard(key.fd)
                        os.close(key.fd)

    def _feed(self, fd: int) -> bool:
        """Write some of stdin; False when there is no more to say or nobody listens."""
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
        kept += data[: max(0, self._limit - len(kept)) if name != "report" else len(data)]
        return bool(data)
