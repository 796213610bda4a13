"""The launcher's side of one sandbox: fork the command into its confinement, watch the clock, and leave nothing running."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from composer_replication.sandbox.backends import linux
from composer_replication.sandbox.backends.cgroup import USUAL, Cgroups, UsageMeter
from composer_replication.sandbox.changes import Changed
from composer_replication.sandbox.request import WARM_FLAGS, BoxFds, BoxReport, BoxRequest, WarmProgram

CHANNEL_FD = 3
"""The result channel's descriptor number in every sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A sandbox whose command is running, as its backend hands it to `supervise`."""

    pid: int
    """Child to wait for; killing it must end the whole sandbox."""
    changes: Callable[[int, int], Changed]
    """Returns the difference from the base, with a limit on files and bytes; called when the last process has ended, before
    `finish`."""
    status_fd: int | None = None
    """Descriptor to which the sandbox's init writes the command's wait status, when `pid` is that init; None: `pid` is the
    command."""
    returncode: Callable[[int], int] = os.waitstatus_to_exitcode
    """Converts a wait status to the command's exit code."""
    watch: Callable[[], bool] = lambda: False
    """Called periodically while the sandbox runs; True ends it for having used up its disk."""
    finish: Callable[[], bool] = lambda: False
    """Called when the command has ended: removes what is left and says whether the disk was full."""


def fork(body: Callable[[], NoReturn]) -> int:
    """Fork a child that runs `body`, which never returns here; only a `WarmProgram` leaves it."""
    pid = os.fork()
    if pid == 0:
        leave = True
        try:
            body()
        except WarmProgram:
            leave = False
            raise
        finally:
            if leave:
                os._exit(70)
    return pid


SETUP_ERRORS = (OSError, ValueError)
"""Errors of setting up a sandbox: a refused system call, or an argument `exec` does not take."""


def fork_command(
    request: BoxRequest,
    fds: BoxFds,
    error_fd: int,
    *,
    argv: list[str],
    env: dict[str, str],
    directory: str,
    cgroups: Sequence[int] = (),
    confine: Callable[[], None] = lambda: None,
) -> int:
    """Fork the command, as `exec_command` starts it, into its control groups; its process first runs `confine`."""

    def command() -> NoReturn:
        try:
            os.setsid()
            join_cgroups(cgroups)
            confine()
            take_limits(request.rlimits)
            exec_command(request, fds.streams, argv, env, directory)
        except SETUP_ERRORS as error:
            exit_with(error_fd, error)

    return fork(command)


def exit_with(error_fd: int, error: OSError | ValueError) -> NoReturn:
    """Tell the supervisor why the sandbox could not be set up, and end."""
    os.write(error_fd, str(error).encode()[:4000])
    os._exit(70)


def open_cgroups(procs: Sequence[str]) -> list[int]:
    """Open the `cgroup.procs` files while they can still be reached."""
    return [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in procs]


def join_cgroups(fds: Sequence[int]) -> None:
    """Enter the cgroups whose `cgroup.procs` files are open on `fds`."""
    for fd in fds:
        os.write(fd, b"0")


def take_limits(rlimits: Iterable[tuple[int, int, int]]) -> None:
    """Take limits of a program, as `BoxRequest.rlimits`; where a hard limit is lower already, that one stays."""
    for number, soft, hard in rlimits:
        allowed = resource.getrlimit(number)[1]
        if allowed != resource.RLIM_INFINITY:
            soft, hard = min(soft, allowed), min(hard, allowed)
        resource.setrlimit(number, (soft, hard))


def exec_command(request: BoxRequest, streams: Sequence[int], argv: list[str], env: dict[str, str], directory: str) -> NoReturn:
    """Become the sandbox's program: default signals, and no descriptor but `streams`: stdin, stdout, stderr, the channel.

    Raises:
        WarmProgram: instead of an `exec`, when this process is the interpreter asked for.
    """
    os.chdir(directory)
    os.umask(0o022)
    for target, fd in enumerate(streams):
        os.dup2(fd, target, inheritable=True)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if request.warm:
        linux.close_from(CHANNEL_FD + 1)
        linux.set_dumpable(True)
        os.environ.clear()
        os.environ.update(env)
        source_at = 1 + len(WARM_FLAGS)
        raise WarmProgram(argv[source_at], ["-c", *argv[source_at + 1 :]])
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execve(argv[0], argv, env)


def occupy_low_numbers() -> None:
    """Leave none of the descriptor numbers free that a command's streams have, so that `receive_fds` gives none of them."""
    fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    while fd <= CHANNEL_FD:
        fd = os.dup(fd)
    os.close(fd)


def send_fds(connection: int, fds: Sequence[int]) -> None:
    """Hand descriptors over; `connection` is a socket without a Python object, which a program forked from here would inherit."""
    with _borrowed(connection) as end:
        socket.send_fds(end, [b"1"], fds)


