"""Run everything that needs a GPU, each check in a separate process: on a CUDA device if there is one, else small on the CPU.

A check passes, fails with a reason, or is skipped with what is missing. `--write FOLDER` writes `gpu_check.json` there, or
`gpu_check_cpu.json` on a CPU. The last line is JSON; the exit status is 1 when a check failed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from gpu_checks.catalogue import CHECKS
from gpu_checks.runner import Check, Outcome, run_check
from rich.console import Console
from rich.table import Table

_COLOURS = {"passed": "green", "failed": "red", "skipped": "yellow"}


def main() -> None:
    """Run the checks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CHECK", help=f"of: {', '.join(repr(check.name) for check in CHECKS)}")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="keep the figures in this folder")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in {check.name for check in CHECKS}]:
        parser.error(f"no such check: {', '.join(unknown)}")
    device = _device(asked.device)
    wanted = [check for check in CHECKS if check.name in asked.names or not asked.names]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="composer-gpu-check-", ignore_cleanup_errors=True) as work:
        outcomes = run_all(wanted, device, Path(work))
    found: dict[str, Any] = {"device": _named(device), "torch": torch.__version__, "transformers": transformers.__version__}
    found |= {"python": platform.python_version(), "seconds": round(time.monotonic() - began, 1)}
    if asked.write:
        asked.write.mkdir(parents=True, exist_ok=True)
        name = "gpu_check.json" if device == "cuda" else "gpu_check_cpu.json"
        whole = {**found, **summary(outcomes), "checks": [asdict(outcome) for outcome in outcomes]}
        (asked.write / name).write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
    Console(width=150).print(table(outcomes))
    print(json.dumps({"bench": "gpu_check", **found, **summary(outcomes)}), flush=True)
    raise SystemExit(any(outcome.state == "failed" for outcome in outcomes))


def run_all(checks: Sequence[Check], device: str, work: Path) -> list[Outcome]:
    """Run checks one after the other, and say how each ended."""
    outcomes = []
    for number, check in enumerate(checks):
        outcome = run_check(check, device, work / str(number))
        print(f"{outcome.state:7s} {check.name} ({outcome.seconds:.0f} s){outcome.reason and ': ' + outcome.reason}", flush=True)
        print("".join(f"        {line}\n" for line in outcome.limited()), end="", flush=True)
        outcomes.append(outcome)
    return outcomes


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return whether no check failed, and how many ended in each way."""
    ended = {state: [outcome.name for outcome in outcomes if outcome.state == state] for state in _COLOURS}
    return {
        "passed": not ended["failed"],
        "checks_passed": len(ended["passed"]),
        "failed": len(ended["failed"]),
        "failed_names": ended["failed"],
        "skipped": len(ended["skipped"]),
        "skipped_names": ended["skipped"],
    }


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return what is shown at the end: of every check the figure that is nearest to its limit, or why there is none."""
    shown = Table("check", "", "s", "peak MB", "reason, or the figure nearest to its limit")
    for outcome in outcomes:
        peak = "" if outcome.peak_mb is None else f"{outcome.peak_mb:.0f}"
        state = f"[{_COLOURS[outcome.state]}]{outcome.state}[/]"
        shown.add_row(outcome.name, state, f"{outcome.seconds:.1f}", peak, outcome.reason or _nearest(outcome))
    return shown


def _nearest(outcome: Outcome) -> str:
    return next(iter(outcome.limited()), f"{len(outcome.figures)} figures without limits")


def _device(asked: str) -> str:
    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        sys.exit(f"torch {torch.__version__} finds no CUDA device: leave --device out to run the checks small on the CPU")
    if not there:
        print(f"torch {torch.__version__} finds no CUDA device: the same checks run small on the CPU", flush=True)
    return "cuda" if there and asked != "cpu" else "cpu"


def _named(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"CPU, {platform.machine()}"


if __name__ == "__main__":
    main()
