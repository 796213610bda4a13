"""Rollouts of agents that crash, hang, flood and try everything, and a count of what they leave behind.

Usage: `python tests/tools/soak.py [ROLLOUTS]`. Prints the counts before and after, then one line of JSON; exits with 1 when
anything is left: a process, mount, control group, temporary file, open descriptor, or memory that grows with the rollouts.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from composer_replication.envs import CodingEnv
from composer_replication.sandbox import Limits, Sandbox, open_sandbox
from composer_replication.sandbox.backends.cgroup import find_cgroups
from composer_replication.sandbox.backends.linux import set_subreaper
from composer_replication.types import Deletion, TaskSpec, ToolCall, Unscored

ROLLOUTS, WARM_UP, THREADS = 1000, 40, 4
MEMORY_MB = 32
"""How much this process and its launchers may grow: their allocators' slack, however many rollouts there are."""
LIMITS = Limits(wall_s=2.0, cpu_s=2.0, memory_mb=128, processes=16, disk_mb=8)

CRASHES = (
    "kill -SEGV $$",
    "python -c 'import os; os.abort()'",
    "kill -9 -1",
    "printf 'import os\\nos._exit(3)\\n' > shop/__init__.py",
    "echo 'import ctypes; ctypes.string_at(0)' > shop/basket.py",
    "rm -rf . 2>/dev/null; false",
)
LOOPS = (
    "while :; do :; done",
    "sleep 600",
    ":(){ :|:& };:",
    "(setsid sh -c 'while :; do echo x > left; done' &); (setsid sleep 600 &)",
    "echo 'while True: pass' > shop/basket.py",
    "trap '' TERM XCPU INT; while :; do :; done",
)
FLOODS = (
    "yes | head -c 30000000",
    "yes >&2 | head -c 30000000; yes | head -c 30000000 >&2",
    "dd if=/dev/zero of=fill bs=1M count=64",
    "for i in $(seq 3000); do : > f$i; done",
    "python -S -c 'x = [bytearray(8 << 20) for _ in range(64)]'",
    "ln -s /etc/passwd l; mkfifo p; mkdir -p a/b/c/d",
    "echo 'x = [bytearray(8 << 20) for _ in range(64)]' > shop/basket.py",
)
RANDOM = ("ls -R", "cat shop/basket.py", "python -c 'import shop.basket'", "git init -q . ; git status", "cd / && ls", "exit 7")


@dataclass(frozen=True)
class FolderTask:
    spec: TaskSpec
    repo: Path


def make_task(top: Path) -> FolderTask:
    repo = top / "repo"
    for path, text in {
        "shop/__init__.py": "",
        "shop/basket.py": "def total(prices):\n    raise NotImplementedError\n",
        "tests/test_basket.py": "from shop.basket import total\n\ndef test_total():\n    assert total([1, 2]) == 3\n",
    }.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(text)
    spec = TaskSpec(
        task_id="shop/total",
        source="soak",
        source_digest="0" * 64,
        instruction="Bring back total.",
        deleted=(Deletion(path="shop/basket.py", qualname="total", lines=1),),
        fail_to_pass=("tests/test_basket.py::test_total",),
        pass_to_pass=(),
        editable=("shop/**/*.py",),
        test_timeout_s=LIMITS.wall_s,
    )
    return FolderTask(spec, repo)


def calls(number: int) -> Iterator[ToolCall]:
    """The calls of one rollout, the same for the same number."""
    rng = random.Random(number)
    kind = (CRASHES, LOOPS, FLOODS, RANDOM)[number % 4]
    for turn in range(2):
        yield ToolCall(call_id=str(turn), name="bash", arguments={"command": rng.choice(kind)})
    name = rng.choice(["run_tests", "list_files", "apply_patch", "no_such_tool", "write_file"])
    arguments = (
        {"path": "shop/basket.py", "content": "\0" * 9}
        if name == "write_file"
        else {"patch": "x"}
        if name == "apply_patch"
        else {}
    )
    yield ToolCall(call_id="2", name=name, arguments=arguments)


def rollout(number: int, task: FolderTask, sandbox: Sandbox) -> str:
    """Play one rollout; a grade as a word."""
    env = CodingEnv(task, sandbox=sandbox, python=Path(sys.executable), limits=LIMITS, toolset="shell")
    env.reset()
    for call in calls(number):
        env.step(call)
    reward = env.fork().grade().reward
    return "unscored" if isinstance(reward, Unscored) else f"reward {reward:g}"


def counts() -> dict[str, int]:
    """What there is now of all that could be left."""
    gc.collect()
    bury_orphans()
    family = descendants()
    groups = find_cgroups()
    folders = {groups.memory, groups.pids, groups.cpu} - {None} if groups else set()
    resident = sum(resident_mb(pid) for pid in (os.getpid(), *family))
    return {
        "processes": len(family),
        "mounts": Path("/proc/self/mountinfo").read_text().count(f" {os.path.realpath(tempfile.gettempdir())}/"),
        "control groups": sum(len(list(folder.glob(f"composer-box-{os.getpid()}-*"))) for folder in folders),
        "temporary files": sum(len(files) + len(names) for _, names, files in os.walk(tempfile.gettempdir())),
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), *family)),
        "memory (MB)": resident,
    }


def bury_orphans() -> None:
    """Wait for what ended after its parent had: `set_subreaper` made it a child of this process."""
    for pid in descendants():
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:  # another's child, who waits for it
            continue


def descendants() -> list[int]:
    """Processes below this one; after `set_subreaper` also those whose parents have ended."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    family = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return sorted(family - {os.getpid()})


def resident_mb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def settled(before: dict[str, int] | None = None) -> dict[str, int]:
    """The counts once the launchers have buried the last boxes: twice the same, or as before."""
    last: dict[str, int] = {}
    now = last
    for _ in range(200):
        time.sleep(0.05)
        try:
            now = counts()
        except (FileNotFoundError, ProcessLookupError):  # of a process that has ended since it was listed
            continue
        if now == last and (before is None or not left_over(before, now)):
            break
        last = now
    return now


def left_over(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    growth = {name: after[name] - before[name] for name in before}
    return {name: more for name, more in growth.items() if more > (MEMORY_MB if name.startswith("memory") else 0)}


def main(rollouts: int) -> int:
    started = time.monotonic()
    set_subreaper()
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        task = make_task(Path(top))
        os.environ["TMPDIR"] = tempfile.tempdir = str(Path(top, "temporary"))
        os.mkdir(tempfile.tempdir, 0o755)
        sandbox = open_sandbox()
        print(sandbox.isolation.summary())
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda n: rollout(n, task, sandbox), range(WARM_UP)))
            before = settled()
            outcomes = Counter(pool.map(lambda n: rollout(n, task, sandbox), range(rollouts)))
            after = settled(before)
    left = left_over(before, after)
    for name in before:
        print(f"{name:16s} before {before[name]:6d}   after {after[name]:6d}{'   LEFT BEHIND' if name in left else ''}")
    seconds = round(time.monotonic() - started, 1)
    print(
        json.dumps({"soak": rollouts, "outcomes": outcomes, "before": before, "after": after, "left": left, "seconds": seconds})
    )
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROLLOUTS))
