"""What the prepared world holds, and `composer` as a process of its own, on one thread."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import tomli_w

# A job in the background of a shell ignores SIGINT, and its children with it: what is tested is a command at a terminal.
_AT_A_TERMINAL = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
COMPOSER = [sys.executable, "-c", _AT_A_TERMINAL + "from composer_replication.cli import main; main()"]


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


def name_teachers(run_file: Path, url: str, *, usd_per_million_output: float = 0.0, max_total_usd: float = 0.0) -> None:
    """Two teachers behind one endpoint, `one` and `other`."""
    prices = {"usd_per_million_input": 0.0, "usd_per_million_output": usd_per_million_output}
    rows = [{"name": name, "model": name, "base_url": url, "api_key_env": "", **prices} for name in ("one", "other")]
    replay = {"verify": False, "max_total_usd": max_total_usd}
    data = tomllib.loads(run_file.read_text()) | {"teachers": rows, "loss": {"replay": replay}}
    run_file.write_text(tomli_w.dumps(data))


def finish(*words: str, cwd: Path) -> str:
    process = composer(*words, cwd=cwd)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output
