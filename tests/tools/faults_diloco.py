"""Replicas as processes that are killed, late, deceived and cut off, on one store: who survives has the same parameters.

`python tests/tools/faults_diloco.py [--moto PYTHON] [--s3rver FILE] [--only WORD]` prints a table and ends with a line of JSON;
it fails where survivors differ, hang, or do not finish. Without `--moto` the store is our own S3 server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from s3_server import environment

from composer_replication.diloco import ObjectStoreAllReduce, Store, open_store
from composer_replication.diloco.wire import digest
from composer_replication.types.errors import ComposerError

WORLD, ROUNDS, SIZE = 3, 4, 20_000
DEADLINE_S = 2.0
SURE_DEADLINE_S = 12.0
"""Where a replica has to be a member to meet its fate: nobody is so late on any machine."""
TIMEOUT_S, GONE_TIMEOUT_S = 120.0, 12.0
"""Most for a round, and where the store goes away, so that nothing can come of waiting."""
HANG_S = 600.0
"""Nothing waits for so long: a case that takes it hangs."""


@dataclass(frozen=True)
class Case:
    """What goes wrong, with whom, and what is expected."""

    name: str
    faults: dict[int, str] = field(default_factory=dict)
    """By rank, as `Fate` reads it."""
    server: tuple[str, ...] = ()
    """Faults of our own server."""
    pause_s: float = 0.0
    """A `pause` ends after so long; 0 is never."""
    world: int = WORLD
    codec: str = "int8"
    restart: bool = False
    """Who was killed is started again, and has to end like the others."""
    told: str = ""
    """What a survivor that does not finish is told; by default all finish. Whoever finishes has the same hash."""
    nobody: bool = False
    """Nobody finishes."""
    deadline_s: float = DEADLINE_S

    @property
    def timeout_s(self) -> float:
        """Most for a round."""
        return GONE_TIMEOUT_S if self.nobody else TIMEOUT_S


CASES = (
    Case("nothing goes wrong"),
    Case("nothing goes wrong, two replicas", world=2),
    Case("killed before its put", {1: "kill before put"}),
    Case("killed after its put", {1: "kill after put"}),
    Case("killed after the seal", {1: "kill after seal"}),
    Case("killed in the reduction", {1: "kill in reduce"}, deadline_s=SURE_DEADLINE_S),
    Case("killed while it gathers", {1: "kill in gather"}, deadline_s=SURE_DEADLINE_S),
    Case("killed after its put, two replicas", {1: "kill after put"}, world=2),
    Case("killed after the seal, top-k", {1: "kill after seal"}, codec="topk"),
    Case("killed after its put and started again", {1: "kill after put"}, restart=True),
    Case("late for a round", {2: "late"}),
    Case("sends twice under two ranks", {0: "duplicate"}),
    Case("its contribution is damaged", {1: "corrupt"}),
    Case("its contribution is damaged, two replicas", {1: "corrupt"}, world=2),
    Case("its contribution disappears", {1: "lose"}),
    Case("a clock that is an hour ahead and runs twice as fast", {2: "skew"}),
    Case("gradients that are not finite", {1: "nan"}),
    Case("the server pauses for 3 s", {0: "pause"}, pause_s=3.0),
    Case("the server pauses for good", {0: "pause"}, told="Generic S3 error", nobody=True),
    Case("the bucket is full", server=("full@25",), told="507|after 12 s", nobody=True),
    Case("writing is forbidden from one moment on", server=("forbidden@25",), told="AccessDenied|after 12 s", nobody=True),
    Case("the server ignores conditional writes", server=("careless",), told="ignores conditional writes", nobody=True),
)


class Fate(Store):
    """A store whose requests bring about what a case is about, in round 1."""

    def __init__(self, store: Store, rank: int, fault: str, pause: Callable[[], None]) -> None:
        self.__dict__.update(store.__dict__)
        self._rank, self._fault, self._pause = rank, fault, pause
        self._there = ""

    def at(self, prefix: str) -> Store:
        there = super().at(prefix)
        there.__dict__["_there"] = f"{self._there}{prefix}/"
        return there

    def create(self, key: str, data: bytes) -> bool:
        now = "00000001/" in self._there
        mine = now and key == f"p/{self._rank}"
        if (mine and self._fault == "kill before put") or (now and key.startswith("o/") and self._fault == "kill in reduce"):
            os.kill(os.getpid(), signal.SIGKILL)
        if mine and self._fault == "pause":
            self._pause()
        if mine and self._fault == "late":
            time.sleep(2 * DEADLINE_S)
        if mine and self._fault == "corrupt":
            super().create(key, data[:-40] + bytes(byte ^ 255 for byte in data[-40:]))
            return True
        if mine and self._fault == "duplicate":
            super().create(f"p/{self._rank + 1}", data)
        created = super().create(key, data)
        if (mine and self._fault == "kill after put") or (now and key.startswith("o/") and self._fault == "kill in gather"):
            os.kill(os.getpid(), signal.SIGKILL)
        if now and key == "seal" and self._fault == "kill after seal":
            os.kill(os.getpid(), signal.SIGKILL)
        if mine and self._fault == "lose":
            self.delete(key)
        return created

    def get(self, key: str) -> bytes | None:
        found = super().get(key)
        if "00000001/" in self._there and key == "seal" and self._fault == "kill after seal":
            os.kill(os.getpid(), signal.SIGKILL)
        return found


class SkewedClock:
    """An hour ahead, and twice as fast."""

    def now(self) -> float:
        return 3600 + 2 * time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / 2)


def pause(server: int, seconds: float) -> None:
    """Stop a process, and let it go on after so many seconds; 0 is never."""
    os.kill(server, signal.SIGSTOP)
    if seconds > 0:
        timer = threading.Timer(seconds, os.kill, (server, signal.SIGCONT))
        timer.daemon = True
        timer.start()


def replica(case: Case, uri: str, rank: int, life: int, server: int, report: Any) -> None:
    """One process: `ROUNDS` outer steps from zero, and a line on what it ends with."""
    torch.set_num_threads(1)
    fault = case.faults.get(rank, "") if life == 0 else ""
    weights = torch.zeros(SIZE)
    began = time.monotonic()
    try:
        reduce = ObjectStoreAllReduce(
            Fate(open_store(uri, timeout_s=case.timeout_s), rank, fault, partial(pause, server, case.pause_s)),
            rank=rank,
            world_size=case.world,
            timeout_s=case.timeout_s,
            quorum=case.world - 1,
            deadline_s=case.deadline_s,
            takeover_s=1.0,
            poll_s=0.1,
            codec=case.codec,
            keep_rounds=None,
            clock=SkewedClock() if fault == "skew" else None,
        )
        number = 0
        if life:
            newest = reduce.newest_round("model")
            number = 0 if newest is None else newest + 1
            for at in range(number):
                mean = torch.zeros(SIZE)
                reduce.follow([mean], "model", at)
                weights -= mean
        for at in range(number, ROUNDS):
            gradient = torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * at + rank))
            if fault == "nan" and at == 1:
                gradient[5] = float("nan")
            weights -= reduce.allreduce(gradient, "model", number=at)
        end = {"hash": digest(weights.numpy().tobytes())}
    except ComposerError as error:
        end = {"error": f"{type(error).__name__}: {error.message}"}
    report.send({"rank": rank, "seconds": round(time.monotonic() - began, 1), **end})
    report.close()


def hold(case: Case, uri: str, server: subprocess.Popen[str]) -> dict[str, Any]:
    """Run a case; what came of it."""
    fork = multiprocessing.get_context("fork")
    began = time.monotonic()
    ends: list[dict[str, Any]] = []

    def start(rank: int, life: int) -> tuple[Any, Any]:
        receiver, sender = fork.Pipe(duplex=False)
        process = fork.Process(target=replica, args=(case, uri, rank, life, server.pid, sender), daemon=True)
        process.start()
        sender.close()
        return process, receiver

    running = {rank: start(rank, 0) for rank in range(case.world)}
    killed = 0
    while running and time.monotonic() - began < HANG_S:
        for rank, (process, receiver) in list(running.items()):
            process.join(0.02)
            if process.is_alive():
                continue
            del running[rank]
            if process.exitcode == -signal.SIGKILL:
                killed += 1
                if case.restart:
                    running[rank] = start(rank, 1)
            elif receiver.poll():
                ends.append(receiver.recv())
    hung = sorted(running)
    for process, _ in running.values():
        process.kill()
    server.send_signal(signal.SIGCONT)
    return judge(case, ends, killed, hung, time.monotonic() - began)


def judge(case: Case, ends: list[dict[str, Any]], killed: int, hung: list[int], seconds: float) -> dict[str, Any]:
    hashes = {end["hash"] for end in ends if "hash" in end}
    errors = sorted({end["error"] for end in ends if "error" in end})
    meant_to_die = sum(fault.startswith("kill") for fault in case.faults.values())
    alive = case.world - (0 if case.restart else meant_to_die)
    well = not hung and killed == meant_to_die and len(ends) == alive
    well = well and len(hashes) == (0 if case.nobody else 1)
    well = well and all(case.told and re.search(case.told, error) for error in errors)
    return {
        "case": case.name,
        "well": well,
        "killed": killed,
        "finished": sum("hash" in end for end in ends),
        "hashes": len(hashes),
        "hung": len(hung),
        "seconds": round(seconds, 1),
        "errors": errors,
    }


@contextlib.contextmanager
def served(argv: list[str], folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server process that says where it listens, or is told; its address."""
    port = 0
    if "PORT" in argv:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        argv = [str(port) if word == "PORT" else word for word in argv]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE if not port else log, stderr=log, text=True
        )
    try:
        if not port:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1], process
        else:
            _answering(process, port)
            yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


