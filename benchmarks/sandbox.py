"""What a box costs: a Python that does nothing, started in each sandbox this machine allows and as a plain subprocess.

CPU time of a box is that of this process, of the launcher and of the command; the box's supervisor is reaped by the kernel
without leaving its times, so its system calls (mounts, namespaces) show in the wall time only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from measuring import emit, interleave, ratio

from composer_replication.sandbox import Command, Ending, Sandbox, SandboxKind, Tree, open_sandbox
from composer_replication.sandbox.opening import available

REPEATS = 100
PYTHON = Path(sys.executable)
ARGV = (str(PYTHON), "-I", "-S", "-B", "-c", "pass")


def boxed(sandbox: Sandbox, tree: Tree) -> Callable[[], float]:
    """A contestant: one command in a box of its own, which returns the CPU seconds that the box measured."""

    def run() -> float:
        result = sandbox.run(tree, Command(argv=ARGV, python=PYTHON))
        if result.ending is not Ending.EXITED or result.returncode != 0:
            raise RuntimeError(f"the box's command ended with {result.ending}: {result.stderr.decode(errors='replace')}")
        return result.cpu_s

    return run


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(50):
            Path(folder, f"module_{number}.py").write_text("x = 1\n" * 100)
        tree = Tree(base=Path(folder), changes={"module_0.py": b"x = 2\n", "module_1.py": None})

        def plain() -> float:
            subprocess.run(ARGV, check=True, cwd=folder, capture_output=True)
            return 0.0

        kinds: tuple[SandboxKind, ...] = available()
        sandboxes = {kind: open_sandbox(kind) for kind in kinds}
        contestants = {"plain": plain} | {kind: boxed(sandbox, tree) for kind, sandbox in sandboxes.items()}
        samples = interleave(contestants, REPEATS)
    figures = {name: measured.figures() for name, measured in samples.items()}
    for name, values in figures.items():
        print(f"{name:12s} {values}  {sandboxes[name].isolation.summary() if name in sandboxes else 'no isolation'}")
    emit("sandbox", {**figures, "over_plain": {kind: ratio(samples, kind, "plain") for kind in kinds}, "repeats": REPEATS})


if __name__ == "__main__":
    main()
