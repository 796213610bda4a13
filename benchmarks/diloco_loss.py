"""What a tiny language model loses when its replicas meet seldom and send little.

`python benchmarks/diloco_loss.py [--cells FILE] [--write FILE]` trains `tiny_lm` in one process on the whole batch (data
parallel), and in N replicas with the library's own outer loop, codecs and object store, on the same text: validation loss over
seeds, the gap to data parallel, and bytes per parameter and step beside those of bfloat16 gradients that go through the same
store at every step. The learning rate of each inner optimizer is the best of data parallel. A cell that is done is a line of
`--cells` and is not trained again. Ends with one line of JSON. Needs torchft: `make bench-diloco-loss`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from measuring import emit
from obstore.store import MemoryStore
from tiny_lm import STREAMED, H, TinyLM, optimizer_of, rate, share, train_step, validation_loss

from composer_replication.diloco import ObjectStoreAllReduce, Store
from composer_replication.diloco.manager import ObjectStoreManager, RoundReport
from composer_replication.diloco.outer_loop import OuterLoop, make_diloco_outer_loop

T = TypeVar("T")
Cell = dict[str, Any]
Seeds = dict[int, Cell]
Key = tuple[str, int, str]
"""Inner optimizer, replicas (0 without), method."""

PLAIN = {"outer_lr": 1.0, "outer_momentum": 0.0, "nesterov": False}
METHODS: dict[str, dict[str, Any]] = {
    "fp32": {"codec": "fp32"},
    "int8": {"codec": "int8"},
    "int4": {"codec": "int4"},
    "topk": {"codec": "topk"},
    "pulse": {"codec": "pulse"},
    "int8 streamed": {"codec": "int8", **STREAMED},
    "int8, plain outer": {"codec": "int8", **PLAIN},
    "topk, plain outer": {"codec": "topk", **PLAIN},
}
FURTHER = ("int8 streamed", "int8, plain outer", "topk, plain outer")
"""Beside the table proper: overlap, and the plain mean, which is also the outer optimizer of SparseLoCo."""
DATA_PARALLEL = "data parallel"
INNERS = ("adamw", "muon")
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
LEAST = {"int8": 28.5, "int4": 55.0}
"""Times less than bfloat16 at every step: what the codecs give, 30 and 59, less the headers' share with so small a model."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step, over all replicas")
    parser.add_argument("--depth", type=int, default=3, help="blocks of the model")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--replicas", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--inner", nargs="+", choices=INNERS, default=list(INNERS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES), help="learning rates to choose from")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="cells that are trained at once")
    parser.add_argument("--cells", type=Path, default=Path("runs/bench_diloco_loss.jsonl"), help="what is done already")
    parser.add_argument("--write", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    size = {"steps": options.steps, "batch": options.batch, "depth": options.depth}
    tuning = [{**size, "inner": inner, "lr": lr, "seed": 0} for inner, lr in product(options.inner, options.rates)]
    tuned = finished(tuning, options.cells, options.workers)
    best = {inner: min((row["loss"], row["lr"]) for row in tuned if row["inner"] == inner) for inner in options.inner}
    chosen = {inner: lr for inner, (_, lr) in best.items()}
    plain = [{**size, "inner": i, "lr": chosen[i], "seed": seed} for seed, i in product(range(options.seeds), options.inner)]
    cells = [
        {**cell, "method": method, "replicas": replicas}
        for cell, method, replicas in product(plain, options.methods, options.replicas)
    ]
    cells.sort(key=lambda cell: (cell["method"] in FURTHER, cell["seed"]))  # so that a table can be read from half of them
    cells = plain + cells
    print(f"learning rates, the best of data parallel: {chosen}; {len(cells)} cells", flush=True)
    done, bf16 = finished(cells, options.cells, options.workers), traffic(options)
    rows = summed_up(done, bf16)
    show(rows)
    found = {**size, "h": H, "seeds": options.seeds, "lr": chosen, "parameters": parameters(options.depth)}
    found |= verdict(rows)
    if options.write:
        options.write.write_text(json.dumps({**found, "bf16_each_step": bf16, "tuning": tuned, "rows": rows}, indent=1) + "\n")
    emit("diloco-loss", found)
    raise SystemExit(0 if found["passed"] else 1)


def finished(cells: list[Cell], file: Path, workers: int) -> list[Cell]:
    """Every cell with what it gave; those that the file lacks are trained and added to it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    known = {json.dumps(row["cell"], sort_keys=True): row["found"] for row in map(json.loads, lines)}
    left = [cell for cell in cells if json.dumps(cell, sort_keys=True) not in known]
    began = time.monotonic()
    with file.open("a", encoding="utf-8") as out, ProcessPoolExecutor(workers, get_context("spawn"), limited) as pool:
        pending = {pool.submit(trained, cell): cell for cell in left}
        for number, future in enumerate(as_completed(pending), 1):
            cell, found = pending[future], future.result()
            known[json.dumps(cell, sort_keys=True)] = found
            out.write(json.dumps({"cell": cell, "found": found}) + "\n")
            out.flush()
            words = " ".join(str(cell.get(name, "")) for name in ("inner", "lr", "replicas", "method", "seed"))
            print(f"{number}/{len(left)} after {time.monotonic() - began:.0f} s: {words}: {found['loss']:.4f}", flush=True)
    return [{**cell, **known[json.dumps(cell, sort_keys=True)]} for cell in cells]


def limited() -> None:
    torch.set_num_threads(1)


def trained(cell: Cell) -> dict[str, float]:
    """Train one cell."""
    began = time.monotonic()
    found = in_replicas(**cell) if "method" in cell else {"loss": data_parallel(**cell)}
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def data_parallel(inner: str, lr: float, seed: int, steps: int, batch: int, depth: int) -> float:
    """Validation loss of synchronous data parallelism: every step on the mean gradient of the whole batch."""
    model = TinyLM(seed, depth=depth)
    optimizer = optimizer_of(inner, model, lr)
    for step in range(steps):
        train_step(model, optimizer, share(seed, step, batch), rate(lr, step, steps))
    return validation_loss(model)


def in_replicas(
    method: str, replicas: int, inner: str, lr: float, seed: int, steps: int, batch: int, depth: int
) -> dict[str, float]:
    """Validation loss of the global parameters, and what a replica sent and read, in bytes per parameter and step."""
    store = Store(MemoryStore(), "memory://cell")
    options = dict(METHODS[method])
    codec = options.pop("codec")
    models = [TinyLM(seed, depth=depth) for _ in range(replicas)]
    reports: list[RoundReport] = []

    def replica(rank: int) -> OuterLoop:
        model = models[rank]
        optimizer = optimizer_of(inner, model, lr)
        reduce = ObjectStoreAllReduce(store, rank=rank, world_size=replicas, codec=codec, poll_s=0.02)
        manager = ObjectStoreManager(reduce, report=reports.append)
        loop = make_diloco_outer_loop(manager, model, inner_optimizer=optimizer, sync_every=H, **options)
        with loop:
            for step in range(steps):
                train_step(model, optimizer, share(seed, step, batch, rank, replicas), rate(lr, step, steps))
        return loop

    loops = together(replica, replicas)
    states = [loop.state for loop in loops if loop.state is not None]
    if len({state.digest() for state in states}) != 1 or not all(report.counted for report in reports):
        raise SystemExit(f"{method}, {replicas} replicas: they did not agree")
    states[0].reset_local()
    scale = replicas * steps * sum(p.numel() for p in models[0].parameters())
    up, down = sum(report.bytes_up for report in reports) / scale, sum(report.bytes_down for report in reports) / scale
    return {"loss": validation_loss(models[0]), "up": up, "down": down}


def traffic(options: argparse.Namespace) -> dict[int, tuple[float, float]]:
    """By number of replicas: bytes per parameter that one sends and reads for bfloat16 gradients of one step."""
    size = parameters(options.depth)
    found = {}
    for replicas in options.replicas:
        store = Store(MemoryStore(), "memory://gradients")

        def step(rank: int, store: Store = store, replicas: int = replicas) -> tuple[int, int]:
            model = TinyLM(0, depth=options.depth)
            model.loss(share(0, 0, options.batch, rank, replicas)).backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            reduce = ObjectStoreAllReduce(store, rank=rank, world_size=replicas, codec="bf16")
            outcome = reduce.start(gradients, "gradients").wait()
            return outcome.bytes_up, outcome.bytes_down

        ups, downs = zip(*together(step, replicas), strict=True)
        found[replicas] = sum(ups) / (replicas * size), sum(downs) / (replicas * size)
    return found


def together(work: Callable[[int], T], replicas: int) -> list[T]:
    """What each replica, a thread, returns."""
    found: dict[int, T] = {}
    threads = [threading.Thread(target=lambda rank=rank: found.update({rank: work(rank)})) for rank in range(replicas)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(replicas)]


def parameters(depth: int) -> int:
    return sum(p.numel() for p in TinyLM(0, depth=depth).parameters())


def summed_up(done: Iterable[Cell], bf16: dict[int, tuple[float, float]]) -> list[dict[str, Any]]:
    """A row for each inner optimizer, number of replicas and method: means over the seeds, gaps to the same seed's other runs."""
    by: dict[Key, Seeds] = {}
    for cell in done:
        key = cell["inner"], cell.get("replicas", 0), cell.get("method", DATA_PARALLEL)
        by.setdefault(key, {})[cell["seed"]] = cell
    return [row_of(key, found, by, bf16) for key, found in sorted(by.items(), key=lambda item: item[0][:2])]


def row_of(key: Key, found: Seeds, by: dict[Key, Seeds], bf16: dict[int, tuple[float, float]]) -> dict[str, Any]:
    inner, replicas, method = key
    row: dict[str, Any] = {"inner": inner, "replicas": replicas, "method": method}
    row |= spread("loss", [cell["loss"] for cell in found.values()])
    for name, other in (("gap", (inner, 0, DATA_PARALLEL)), ("to_fp32", (inner, replicas, "fp32"))):
        if other in by and replicas:
            row |= spread(name, [cell["loss"] - by[other][seed]["loss"] for seed, cell in found.items()])
    if replicas:
        up, down = (statistics.fmean(cell[way] for cell in found.values()) for way in ("up", "down"))
        row |= {"up": round(up, 5), "down": round(down, 5)}
        row |= {"times_less": round(sum(bf16[replicas]) / (up + down), 1), "times_less_up": round(bf16[replicas][0] / up, 1)}
    return row


def spread(name: str, values: list[float]) -> dict[str, float]:
    """Mean and standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return {name: round(statistics.fmean(values), 4), f"{name}_sd": round(deviation, 4)}


def verdict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether int8 is within the noise of fp32 (the seeds' standard deviation) at the traffic that the codecs promise."""
    noise = {(row["inner"], row["replicas"]): row["loss_sd"] for row in rows if row["method"] == "fp32"}
    judged: dict[str, Any] = {"passed": True}
    for method, least in LEAST.items():
        mine = [row for row in rows if row["method"] == method and (row["inner"], row["replicas"]) in noise]
        if mine:
            judged[f"{method}_gap_to_fp32"] = max(row["to_fp32"] for row in mine)
            judged[f"{method}_within_noise"] = all(row["to_fp32"] <= noise[row["inner"], row["replicas"]] for row in mine)
            judged[f"{method}_times_less"] = min(row["times_less"] for row in mine)
            judged["passed"] &= judged[f"{method}_times_less"] >= least
    judged["passed"] &= judged.get("int8_within_noise", True)
    return judged


def show(rows: list[dict[str, Any]]) -> None:
    names = f"{'loss':>17} {'to data parallel':>17} {'to fp32':>17} {'up':>8} {'down':>8} {'less':>6}"
    print(f"\n{'inner':6} {'N':>2} {'method':18} {names}")
    for row in rows:
        parts = [f"{row['inner']:6} {row['replicas'] or '':>2} {row['method']:18} {row['loss']:8.4f} ± {row['loss_sd']:.4f}"]
        parts += [f"{row[name]:+8.4f} ± {row[f'{name}_sd']:.4f}" if name in row else " " * 17 for name in ("gap", "to_fp32")]
        if "up" in row:
            parts.append(f"{row['up']:8.4f} {row['down']:8.4f} {row['times_less']:6.1f}")
        print(" ".join(parts).rstrip())


if __name__ == "__main__":
    main()
