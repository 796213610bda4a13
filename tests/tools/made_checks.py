"""Checks for the tests of `make gpu-check`, each of which ends in another way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from gpu_checks.found import Found, SkippedError, need

HANGS = "a process that check_hangs started"


def passes(device: torch.device, folder: Path) -> Found:
    found = Found()
    found.note("device", str(device))
    found.at_most("error", 1e-6, 1e-4)
    found.at_most("share", 0.5, 0.9)
    (folder / "left").write_text("something")
    return found


def is_wrong(device: torch.device, folder: Path) -> Found:
    found = Found()
    found.at_most("small", 1e-6, 1e-4)
    found.at_most("error", 0.25, 1e-4)
    found.at_most("not a number", float("nan"), 1.0)
    found.holds("two is three", 2 == 3)
    return found


def raises(device: torch.device, folder: Path) -> Found:
    try:
        raise ValueError("something is broken")
    finally:
        print("said on the way out", file=sys.stderr)


def ends_quietly(device: torch.device, folder: Path) -> Found:
    os._exit(3)


def is_killed(device: torch.device, folder: Path) -> Found:
    os.kill(os.getpid(), signal.SIGKILL)
    return Found()


def hangs(device: torch.device, folder: Path) -> Found:
    subprocess.Popen([sys.executable, "-c", "import sys, time; time.sleep(600)", HANGS, str(folder)])
    time.sleep(600)
    return Found()


def is_skipped(device: torch.device, folder: Path) -> Found:
    need("no_such_module", "nothing has it")
    return Found()


def is_skipped_aloud(device: torch.device, folder: Path) -> Found:
    raise SkippedError("there is no such device")
