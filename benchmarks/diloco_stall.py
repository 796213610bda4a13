"""How long replicas wait for their rounds: all of the model at once, and in fragments that travel while training goes on.

`python benchmarks/diloco_stall.py [--write FILE]` trains `tiny_lm` in N processes, each on one thread, that share a bucket of an
S3 server on this machine (moto), with int8. Of each replica's time after the first H steps: the share in which it waited for a
round, and the share that the outer loop took in all (waiting, copying, outer step). Beside it the same processes without any
exchange: server and background threads use the same cores, and what they take from the steps is in the seconds of a step. Ends
with one line of JSON. Needs torchft and moto: `make bench-diloco-stall`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch
from measuring import emit
from tiny_lm import STREAMED, H, TinyLM, optimizer_of, share, train_step

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "tools"))

from s3_server import environment

from composer_replication.diloco import MockManager, ObjectStoreAllReduce, ObjectStoreManager
from composer_replication.diloco.manager import RoundReport
from composer_replication.diloco.outer_loop import make_diloco_outer_loop

MODES: dict[str, dict[str, int]] = {"no exchange": {}, "plain": {}, "streaming": STREAMED}
MOST_STALLED = 0.03


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=75, help="of which the first 15 are not measured")
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 32], help="of a replica's step")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--codec", default="int8")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    rows = []
    times = f"{'wall s':>7} {'waited s':>8} {'share':>7} {'outer loop':>10} {'a round s':>9} {'step s':>7}"
    print(f"{'replicas':>8} {'sequences':>9} {'':12} {times}")
    for world, sequences in product(options.replicas, options.sequences):
        runs: dict[str, list[list[dict[str, float]]]] = {mode: [] for mode in MODES}
        for _, mode in product(range(options.repeats), MODES):
            runs[mode].append(together(world, sequences, mode, options))
        for mode, found in runs.items():
            row = {"replicas": world, "sequences": sequences, "mode": mode, **summed_up(found)}
            rows.append(row)
            times = f"{row['wall_s']:7.2f} {row['stall_s']:8.3f} {row['stall_share']:7.2%} {row['outer_share']:10.2%}"
            print(f"{world:8} {sequences:9} {mode:12} {times} {row['round_s']:9.3f} {row['step_s']:7.3f}", flush=True)
    worst = max(row["stall_share"] for row in rows if row["mode"] == "streaming")
    size = sum(p.numel() for p in TinyLM(0, options.width).parameters())
    found = {"codec": options.codec, "h": H, "parameters": size, "streaming_stall_share": worst, "passed": worst <= MOST_STALLED}
    if options.write:
        options.write.write_text(json.dumps({**found, "modes": MODES, "rows": rows}, indent=1) + "\n")
    emit("diloco-stall", found)
    raise SystemExit(0 if found["passed"] else 1)


def together(world: int, sequences: int, mode: str, options: argparse.Namespace) -> list[dict[str, float]]:
    """What each of the replicas measured, in a bucket of their own."""
    with moto() as url, ProcessPoolExecutor(world, get_context("spawn")) as pool:
        urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).close()
        each = [(rank, world, sequences, url, mode, options) for rank in range(world)]
        return list(pool.map(replica, *zip(*each, strict=True)))


def replica(rank: int, world: int, sequences: int, url: str, mode: str, options: argparse.Namespace) -> dict[str, float]:
    """Train, and measure after the first H steps; all replicas begin together."""
    torch.set_num_threads(1)
    os.environ.update(environment(url))
    model = TinyLM(0, options.width)
    optimizer = optimizer_of("adamw", model, 1e-3)
    reports: list[RoundReport] = []
    reduce = ObjectStoreAllReduce("s3://bucket/run", rank=rank, world_size=world, codec=options.codec)
    manager = MockManager() if mode == "no exchange" else ObjectStoreManager(reduce, report=reports.append)
    loop = make_diloco_outer_loop(manager, model, inner_optimizer=optimizer, sync_every=H, **MODES[mode])
    outer: list[float] = []
    optimizer.register_step_post_hook(lambda *_: outer.append(-time.perf_counter()))  # hooks run in order: before the loop's
    reduce.allreduce(torch.zeros(1), "start")
    with loop:
        optimizer.register_step_post_hook(lambda *_: outer.append(time.perf_counter()))
        for step in range(options.steps):
            if step == H:
                began, rounds = time.perf_counter(), len(reports)
            train_step(model, optimizer, share(0, step, world * sequences, rank, world), 1e-3)
    wall = time.perf_counter() - began
    held = reports[rounds:]
    return {
        "wall_s": wall,
        "stall_s": sum(report.stall_s for report in held),
        "outer_s": sum(outer[2 * H :]),
        "round_s": statistics.median(report.seconds for report in held) if held else 0.0,
        "step_s": (wall - sum(outer[2 * H :])) / (options.steps - H),
    }


def summed_up(runs: list[list[dict[str, float]]]) -> dict[str, float]:
    """Over the repetitions the median of the replicas' mean; the shares are of the same run's wall time."""
    means = [{name: statistics.fmean(one[name] for one in run) for name in run[0]} for run in runs]
    for mean in means:
        mean |= {"stall_share": mean["stall_s"] / mean["wall_s"], "outer_share": mean["outer_s"] / mean["wall_s"]}
    return {name: round(statistics.median(mean[name] for mean in means), 5) for name in means[0]}


@contextmanager
def moto() -> Iterator[str]:
    """A server of its own, empty."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                if process.poll() is not None:
                    raise SystemExit("moto.server has ended: is moto[server,s3] installed here?")
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                except ConnectionRefusedError:
                    time.sleep(0.05)
                    continue
                break
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


if __name__ == "__main__":
    main()
