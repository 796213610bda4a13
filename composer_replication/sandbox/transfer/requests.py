"""Conversion of a command to a sandbox request, and of the sandbox's report to a result: the same for every kind of sandbox."""

from __future__ import annotations

import math
import os
import resource
import signal
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from composer_replication.sandbox.backends.supervisor import CHANNEL_FD
from composer_replication.sandbox.protocol import Command, Ending, ExecResult, Limits, Tree
from composer_replication.sandbox.request import BoxReport
from composer_replication.types.errors import SandboxError

PYTHON_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
}
"""The same for a program that starts and for the interpreter that others are forked from."""


def check_paths(paths: Iterable[str]) -> None:
    """Raise SandboxError for a path that is not plain, relative and below the tree's root."""
    for path in paths:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == "." or "\0" in path:
            raise SandboxError(f"{path!r} is not a plain path relative to the tree's root")


def environment_of(command: Command) -> dict[str, str]:
    """Return the whole environment of a command; nothing of the host's is in it."""
    return {
        "PATH": f"{os.path.dirname(os.path.abspath(command.python))}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        **PYTHON_ENVIRONMENT,
        **command.env,
        "COMPOSER_RESULT_FD": str(CHANNEL_FD),
    }


def rlimits_of(limits: Limits, *, counted: bool, sized_disk: bool) -> list[tuple[int, int, int]]:
    """Return (RLIMIT number, soft, hard): `counted` when a control group limits the whole sandbox, `sized_disk` when its disk is
    a tmpfs."""
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


def result_of(tree: Tree, command: Command, report: BoxReport, kept: Mapping[str, bytes], wall_s: float) -> ExecResult:
    """Return the result of a sandbox that ran `command` over `tree`; `kept` has its stdout, stderr and channel. Raises
    SandboxError."""
    return ExecResult(
        ending=ending_of(report, command.limits, kept["stderr"]),
        returncode=report.returncode,
        stdout=kept["stdout"],
        stderr=kept["stderr"],
        channel=kept["channel"],
        wall_s=wall_s,
        cpu_s=report.cpu_s,
        changes=(tree.changes if report.changes is None else report.changes) if command.read_back else None,
        not_kept=report.not_kept,
    )


def ending_of(report: BoxReport, limits: Limits, stderr: bytes) -> Ending:
    """Name what ended the command, from the kernel's counters first and the program's last words second."""
    counted = report.oom_killed is not None
    if report.oom_killed:
        return Ending.OUT_OF_MEMORY
    if report.disk_full or report.returncode == -signal.SIGXFSZ:
        return Ending.OUTPUT_LIMIT
    if report.timed_out or report.returncode == -signal.SIGXCPU:
        return Ending.TIMEOUT
    if report.returncode == -signal.SIGKILL and report.cpu_s >= limits.cpu_s:  # it ignored SIGXCPU
        return Ending.TIMEOUT
    # a group counts all its own kills, so a kill that only the machine counted was another's
    killed = report.killed_for_the_machine or (not counted and report.host_oom)
    if killed and report.returncode == -signal.SIGKILL:
        raise SandboxError("the machine ran out of memory while the sandbox ran", fix="run fewer sandboxes at once")
    if report.returncode < 0:
        return Ending.KILLED
    if not counted and report.returncode != 0 and stderr.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError"):
        return Ending.OUT_OF_MEMORY
    return Ending.EXITED
