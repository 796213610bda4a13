"""What a box costs: its start with a writable copy of a repository, and graded rollouts per second.

The pool is the launcher every sandbox forks its boxes from; without it a box is started cold, as one would by hand: `unshare`
makes the overlay on a tmpfs and `bwrap` the rest. All contestants take turns in one run, so that a busy machine is fair to all.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measuring import Samples, emit, interleave, ratio

from composer_replication.sandbox import Command, Ending, ExecResult, Installation, Isolation, Sandbox, Tree, open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.sandbox.interpreter import installation_of
from composer_replication.sandbox.opening import available
from composer_replication.types import Deletion, TaskSpec

STARTS, PAUSE_S = 200, 0.05
BLOCKS, GRADED_PER_BLOCK = 5, 16
MOST_OF_COLD = 0.5
"""More of the cold start's median wall time than this is a failure of `namespaces`."""
PYTHON = Path(sys.executable)
NOTHING = ("/usr/bin/true",)
OVERLAY = (
    "mount -t tmpfs -o size=256m tmpfs /mnt && mkdir /mnt/u /mnt/w /mnt/m && "
    "mount -t overlay overlay -o lowerdir={base},upperdir=/mnt/u,workdir=/mnt/w /mnt/m && exec "
)
SOURCE = "def total(prices):\n    raise NotImplementedError\n\n\ndef count(prices):\n    return len(prices)\n"
SOLVED = SOURCE.replace("raise NotImplementedError", "return sum(prices)")
TESTS = (
    "from shop import count, total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n\n\n"
    "def test_count():\n    assert count([5]) == 1\n"
)


class ColdBubblewrap:
    """The same box without a launcher: two programs started for every command."""

    isolation = Isolation(name="cold", network="none", files="overlay", user="uid 65534", limits="none")
    cpu_s = 0.0

    def installation(self, python: Path) -> Installation:
        return installation_of(python)

    def run(self, tree: Tree, command: Command) -> ExecResult:
        box = ["bwrap", "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
        box += ["--die-with-parent", "--new-session", "--clearenv", "--ro-bind", "/usr", "/usr"]
        box += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            if os.path.islink(f"/{name}"):
                box += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        for path in installation_of(command.python).binds:
            box += ["--ro-bind", path, path]
        box += ["--bind", "/mnt/m", "/repo", "--chdir", "/repo"]
        for name, value in command.env.items():
            box += ["--setenv", name, value]
        overlay = OVERLAY.format(base=shlex.quote(str(tree.base)))
        writes = "".join(
            f"printf %s {shlex.quote((content or b'').decode())} > /mnt/m/{path} && " for path, content in tree.changes.items()
        )
        before, after = overlay.rsplit("exec ", 1)
        started = time.monotonic()
        channel, channel_end = os.pipe()
        box += ["--setenv", "COMPOSER_RESULT_FD", str(channel_end), "--", *command.argv]
        script = f'{before}{writes}exec{after} "$@"'
        process = subprocess.Popen(
            ["unshare", "-Urm", "sh", "-c", script, "sh", *box],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[channel_end],
        )
        os.close(channel_end)
        stdout, stderr = process.communicate(command.stdin)
        with open(channel, "rb") as file:
            answer = file.read()
        return ExecResult(
            ending=Ending.EXITED,
            returncode=process.returncode,
            stdout=stdout,
            stderr=stderr,
            channel=answer,
            wall_s=time.monotonic() - started,
            cpu_s=0.0,
        )


def starting(sandbox: Sandbox, tree: Tree) -> Callable[[], float]:
    """A contestant: a command that does nothing, in a box of its own; returns the CPU seconds that the box measured."""

    def run() -> float:
        result = sandbox.run(tree, Command(argv=NOTHING, python=PYTHON))
        if result.ending is not Ending.EXITED or result.returncode != 0:
            raise RuntimeError(f"the box's command ended with {result.ending}: {result.stderr.decode(errors='replace')}")
        return result.cpu_s

    return run


def graded_per_s(sandboxes: dict[str, Sandbox], folder: Path) -> dict[str, float]:
    """Solutions graded per second by as many threads as there are cores, in blocks that take turns."""
    (folder / "tests").mkdir()
    (folder / "shop.py").write_text(SOURCE)
    (folder / "tests" / "test_shop.py").write_text(TESTS)
    task = TaskSpec(
        task_id="shop/total",
        source="benchmark",
        source_digest="0" * 64,
        instruction="Bring back total.",
        deleted=(Deletion(path="shop.py", qualname="total", lines=1),),
        fail_to_pass=("tests/test_shop.py::test_total",),
        pass_to_pass=("tests/test_shop.py::test_count",),
        editable=("shop.py",),
        test_timeout_s=60.0,
    )
    cores = len(os.sched_getaffinity(0))
    seconds = dict.fromkeys(sandboxes, 0.0)

    def one(sandbox: Sandbox) -> None:
        report = grade(task, folder, {"shop.py": SOLVED.encode()}, sandbox=sandbox, python=PYTHON)
        if report.reward != 1.0:
            raise RuntimeError(f"{sandbox.isolation.name}: the solution was not rewarded: {report.reasons}")

    with ThreadPoolExecutor(cores) as threads:
        for sandbox in sandboxes.values():
            one(sandbox)
        for _ in range(BLOCKS):
            for name, sandbox in sandboxes.items():
                started = time.perf_counter()
                list(threads.map(one, [sandbox] * GRADED_PER_BLOCK))
                seconds[name] += time.perf_counter() - started
    return {name: round(BLOCKS * GRADED_PER_BLOCK / taken, 2) for name, taken in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="keep the figures in this file")
    write = parser.parse_args().write
    boxes: dict[str, Sandbox] = {kind: open_sandbox(kind) for kind in available()}
    cold: dict[str, Sandbox] = {"cold": ColdBubblewrap()} if shutil.which("bwrap") and "namespaces" in boxes else {}
    if not cold:
        print("NOT MEASURED: a cold start (bwrap is not installed, or user namespaces are refused)")
    with tempfile.TemporaryDirectory() as top:
        base = Path(top, "base")
        base.mkdir()
        for number in range(50):
            (base / f"module_{number}.py").write_text("x = 1\n" * 100)
        tree = Tree(base=base, changes={"module_0.py": b"x = 2\n"})
        samples: dict[str, Samples] = interleave(
            {name: starting(box, tree) for name, box in {**boxes, **cold}.items()}, STARTS, pause_s=PAUSE_S
        )
        project = Path(top, "project")
        project.mkdir()
        strongest = open_sandbox()
        graded = graded_per_s({strongest.isolation.name: strongest, **cold}, project)
    starts = {name: measured.figures() for name, measured in samples.items()}
    for name, figures in starts.items():
        print(f"{name:12s} {figures}  {boxes[name].isolation.summary() if name in boxes else 'unshare + bwrap, started anew'}")
    print(f"graded rollouts per second: {graded}")
    over_cold = {kind: ratio(samples, kind, "cold") for kind in boxes} if cold else {}
    passed = bool(over_cold) and over_cold["namespaces"]["wall"] <= MOST_OF_COLD
    measured = {"start": starts, "over_cold": over_cold, "graded_per_s": graded, "starts": STARTS}
    emit("sandbox", {**measured, "most_of_cold": MOST_OF_COLD, "passed": passed}, write)
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
