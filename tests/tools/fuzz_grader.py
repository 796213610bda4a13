"""Hostile workspaces and hostile tool calls through the real reader, environment and grader, and a count of what goes wrong.

Usage: `python tests/tools/fuzz_grader.py [--count N] [--seed N] [--box-every N]`. One case in 20 runs programs in real boxes; of
the others, two in five are folders that only the reader of submissions sees, and the rest tool calls that need no box. Every
case follows from the seed and its number. Prints what went wrong, then one line of JSON; exits with 1 unless `passed`: no
exception, no solution read, no reward, and nothing left: process, mount, control group, file, descriptor, kernel key or memory.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import shutil
import socket
import stat
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz_inputs import COMMANDS, KEY_NAME, NAMES, PROGRAMS, hostile_call
from soak import LIMITS, FolderTask, left_over, make_task, settled

from composer_replication.envs import CodingEnv
from composer_replication.sandbox import Sandbox, open_sandbox
from composer_replication.sandbox.backends.linux import set_subreaper
from composer_replication.sandbox.grading.submission import read_submission
from composer_replication.tokens import parse_tool_calls
from composer_replication.types import ToolCall, ToolResult, Unscored, to_json

COUNT, SEED, BOX_EVERY, THREADS, WARM_UP = 10_000, 0, 20, 2, 400
SOLUTION = "the-solution-93f1c0"
MOST_SHOWN = 40_000
"""Characters of a tool's result: what is more would flood the policy's context."""


@dataclass
class Found:
    """What the cases brought."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class World:
    """Everything a case needs."""

    task: FolderTask
    sandbox: Sandbox
    outside: Path
    """A folder with the solution, beside every workspace."""
    box_every: int
    """One case in so many runs in boxes."""


# --- folders ---------------------------------------------------------------------------------------------------------


def make_tree(world: World, rng: random.Random, root: Path) -> None:
    """A workspace with whatever an agent could leave in it."""
    if rng.random() < 0.8:
        shutil.copytree(world.task.repo, root)
    else:
        root.mkdir()
    folders = [root, root / "shop", root / "tests"]
    for _ in range(rng.randrange(1, 25)):
        place = rng.choice(folders) / rng.choice(NAMES)
        with suppress(OSError, ValueError):  # what no file system holds, no agent can leave behind
            if os.path.lexists(place) and (place.is_symlink() or not place.is_dir()):
                place.unlink()  # writing to a pipe that is there would wait for ever
            rng.choice(ENTRIES)(world, rng, place)
            if place.is_dir() and not place.is_symlink():
                folders.append(place)


def _file(_world: World, rng: random.Random, place: Path) -> None:
    size = rng.choice((0, 1, 100, 100, 5000))
    place.write_bytes(rng.choice((rng.randbytes(size), b"x = 1\n" * size, b"\0" * size)))
    place.chmod(rng.choice((0o644, 0o000, 0o4777, 0o755)))


def _huge(_world: World, rng: random.Random, place: Path) -> None:
    place.touch()
    os.truncate(place, rng.choice(((4 << 20) + 1, 1 << 33, 1 << 40)))


def _link(world: World, rng: random.Random, place: Path) -> None:
    outside = world.outside
    place.symlink_to(
        rng.choice((outside, outside / "gold.py", "/", "..", ".", place.name, "nowhere", "/proc/self/fd", "x" * 4000))
    )


def _special(_world: World, rng: random.Random, place: Path) -> None:
    match rng.randrange(3):
        case 0:
            os.mkfifo(place)
        case 1:
            os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, rng.choice((3, 5, 9))))
        case _:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(place))


def _nest(_world: World, rng: random.Random, place: Path) -> None:
    name = rng.choice(("d", "d" * 200))
    for _ in range(rng.choice((3, 15, 70))):
        place.mkdir()
        place /= name


def _unmake(_world: World, _rng: random.Random, place: Path) -> None:
    shutil.rmtree(place.parent, ignore_errors=True)


