"""What the benchmarks share: interleaved repetitions, wall and CPU time of a whole process tree, a process's peak of memory, one
line of JSON at the end."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def digest_of_code(files: Iterable[Path]) -> str:
    """Return a digest of the code that figures are of: files of this checkout, by path and content."""
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


@dataclass(slots=True)
class Samples:
    """Repeated measurements of one thing."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Median and 95th percentile of the wall time, mean CPU time, all in milliseconds."""
        ordered = sorted(self.wall_s)
        return {
            "wall_ms_p50": round(1e3 * statistics.median(ordered), 2),
            "wall_ms_p95": round(1e3 * ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 2),
            "cpu_ms_mean": round(1e3 * statistics.fmean(self.cpu_s), 2),
        }


class Peak:
    """The most memory this process holds at once, in `megabytes`, above what it held at the start: `VmHWM` reset at the start."""

    def __enter__(self) -> Peak:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.megabytes = (self._status("VmHWM") - self._before) / 1024

    @staticmethod
    def _status(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))


def family() -> dict[int, float]:
    """CPU seconds used so far by this process and each of its living descendants, with those of its own that were waited for."""
    table: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended while we looked
            spent = sum(int(value) for value in fields[11:15]) / os.sysconf("SC_CLK_TCK")
            table[int(entry.name)] = (int(fields[1]), spent)
    known = {os.getpid()}
    while grown := {pid for pid, (parent, _) in table.items() if parent in known} - known:
        known |= grown
    return {pid: table[pid][1] for pid in known if pid in table}


def cpu_seconds() -> float:
    """CPU seconds used so far by this process, its living descendants, and those of them that were waited for."""
    return sum(family().values())


def interleave(
    contestants: Mapping[str, Callable[[], float | None]], repeats: int, *, pause_s: float = 0.0
) -> dict[str, Samples]:
    """Run every contestant once to warm up, then all of them in turn, `repeats` times, so that a busy machine is fair to all.

    A contestant may return CPU seconds of processes that `cpu_seconds` cannot see; they are added. Before each
    run there is a pause, for what tidies up or prepares after a run.
    """
    samples = {name: Samples() for name in contestants}
    for run in contestants.values():
        run()
    for _ in range(repeats):
        for name, run in contestants.items():
            time.sleep(pause_s)
            cpu, wall = cpu_seconds(), time.perf_counter()
            unseen = run() or 0.0
            samples[name].wall_s.append(time.perf_counter() - wall)
            samples[name].cpu_s.append(cpu_seconds() - cpu + unseen)
    return samples


def ratio(samples: Mapping[str, Samples], one: str, other: str) -> dict[str, float]:
    """How many times longer `one` takes than `other`: medians of the wall time, totals of the CPU time."""
    wall = statistics.median(samples[one].wall_s) / statistics.median(samples[other].wall_s)
    return {"wall": round(wall, 3), "cpu": round(sum(samples[one].cpu_s) / max(sum(samples[other].cpu_s), 0.01), 3)}


def emit(name: str, figures: Mapping[str, Any], write: Path | None = None) -> None:
    """Print the benchmark's last line, and write the same to the file `write`."""
    result = {"bench": name, **figures, "cores": os.cpu_count(), "load_1min": round(os.getloadavg()[0], 2)}
    if write is not None:
        write.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", "utf-8")
    print(json.dumps(result), flush=True)
