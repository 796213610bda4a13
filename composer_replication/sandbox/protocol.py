"""The sandbox interface: one sealed sandbox per command, a tree of files in, an ending out.

A workspace is plain data, a read-only base folder plus the files that differ from it, so nothing has to live between two
commands: forking a state is copying a mapping, and a daemon left behind by an agent dies with its box.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The files a command sees at its working directory."""

    base: Path
    """A folder of the host, never written to."""
    changes: Mapping[str, bytes | None] = field(default_factory=dict)
    """POSIX paths relative to the root -> new content, or None for a deleted file or folder, below which no other is
    named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of one command."""

    wall_s: float = 60.0
    cpu_s: float = 60.0
    memory_mb: int = 1024
    """Memory in MiB: of the whole sandbox where cgroups are writable, address space per process otherwise."""
    processes: int = 64
    disk_mb: int = 256
    """MiB the command may write under its root and /tmp together."""
    output_bytes: int = 1 << 20
    """Kept of each of stdout, stderr and the result channel; the rest is read and dropped."""
    changed_files: int = 1000
    changed_mb: int = 16
    """Most that `Command.read_back` takes; a command that changed more changed nothing."""

    def at_least(self, *, memory_mb: int, processes: int, disk_mb: int) -> Limits:
        """Return these limits, raised to what a tool chain takes."""
        return replace(
            self,
            memory_mb=max(self.memory_mb, memory_mb),
            processes=max(self.processes, processes),
            disk_mb=max(self.disk_mb, disk_mb),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One program to run in a sandbox."""

    argv: tuple[str, ...]
    python: Path
    """The interpreter, by its path where sandboxes run. Its installation (prefix, base prefix, site-packages) is visible
    read-only in the sandbox."""
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to a minimal environment; nothing of the host's environment is passed on."""
    limits: Limits = field(default_factory=Limits)
    read_back: bool = False
    """Return what the command changed in the tree (`ExecResult.changes`)."""


class Ending(StrEnum):
    """How a command ended. Only `EXITED` says anything about the program's own verdict."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    """Wall-clock or CPU limit."""
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    """Wrote more than the disk limit or its own file-size limit."""
    KILLED = "killed"
    """Died of a signal that no limit explains."""


def signal_name(number: int) -> str:
    """Return a signal's name; most real-time ones have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """The result of one command."""

    ending: Ending
    returncode: int
    """Exit status; negative for a signal."""
    stdout: bytes
    stderr: bytes
    channel: bytes
    """Bytes the program wrote to the private result channel, whose file descriptor is in `COMPOSER_RESULT_FD`."""
    wall_s: float
    cpu_s: float
    changes: Mapping[str, bytes | None] | None = None
    """With `Command.read_back`: every file that now differs from the tree's base, as the next `Tree.changes`."""
    not_kept: tuple[str, ...] = ()
    """With `Command.read_back`: what is missing from `changes`, as `path (reason)`: links, devices, or everything when it is too
    much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The actual separation of sandbox and host, shown in terminal and report."""

    name: str
    """The kind it was opened as, e.g. `namespaces`, `docker:IMAGE` or `remote:URL`."""
    network: str
    files: str
    user: str
    limits: str
    """Enforcement of process, memory, time and disk limits, e.g. `cgroup v1 (memory, pids), rlimits, tmpfs 256 MB`."""
    missing: tuple[str, ...] = ()
    """Protections that the kind does not have, or this machine does not allow, one phrase each."""

    def summary(self) -> str:
        """Return one line for people."""
        lacking = f"; NOT enforced: {', '.join(self.missing)}" if self.missing else ""
        return f"{self.name}: {self.network}; {self.files}; {self.user}; {self.limits}{lacking}"


@dataclass(frozen=True, slots=True)
class Installation:
    """An interpreter's place on the machine where sandboxes run."""

    binds: tuple[str, ...]
    """Folders and files of this machine that sandboxes see read-only besides the system's: prefix, base prefix, and folders that
    links to it pass through."""
    masks: tuple[str, ...]
    """Folders in them and in /usr to be shown empty: this package, and packages of other interpreters."""
    pytest_plugins: tuple[tuple[str, str], ...]
    """Installed pytest plugins: (name, module)."""
    version: tuple[int, int]
    modules: frozenset[str]
    """Names of the top-level modules it can import."""


@runtime_checkable
class Sandbox(Protocol):
    """Runs commands, each in a fresh sandbox. Safe to call from several threads at once."""

    @property
    def isolation(self) -> Isolation: ...

    @property
    def cpu_s(self) -> float:
        """Sum of `ExecResult.cpu_s` over the ended sandboxes; the clock of this process misses them."""
        ...

    def run(self, tree: Tree, command: Command) -> ExecResult:
        """Run `command` over a private, disposable copy of `tree`.

        Raises:
            SandboxError: the sandbox itself could not be set up or broke; says nothing about the program.
        """
        ...

    def installation(self, python: Path) -> Installation:
        """Return the installation behind `python` (a virtual environment's interpreter or a plain one) on the machine of the
        sandboxes.

        Raises:
            TaskError: it is not there or does not run.
            SandboxError: it did not answer in time, which says more about the machine than about it.
        """
        ...