def _answering(process: subprocess.Popen[str], port: int) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
            continue
        return
    raise SystemExit("the server did not start")


def server_of(case: Case, options: argparse.Namespace, folder: Path) -> list[str]:
    if "careless" in case.server and options.s3rver:
        argv = ["node", options.s3rver, "-d", str(folder), "-a", "127.0.0.1", "-p", "PORT", "--no-vhost-buckets"]
        return [*argv, "--allow-mismatched-signatures", "--configure-bucket", "bucket"]
    if options.moto and not case.server:
        return [options.moto, "-m", "moto.server", "-H", "127.0.0.1", "-p", "PORT"]
    return [sys.executable, str(Path(__file__).parent / "s3_server.py"), *case.server]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moto", default="", help="a Python that has moto[server,s3]")
    parser.add_argument("--s3rver", default="", help="the program of s3rver, from npm")
    parser.add_argument("--only", default="", help="cases whose name has this word")
    options = parser.parse_args()
    found = []
    print(f"{'case':52} {'well':5} {'killed':6} {'finished':8} {'hashes':6} {'hung':4} {'s':>5}  error")
    for case in CASES:
        if options.only not in case.name:
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            served(server_of(case, options, Path(folder)), Path(folder)) as (url, server),
        ):
            os.environ.update(environment(url))
            if not case.server:
                urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).close()
            end = hold(case, "s3://bucket/run", server)
        found.append(end)
        said = end["errors"][0][:100] if end["errors"] else ""
        print(
            f"{end['case']:52} {'yes' if end['well'] else 'NO':5} {end['killed']:6} {end['finished']:8} {end['hashes']:6} "
            f"{end['hung']:4} {end['seconds']:5}  {said}",
            flush=True,
        )
    well = sum(end["well"] for end in found)
    summary = {"benchmark": "faults-diloco", "server": "moto" if options.moto else "our own", "cases": len(found), "well": well}
    print(json.dumps({**summary, "hung": sum(end["hung"] for end in found)}))
    raise SystemExit(0 if well == len(found) else 1)


if __name__ == "__main__":
    main()
