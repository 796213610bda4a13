"""Run each check in a separate process, so that one which crashes, hangs or runs out of memory ends nothing but itself."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from composer_replication.sandbox.program import RunningProgram

State: TypeAlias = Literal["passed", "failed", "skipped"]
_COMPLETE = "composer.stamp"
"""What `scripts/environments.py` writes into an environment last."""
RESULT, LOG = "result.json", "log"
_BENCHMARKS = Path(__file__).resolve().parent.parent
_EXCEPTION = re.compile(r"(?:\[rank\d+\]: )?[\w.]*(?:Error|Exception|Exit|Interrupt)\b")
_ON_CPU = 10.0
_PATIENCE_S = 2.0
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Check:
    """A check and the most seconds that it may take."""

    name: str
    function: str
    """`module:function`; see `CheckFunction`."""
    limit_s: float = 90.0
    """On a GPU; a CPU may be busy with other work, and gets `_ON_CPU` times as long."""
    environment: str | None = None
    """Run it by the interpreter of this environment of nox where that is complete: a path relative to the repository."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a check ended."""

    name: str
    state: State
    reason: str
    seconds: float
    peak_mb: float | None = None
    """Most memory: of a GPU what torch reserved of it, else of the whole process. None where the process did not live to tell."""
    figures: dict[str, float | str] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)

    def limited(self) -> list[str]:
        """Return the figures that have a limit as text, the one nearest to its limit first."""
        values = {name: float(self.figures[name]) for name in self.limits}
        nearest = sorted(values, key=lambda name: values[name] / (self.limits[name] or 1.0), reverse=True)
        return [f"{name} {values[name]:.2g} (at most {self.limits[name]:.2g})" for name in nearest]


def run_check(check: Check, device: str, folder: Path) -> Outcome:
    """Run a check in a new process, which leaves `LOG` in the new folder, and end all that it started."""
    folder.mkdir(parents=True)
    path = os.pathsep.join(filter(None, [str(_BENCHMARKS), os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    if device == "cpu":
        environment["OMP_NUM_THREADS"] = "1"  # tensors are so small that operations take longer on several
    command = [_interpreter(check), "-m", "gpu_checks.child", check.function, device, str(folder)]
    limit_s = check.limit_s * (_ON_CPU if device == "cpu" else 1.0)
    began = time.monotonic()
    with RunningProgram(command, log=folder / LOG, environment=environment, patience_s=_PATIENCE_S) as program:
        while (code := program.poll()) is None and time.monotonic() - began < limit_s:
            time.sleep(_LOOK_EVERY_S)
    seconds = round(time.monotonic() - began, 1)
    if code is None:
        return Outcome(check.name, "failed", f"it took more than {limit_s:g} s", seconds)
    if code == 0:
        return Outcome(check.name, seconds=seconds, **json.loads((folder / RESULT).read_text("utf-8")))
    if code > 128:
        why = f"it was ended by {signal.Signals(code - 128).name}"
        return Outcome(check.name, "failed", why + _perhaps_memory(code - 128), seconds)
    return Outcome(check.name, "failed", _said_last(folder / LOG) or f"it ended with status {code}", seconds)


def _interpreter(check: Check) -> str:
    home = None if check.environment is None else _BENCHMARKS.parent / check.environment
    return str(home / "bin" / "python") if home is not None and (home / _COMPLETE).exists() else sys.executable


def _perhaps_memory(number: int) -> str:
    return ", as the system does when memory runs out" if number == signal.SIGKILL else ""


def _said_last(log: Path) -> str:
    """Return the exception that ended a process, or else the last line that it printed."""
    lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    raised = [line for line in lines if _EXCEPTION.match(line)]
    return (raised or lines or [""])[-1][:300]