ENTRIES: tuple[Callable[[World, random.Random, Path], None], ...] = (
    _file,
    _file,
    _file,
    _huge,
    _link,
    _link,
    lambda world, _rng, place: os.link(world.outside / "gold.py", place),
    _special,
    lambda _world, _rng, place: place.mkdir(),
    _nest,
    _unmake,
)


def folder_case(world: World, rng: random.Random) -> str:
    """Read a hostile folder as a submission."""
    with tempfile.TemporaryDirectory(dir=world.outside.parent, ignore_cleanup_errors=True) as top:
        root = Path(top) / "ws"
        make_tree(world, rng, root)
        if not root.is_dir():
            return "folder: removed itself"
        found = read_submission(world.task.spec, world.task.repo, root, reserved=frozenset({"json"}))
    contents = [content for content in found.changes.values() if content is not None]
    check(SOLUTION.encode() not in b"".join(contents), "the solution was read")
    check(sum(map(len, contents)) <= 64 << 20, "more was taken than is allowed")
    return "folder: read"


# --- tool calls ------------------------------------------------------------------------------------------------------


def new_env(world: World) -> CodingEnv:
    env = CodingEnv(world.task, sandbox=world.sandbox, python=Path(sys.executable), limits=LIMITS, toolset="shell")
    env.reset()
    return env


def take(env: CodingEnv, call: ToolCall) -> ToolResult:
    """Carry out a call and check what comes back: short, writable, and plain data."""
    result = env.step(call)
    check(len(result.content) <= MOST_SHOWN, f"{call.name[:40]!r} showed {len(result.content)} characters")
    result.content.encode()
    json.dumps(to_json(result)).encode()
    return result


def call_case(world: World, rng: random.Random) -> str:
    """Make hostile calls that need no box, some of them parsed from what a policy would write."""
    env = new_env(world)
    for number in range(rng.randrange(1, 7)):
        name, arguments = hostile_call(rng)
        calls: tuple[ToolCall, ...] = (ToolCall(call_id=str(number), name=name, arguments=arguments),)
        if rng.random() < 0.3:
            calls = parse_tool_calls(f"<tool_call>{written(rng, name, arguments)}</tool_call>", turn=number)[1]
        for call in calls:
            if not env.done and call.name not in ("bash", "run_tests"):
                take(env, call)
    found = read_submission(world.task.spec, world.task.repo, env.submission)
    check(all(path.startswith("shop/") for path in found.changes), "a file is graded that the task does not allow")
    return "calls: answered"


def written(rng: random.Random, name: str, arguments: dict[str, Any]) -> str:
    """A call as text, sometimes damaged."""
    try:
        text = json.dumps({"name": name, "arguments": arguments}, default=str)
    except RecursionError:
        text = "[" * 5000
    if rng.random() < 0.5 and text:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(("", "\0", '"', "}", "\ud800", "NaN", "1" * 5000)) + text[at + 1 :]
    return text


# --- boxes -----------------------------------------------------------------------------------------------------------


def box_case(world: World, rng: random.Random) -> str:
    """Run hostile programs in real boxes: as a command, under the tests, and when the work is graded."""
    env = new_env(world)
    if rng.random() < 0.5:
        take(env, ToolCall(call_id="c", name="bash", arguments={"command": rng.choice(COMMANDS)}))
    program = "\n".join(rng.choice(PROGRAMS) for _ in range(rng.randrange(1, 4)))
    path = rng.choice(("shop/basket.py", "shop/__init__.py", "shop/new.py"))
    take(env, ToolCall(call_id="w", name="write_file", arguments={"path": path, "content": program + "\n"}))
    if rng.random() < 0.5:
        take(env, ToolCall(call_id="t", name="run_tests", arguments={}))
    report = env.fork().grade()
    shown = "\n".join(report.reasons)
    shown.encode()
    check(len(shown) < MOST_SHOWN, "a report is too long")
    json.dumps(to_json(report)).encode()
    check(report.reward != 1.0, f"it was rewarded: {program!r}")
    return "box: unscored" if isinstance(report.reward, Unscored) else "box: reward 0"