def receive_fds(connection: int, most: int) -> list[int]:
    """Wait for `send_fds`; no descriptors mean that the other side is gone. No program inherits them.

    Raises OSError when fewer than `most` have come: the limit of open files is too low for them.
    """
    with _borrowed(connection) as end:
        message, fds, _, _ = socket.recv_fds(end, 1, most)  # Python 3.11 takes flags, and does not pass them on
    for fd in fds:
        os.set_inheritable(fd, False)
    if message and len(fds) != most:
        raise OSError(f"{len(fds)} of {most} descriptors have come: allow more open files (ulimit -n)")
    return list(fds)


@contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket]:
    end = socket.socket(fileno=fd)
    try:
        yield end
    finally:
        end.detach()


def read_request(fd: int) -> BoxRequest:
    """Read the request that the host wrote to the memory file open at `fd`."""
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return BoxRequest.loads(file.read())


def _oom_kills(request: BoxRequest) -> int:
    """Return how many processes this machine has killed for memory; not looked up for a sandbox whose control group counts its
    own."""
    if request.cgroup_procs:
        return 0
    with open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


def _kill_descendants() -> None:
    """Kill and collect every process of the sandbox; orphans have this process as their parent, so the loop ends with none
    left."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] != 0:
                continue
        except ChildProcessError:
            return
        for pid in _children(os.getpid()):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _children(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    after_name = file.read().rpartition(b")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(after_name[1]) == parent:
                found.append(int(name))
    return found


Backend = Callable[[BoxRequest, BoxFds, int], Started]


def supervise(backend: Backend, request: BoxRequest, fds: BoxFds, group: Cgroups | None, meter: UsageMeter | None) -> None:
    """Run one box from start to end, in `group` where there is one, and write its `BoxReport`."""
    error_read, error_write = os.pipe()
    try:
        if group is not None:
            if (request.memory_mb, request.processes) != USUAL:
                group.limit(request.memory_mb, request.processes)
            request = dataclasses.replace(request, cgroup_procs=tuple(group.procs))
        report = _watch(backend, request, fds, error_read, error_write)
        if meter is not None:
            cpu_s = meter.cpu_s()
            report = dataclasses.replace(
                report,
                oom_killed=meter.oom_killed(),
                killed_for_the_machine=meter.killed_for_the_machine(),
                cpu_s=report.cpu_s if cpu_s is None else cpu_s,
            )
    except SETUP_ERRORS as error:
        report = BoxReport(setup_error=str(error))
    os.close(error_read)
    with contextlib.suppress(BrokenPipeError), open(fds.report, "wb") as file:  # unread when the host was killed
        file.write(report.dumps())


def _watch(backend: Backend, request: BoxRequest, fds: BoxFds, error_read: int, error_write: int) -> BoxReport:
    linux.set_subreaper()
    oom_before = _oom_kills(request)
    deadline = time.monotonic() + request.wall_s
    try:
        started = backend(request, fds, error_write)
    except SETUP_ERRORS:  # and not in a `WarmProgram`, which has closed its descriptors
        os.close(error_write)
        raise
    os.close(error_write)
    for fd in fds.streams:
        os.close(fd)
    changed = None
    try:
        timed_out, disk_full = _wait(started, fds.control, deadline)
        if timed_out or disk_full:
            os.kill(started.pid, signal.SIGKILL)
        _, status = os.waitpid(started.pid, 0)
        _kill_descendants()
        if request.most_changed is not None:
            changed = started.changes(*request.most_changed)
    finally:
        _kill_descendants()
        disk_full_at_end = started.finish()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    os.set_blocking(error_read, False)
    try:
        setup_error = os.read(error_read, 4096).decode(errors="replace")
    except BlockingIOError:
        setup_error = ""
    if started.status_fd is not None:
        raw = os.read(started.status_fd, 16)
        status = int(raw) if raw else signal.SIGKILL
    return BoxReport(
        setup_error=setup_error,
        returncode=started.returncode(status),
        cpu_s=usage.ru_utime + usage.ru_stime,
        timed_out=timed_out,
        disk_full=disk_full or disk_full_at_end,
        host_oom=_oom_kills(request) != oom_before,
        changes=None if changed is None or changed.too_much else changed.files,
        not_kept=() if changed is None else (*changed.refused, *filter(None, [changed.too_much])),
    )


def _wait(started: Started, control: int, deadline: float) -> tuple[bool, bool]:
    """Wait until the sandbox ends by itself; return (timed out, disk used up) otherwise. The host giving up counts as a
    timeout."""
    pidfd = os.pidfd_open(started.pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(control, select.POLLIN | select.POLLHUP)
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return True, False
            events = dict(poll.poll(min(left, 0.2) * 1000))
            if pidfd in events:
                return False, False
            if control in events:
                return True, False
            if started.watch():
                return False, True
    finally:
        os.close(pidfd)
