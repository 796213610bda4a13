"""Control groups where this machine allows them: memory and process count of a whole sandbox, and why a process was killed.

Version 1 (one hierarchy per controller) and version 2 (one tree) are both found by trying: a group counts as usable only
when one could be made, limited and removed. Documents: kernel `admin-guide/cgroup-v1` and `admin-guide/cgroup-v2.rst`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

from composer_replication.sandbox.protocol import Limits

_PREFIX = "composer-box-"
_COUNTER_BYTES = 4096
USUAL = (Limits().memory_mb + Limits().disk_mb, Limits().processes)
"""MB of memory and processes: set when a group is made, which is before its command is known."""
_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class UsageMeter:
    """Descriptors of a group's counters."""

    memory: int
    cpu: int | None

    def oom_killed(self) -> bool:
        """Return whether the kernel killed a process of the sandbox because of the sandbox's limit."""
        fields = _fields(self.memory)
        return fields.get("oom_kill", 0) > 0 and fields.get("oom", 1) > 0

    def killed_for_the_machine(self) -> bool:
        """Return whether it killed one because the machine had no memory left, where the group tells: one of version 2 counts
        how often its own limit was reached."""
        fields = _fields(self.memory)
        return fields.get("oom_kill", 0) > 0 and fields.get("oom", 1) == 0

    def cpu_s(self) -> float | None:
        """Return the CPU seconds of all processes of the sandbox, or None where they are not counted."""
        if self.cpu is None:
            return None
        words = os.pread(self.cpu, _COUNTER_BYTES, 0).split()
        return int(words[1]) / 1e6 if words[0] == b"usage_usec" else int(words[0]) / 1e9


@dataclass(frozen=True, slots=True)
class Cgroups:
    """A control group in each hierarchy: those of one sandbox, or those in which such are made."""

    version: int
    memory: Path
    pids: Path
    cpu: Path | None

    def as_plain(self) -> tuple[int, str, str, str | None]:
        """Return plain data for another process; `from_plain` restores it."""
        return self.version, str(self.memory), str(self.pids), None if self.cpu is None else str(self.cpu)

    @classmethod
    def from_plain(cls, version: int, memory: str, pids: str, cpu: str | None) -> Cgroups:
        """Invert `as_plain`."""
        return cls(version, Path(memory), Path(pids), None if cpu is None else Path(cpu))

    @property
    def folders(self) -> tuple[Path, ...]:
        """Their folders, once each."""
        return tuple(dict.fromkeys(p for p in (self.memory, self.pids, self.cpu) if p is not None))

    @property
    def description(self) -> str:
        """Description for `Isolation.limits`."""
        return f"cgroup v{self.version} (memory, pids)"

    @property
    def procs(self) -> list[str]:
        """Files through which a process enters."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def limit(self, memory_mb: int, processes: int) -> None:
        """Set the limits. Raises OSError."""
        limit = str(memory_mb << 20)
        if self.version == 2:
            (self.memory / "memory.max").write_text(limit)
            _write_if_there(self.memory / "memory.swap.max", "0")
        else:
            _write_if_there(self.memory / "memory.memsw.limit_in_bytes", "-1")  # which no other limit may exceed
            (self.memory / "memory.limit_in_bytes").write_text(limit)
            _write_if_there(self.memory / "memory.memsw.limit_in_bytes", limit)
        (self.pids / "pids.max").write_text(str(processes))

    def meter(self) -> UsageMeter:
        """Return a reader of the counters that works even when the folders are out of sight. Raises OSError."""
        if self.version == 2:
            return UsageMeter(_opened(self.memory / "memory.events"), _opened(self.memory / "cpu.stat"))
        return UsageMeter(
            _opened(self.memory / "memory.oom_control"), None if self.cpu is None else _opened(self.cpu / "cpuacct.usage")
        )

    def close(self) -> None:
        """Remove the groups; the kernel may need a moment after the last process has gone."""
        for folder in self.folders:
            for _ in range(200):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.005)
                else:
                    break

    def below(self, name: str) -> Cgroups:
        """Return the groups of that name in these, which may not be there."""
        return Cgroups(self.version, self.memory / name, self.pids / name, None if self.cpu is None else self.cpu / name)

    def create(self, owner: int) -> Cgroups:
        """Make fresh groups for one sandbox of the host process `owner`, with the usual limits. Raises OSError."""
        names = (f"{_PREFIX}{owner}-{os.getpid()}-{number}" for number in _counter)
        # a maker that was killed may have left a group with its counts, and this process may have got its number
        name = next(name for name in names if not any((folder / name).exists() for folder in self.folders))
        box = self.below(name)
        try:
            for folder in box.folders:
                folder.mkdir()
            box.limit(*USUAL)
        except OSError:
            box.close()
            raise
        return box

    def remove_of(self, owner: int, maker: int) -> None:
        """Remove the groups that an ended process made for the sandboxes of `owner`."""
        for memory in self.memory.glob(f"{_PREFIX}{owner}-{maker}-*"):
            self.below(memory.name).close()

    def sweep(self) -> None:
        """Remove groups whose owner or maker died before it could."""
        for folder in self.folders:
            for group in folder.glob(f"{_PREFIX}*"):
                if not all(Path("/proc", pid).exists() for pid in group.name.removeprefix(_PREFIX).split("-")[:2]):
                    with contextlib.suppress(OSError):
                        group.rmdir()


def find_cgroups(mountinfo: str | None = None, own: str | None = None) -> Cgroups | None:
    """Return the groups this process may make, or None. The arguments default to /proc/self/mountinfo and /proc/self/cgroup."""
    mountinfo = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    own = Path("/proc/self/cgroup").read_text() if own is None else own
    hierarchies = _hierarchies(mountinfo, own)
    for candidate in _candidates(hierarchies):
        try:
            candidate.create(os.getpid()).close()
        except OSError:
            continue
        candidate.sweep()
        return candidate
    return None


def _candidates(hierarchies: dict[str, tuple[Path, Path]]) -> list[Cgroups]:
    """Return candidates, best first. Version 2: the nearest ancestor (own group included) that hands memory and pids down to its
    children."""
    found = []
    if "" in hierarchies:
        top, own = hierarchies[""]
        for folder in (own, *own.parents):
            with contextlib.suppress(OSError):
                if {"memory", "pids"} <= set((folder / "cgroup.subtree_control").read_text().split()):
                    found.append(Cgroups(2, folder, folder, None))
            if folder == top:
                break
    if "memory" in hierarchies and "pids" in hierarchies:
        cpu = hierarchies["cpuacct"][1] if "cpuacct" in hierarchies else None
        found.append(Cgroups(1, hierarchies["memory"][1], hierarchies["pids"][1], cpu))
    return found


def _hierarchies(mountinfo: str, own: str) -> dict[str, tuple[Path, Path]]:
    """Map each controller ('' for version 2) to (mount point, folder of this process's own group below it).

    Of several mount points the first counts: later ones belong to containers and chroots, and go when those go.
    """
    paths: dict[str, str] = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    found: dict[str, tuple[Path, Path]] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        root, point = left.split()[3:5]
        kind, _, options = right.split(" ", 2)
        names = [""] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in names:
            if name in paths and found.get(name, (Path(point),))[0] == Path(point):
                inside = os.path.relpath(paths[name], root)
                folder = Path(point) if inside.startswith("..") else Path(point) / inside
                found[name] = (Path(point), folder)
    return found


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _fields(fd: int) -> dict[str, int]:
    """Parse a flat keyed file."""
    pairs = (line.split() for line in os.pread(fd, _COUNTER_BYTES, 0).decode().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _write_if_there(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)