# --- counting --------------------------------------------------------------------------------------------------------


class WrongError(AssertionError):
    """Something happened that must not."""


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise WrongError(otherwise)


def kind_of(number: int, box_every: int) -> Callable[[World, random.Random], str]:
    if number % box_every == 0:
        return box_case
    return folder_case if number % 5 < 2 else call_case


def run_case(world: World, seed: int, number: int, found: Found) -> None:
    """Run one case; whatever it raises is counted."""
    rng = random.Random(f"{seed}/{number}")
    try:
        found.outcomes[kind_of(number, world.box_every)(world, rng)] += 1
    except Exception:  # noqa: BLE001 (every kind of exception is what is looked for)
        found.outcomes["exception"] += 1
        found.wrong.append(f"case {number} (--seed {seed}):\n{traceback.format_exc()[-2000:]}")


def run_cases(world: World, seed: int, numbers: range, found: Found) -> None:
    """Run cases: those with boxes in threads beside the others."""
    with ThreadPoolExecutor(THREADS) as pool:
        boxes = [pool.submit(run_case, world, seed, n, found) for n in numbers if kind_of(n, world.box_every) is box_case]
        for number in numbers:
            if kind_of(number, world.box_every) is not box_case:
                run_case(world, seed, number, found)
        for box in boxes:
            box.result()


def kernel_keys() -> int | None:
    """Keys that programs in boxes have left in keyrings of the host; None where the kernel does not tell."""
    try:
        return Path("/proc/keys").read_text().count(KEY_NAME)
    except OSError:
        return None


def trim() -> None:
    """Give back the memory that is free, so that only what is held counts."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def worlds(box_every: int) -> Iterator[World]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as top:
        Path(top).chmod(0o755)
        os.environ["TMPDIR"] = tempfile.tempdir = str(Path(top, "temporary"))
        os.mkdir(tempfile.tempdir, 0o755)
        outside = Path(top, "outside")
        outside.mkdir()
        (outside / "gold.py").write_text(f"# {SOLUTION}\n")
        yield World(make_task(Path(top)), open_sandbox(), outside, box_every)


def main(count: int, seed: int, box_every: int, write: Path | None = None) -> int:
    started = time.monotonic()
    set_subreaper()
    found = Found()
    for world in worlds(box_every):
        print(world.sandbox.isolation.summary())
        run_cases(world, seed, range(-WARM_UP, 0), Found())
        trim()
        before, keys = settled(), kernel_keys()
        run_cases(world, seed, range(count), found)
        trim()
        after, keys_after = settled(before), kernel_keys()
    left = left_over(before, after)
    if keys is not None and keys_after is not None and keys_after > keys:
        left["kernel keys"] = keys_after - keys
    for wrong in found.wrong[:10]:
        print(wrong)
    boxes = sum(number for name, number in found.outcomes.items() if name.startswith("box"))
    facts = {
        "fuzz": count,
        "seed": seed,
        "boxes": boxes,
        "outcomes": found.outcomes,
        "exceptions": len(found.wrong),
        "before": before | {"kernel keys": keys},
        "after": after | {"kernel keys": keys_after},
        "left": left,
        "seconds": round(time.monotonic() - started, 1),
        "passed": not found.wrong and not left and sum(found.outcomes.values()) == count,
    }
    if write is not None:
        write.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    print(json.dumps(facts))
    return 0 if facts["passed"] else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--box-every", type=int, default=BOX_EVERY)
    parser.add_argument("--write", type=Path, help="keep the last line in this file")
    options = parser.parse_args()
    sys.exit(main(options.count, options.seed, options.box_every, options.write))
