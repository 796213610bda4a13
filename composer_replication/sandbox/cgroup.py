"""Control groups where the machine lets us make them: memory and process count of a whole box, and why a process was killed.

Version 1 (one hierarchy per controller) and version 2 (one tree) are both found by trying: a group counts as usable only
when one could be made, limited and removed. Documents: kernel `admin-guide/cgroup-v1` and `admin-guide/cgroup-v2.rst`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BoxGroup", "Cgroups", "find_cgroups"]

_PREFIX = "composer-box-"
_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class BoxGroup:
    """The groups of one box; `close` removes them."""

    memory: Path
    pids: Path
    cpu: Path | None
    version: int

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder made, once each."""
        return tuple(dict.fromkeys(p for p in (self.memory, self.pids, self.cpu) if p is not None))

    @property
    def procs(self) -> list[str]:
        """Files through which a process enters."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def oom_killed(self) -> bool:
        """Whether the kernel killed a process of the box for memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return _fields(self.memory / name).get("oom_kill", 0) > 0

    def cpu_s(self) -> float | None:
        """CPU seconds of all processes of the box, or None where nobody counts them."""
        if self.version == 2:
            return _fields(self.memory / "cpu.stat").get("usage_usec", 0) / 1e6
        return None if self.cpu is None else int((self.cpu / "cpuacct.usage").read_text()) / 1e9

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


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where new groups are made."""

    version: int
    memory: Path
    pids: Path
    cpu: Path | None

    @property
    def description(self) -> str:
        """For `Isolation.limits`."""
        return f"cgroup v{self.version} (memory, pids)"

    def create(self, *, memory_mb: int, processes: int) -> BoxGroup:
        """A fresh group for one box. Raises OSError."""
        name = f"{_PREFIX}{os.getpid()}-{threading.get_native_id()}-{next(_counter)}"
        cpu = None if self.cpu is None else self.cpu / name
        box = BoxGroup(self.memory / name, self.pids / name, cpu, self.version)
        try:
            for folder in box.folders:
                folder.mkdir()
            limit = str(memory_mb << 20)
            if self.version == 2:
                (box.memory / "memory.max").write_text(limit)
                _write_if_there(box.memory / "memory.swap.max", "0")
            else:
                (box.memory / "memory.limit_in_bytes").write_text(limit)
                _write_if_there(box.memory / "memory.memsw.limit_in_bytes", limit)
            (box.pids / "pids.max").write_text(str(processes))
        except OSError:
            box.close()
            raise
        return box


def find_cgroups(mountinfo: str | None = None, own: str | None = None) -> Cgroups | None:
    """The groups this process may make, or None. The arguments default to /proc/self/mountinfo and /proc/self/cgroup."""
    mountinfo = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    own = Path("/proc/self/cgroup").read_text() if own is None else own
    hierarchies = _hierarchies(mountinfo, own)
    for candidate in _candidates(hierarchies):
        try:
            candidate.create(memory_mb=64, processes=8).close()
        except OSError:
            continue
        for folder in (candidate.memory, candidate.pids, candidate.cpu):
            if folder is not None:
                _sweep(folder)
        return candidate
    return None


def _sweep(folder: Path) -> None:
    """Remove groups whose maker died before it could."""
    for group in folder.glob(f"{_PREFIX}*"):
        maker = group.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", maker).exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def _candidates(hierarchies: dict[str, tuple[Path, Path]]) -> list[Cgroups]:
    """Best first. Version 2: the nearest ancestor (own group included) that hands memory and pids down to its children."""
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
    """Controller ('' for version 2) -> (mount point, folder of this process's own group below it)."""
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
            if name in paths:
                inside = os.path.relpath(paths[name], root)
                folder = Path(point) if inside.startswith("..") else Path(point) / inside
                found[name] = (Path(point), folder)
    return found


def _fields(path: Path) -> dict[str, int]:
    """A flat keyed file; empty when it is gone."""
    try:
        text = path.read_text()
    except OSError:
        return {}
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _write_if_there(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)
