"""What the prepared world holds, and `composer` as a process of its own, on one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

COMPOSER = [sys.executable, "-c", "from composer_replication.cli import main; main()"]


@dataclass(frozen=True)
class World:
    """Folders of tasks and of a barely trained policy."""

    tasks: Path
    held_out: Path
    policy: Path


def composer(*words: str, cwd: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"}
    return subprocess.Popen(
        [*COMPOSER, *words], cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(*words: str, cwd: Path) -> str:
    process = composer(*words, cwd=cwd)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output
