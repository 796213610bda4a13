"""What the filter of system calls and the session keyring add to the start of a box: CPU time and wall time, with and without.

Each contestant is a process of its own. The contestants take turns in blocks, and a block is the life of one launcher: when the
launcher has ended, the kernel tells to the microsecond what it and all of its boxes have used, also those that were made ready
and got no command.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import emit

from composer_replication.sandbox import Command, Ending, Tree, open_sandbox
from composer_replication.sandbox.backends import box
from composer_replication.sandbox.opening import available

BLOCKS, STARTS = 60, 40
MOST_CPU_MS = 1.0
"""More CPU time per start than this is a failure."""
PYTHON = Path(sys.executable)
IMPORT = "from composer_replication.sandbox.backends import launcher\n"
BARE = """
from composer_replication.sandbox.backends import bubblewrap, linux, namespaces
linux.load_filter = linux.join_session_keyring = lambda *_: None
bubblewrap.filter_options = lambda: []
bubblewrap.KEY_LIST = namespaces.KEY_LIST = "/no/such/file"
"""
"""What a launcher runs first to make boxes without filter, keyring and hidden list of keys."""


def contestant(kind: str, mode: str) -> None:
    """Start boxes in blocks, one for each line of standard input, and print each block's figures as a line of JSON."""
    if mode == "bare":
        assert IMPORT in box.BOOTSTRAP
        box.BOOTSTRAP = box.BOOTSTRAP.replace(IMPORT, IMPORT + BARE)
    sandbox = open_sandbox(kind)
    assert isinstance(sandbox, box.BoxSandbox)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "module.py").write_text("x = 1\n")
        tree, command = Tree(base=Path(folder)), Command(argv=("/usr/bin/true",), python=PYTHON)
        sandbox.run(tree, command)
        filtered = sandbox.run(tree, Command(argv=("/bin/grep", "Seccomp:", "/proc/self/status"), python=PYTHON)).stdout.split()[
            1
        ]
        print(json.dumps({"filtered": filtered == b"2"}), flush=True)
        for _ in sys.stdin:
            walls, before = [], _cpu_s()
            fresh = sandbox.with_isolation(sandbox.isolation)  # starts a launcher of its own
            fresh.run(tree, command)
            for _ in range(STARTS):
                started = time.perf_counter()
                result = fresh.run(tree, command)
                walls.append(time.perf_counter() - started)
                if result.ending is not Ending.EXITED or result.returncode != 0:
                    raise RuntimeError(f"the box's command ended with {result.ending}")
            del fresh
            gc.collect()  # the launcher ends with its sandbox, and is waited for
            print(json.dumps({"wall_s": walls, "cpu_s": _cpu_s() - before}), flush=True)


def _cpu_s() -> float:
    """CPU seconds of this process and of all processes that were waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measured(kind: str) -> dict[str, Any]:
    """Run both contestants of a kind in turn."""
    modes = ("sealed", "bare")
    running = {
        mode: subprocess.Popen(
            [sys.executable, __file__, "--contestant", kind, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for mode in modes
    }

    def answer(mode: str) -> dict[str, Any]:
        stdout = running[mode].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the contestant {kind}, {mode}, ended")
        found: dict[str, Any] = json.loads(line)
        return found

    for mode in modes:
        if answer(mode)["filtered"] is not (mode == "sealed"):
            raise RuntimeError(f"{kind}: the boxes that are {mode} are not what they should be")
    walls: dict[str, list[float]] = {mode: [] for mode in modes}
    cpu: dict[str, list[float]] = {mode: [] for mode in modes}
    for number in range(BLOCKS):
        for mode in modes if number % 2 else reversed(modes):
            stdin = running[mode].stdin
            assert stdin is not None
            stdin.write("go\n")
            stdin.flush()
            block = answer(mode)
            walls[mode] += block["wall_s"]
            cpu[mode].append(1e3 * block["cpu_s"] / STARTS)
    for process in running.values():
        process.communicate()
    figures = {
        mode: {"wall_ms_p50": round(1e3 * statistics.median(walls[mode]), 2), "cpu_ms": round(statistics.fmean(cpu[mode]), 2)}
        for mode in modes
    }
    more = [one - other for one, other in zip(cpu["sealed"], cpu["bare"], strict=True)]
    return {
        **figures,
        "cpu_ms_more": round(statistics.median(more), 2),
        "cpu_ms_more_quartiles": [round(cut, 2) for cut in statistics.quantiles(more, n=4)],
        "wall_ms_more": round(figures["sealed"]["wall_ms_p50"] - figures["bare"]["wall_ms_p50"], 2),
    }


def main(write: Path | None) -> None:
    """Measure and print."""
    found = {}
    for kind in available():
        found[kind] = measured(kind)
        print(f"{kind:12s} {found[kind]}", flush=True)
    passed = all(figures["cpu_ms_more"] <= MOST_CPU_MS for figures in found.values())
    emit("sandbox_filter", {"kinds": found, "starts": BLOCKS * STARTS, "most_cpu_ms": MOST_CPU_MS, "passed": passed}, write)
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="keep the figures in this file")
    parser.add_argument(
        "--contestant", nargs=2, metavar=("KIND", "MODE"), help="start boxes for another process of this benchmark"
    )
    arguments = parser.parse_args()
    contestant(*arguments.contestant) if arguments.contestant else main(arguments.write)
