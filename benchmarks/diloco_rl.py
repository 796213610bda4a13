"""The RL recipe in four replicas that share a bucket, beside one replica alone and beside synchronous data parallel.

For every seed: tasks, warm start and teachers as in the quickstart, then the quickstart's three channels in three ways, from the
same start, with the same number of rollouts and of preference pairs:

- `alone`: one replica, one group of siblings a step, four times as many steps;
- `parallel`: synchronous data parallel, the four groups of a step in one optimizer step. Its ranks would take one group each and
  reduce their gradients; the step is the same (`tests/trainer`), so it is run in one process;
- `replicas`: `composer diloco run`, one group a step in each of four processes, half of the weights in a round, one every
  `H / 2` steps, with the outer optimizer of DiLoCo (learning rate 0.7, Nesterov momentum 0.9);
- `averaged`: the same with the mean of the replicas for the outer step (learning rate 1, no momentum).

Reward curves are the mean reward of training rollouts in equal bins of rollouts. pass@1 is that of the held-out tasks at the end,
from equally many samples each way: the replicas, whose weights are the same then, take a quarter of them each. Bytes are counted
by the replicas' stores, up and down. Everything lies under `runs/diloco-rl`, and an interrupted experiment goes on. Ends with one
line of JSON. Needs torchft: `make bench-diloco-rl`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from composer_replication.config import RunConfig, TeacherConfig, to_toml
from composer_replication.diloco.store import open_store
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.console import Console
from composer_replication.quickstart.run import prepare, quickstart_config
from composer_replication.quickstart.teachers import TEACHERS, served
from composer_replication.recipes.diloco.job import rendezvous_of
from composer_replication.recipes.diloco.status import read_status
from composer_replication.trainer.open_run import open_run
from composer_replication.trainer.report import train

REPLICAS = 4
BINS = 6
ARM = "three_channels"
OUTER: dict[str, dict[str, float]] = {"replicas": {}, "averaged": {"outer_lr": 1.0, "outer_momentum": 0.0}}
"""What the ways with replicas set in `[diloco]`, each beside the same else."""
WAYS = ("alone", "parallel", *OUTER)


@dataclass(frozen=True, slots=True)
class Reached:
    """What one way reached on one seed."""

    start: float
    """pass@1 of the warm start."""
    pass_at_1: float
    rewards: list[float]
    """In bins of equally many rollouts."""
    steps: int
    rollouts: int
    """Of training; neither evaluations nor the traces that replay freezes."""
    tokens: int
    """Sampled in these rollouts."""
    wall_s: float
    rounds: int = 0
    bytes_per_parameter: float = 0.0
    """Up and down, of one replica, in all its rounds."""
    stall_share: float = 0.0
    """Of a replica's wall time, its start and evaluations included."""


def config_of(way: str, seed: int, options: argparse.Namespace, teachers: tuple[TeacherConfig, ...]) -> RunConfig:
    """The quickstart's run file for one way."""
    prepared, run_path = options.out / f"seed{seed}.prepared", options.out / f"seed{seed}-{way}"
    config = quickstart_config(prepared, run_path, teachers, seed=seed, steps=options.steps, sandbox="auto")
    steps = options.steps * REPLICAS if way == "alone" else options.steps
    tables: dict[str, Any] = config.model_dump()
    tables |= {"arms": {ARM: {}}, "steps": steps, "checkpoint_every": steps}
    tables["eval"]["every"] = steps
    if way not in OUTER:
        tables["eval"]["samples"] *= REPLICAS
    if way != "parallel":
        tables["loss"]["replay"]["pairs_per_step"] //= REPLICAS
    if way == "alone":
        tables["rollout"]["groups"] //= REPLICAS
    if way in OUTER:
        tables["diloco"] |= {"enabled": True, "replicas": REPLICAS, "sync_every": options.sync_every, "fragments": 2, "delay": 1}
        tables["diloco"] |= {"codec": options.codec, **OUTER[way]}
    return RunConfig.model_validate(tables)


def run_way(way: str, seed: int, options: argparse.Namespace) -> Reached:
    """Train one way on one seed, or go on with it."""
    kept = options.out / f"seed{seed}-{way}.json"
    if kept.exists():
        return Reached(**json.loads(kept.read_text()))
    folders = {name: options.out / f"seed{seed}.prepared" / "teachers" / name for name in TEACHERS}
    began = time.monotonic()
    with served(folders) as teachers:
        config = config_of(way, seed, options, teachers)
        log = options.out / f"seed{seed}-{way}.log"
        folders_of_run = _replicas(config, log) if way in OUTER else [_one(config, log)]
    reached = _reached(config, folders_of_run, time.monotonic() - began)
    kept.write_text(json.dumps(asdict(reached)))
    return reached


def _one(config: RunConfig, log: Path) -> Path:
    with log.open("a") as file, open_run(config, resume=True) as run_dir:
        asyncio.run(train(config, run_dir, Terminal(Console(file=file), on_event=run_dir.log_event), start_label="warm start"))
        return run_dir.path


def _replicas(config: RunConfig, log: Path) -> list[Path]:
    run_file = log.with_suffix(".toml")
    begun = run_file.exists()
    run_file.write_text(to_toml(config))
    composer = Path(sys.executable).with_name("composer")
    command = [composer, "diloco", "run", run_file, *(["--resume"] if begun else [])]
    with log.open("a") as file:
        subprocess.run(command, stdout=file, stderr=file, check=True)
    return sorted((config.out / config.name).glob("replica_*"))


def _reached(config: RunConfig, folders: list[Path], wall_s: float) -> Reached:
    """Read it from the runs' own files."""
    lines = [[m.values for m in RunDir(folder).read_metrics()] for folder in folders]
    steps = [[v for v in run if "reward/mean" in v] for run in lines]
    rewards = [statistics.fmean(values) for values in zip(*([v["reward/mean"] for v in run] for run in steps), strict=True)]
    in_step = config.rollout.groups * config.rollout.group_size // (REPLICAS if config.diloco.enabled else 1)
    size = len(rewards) / BINS
    passed = [next(v["eval/pass_at_1"] for v in reversed(run) if "eval/pass_at_1" in v) for run in lines]
    reached = Reached(
        start=lines[0][0]["eval/pass_at_1"],
        pass_at_1=statistics.fmean(passed),
        rewards=[statistics.fmean(rewards[round(i * size) : round((i + 1) * size)]) for i in range(BINS)],
        steps=len(rewards),
        rollouts=sum(len(run) for run in steps) * in_step,
        tokens=round(sum(v["rollout/tokens/mean"] for run in steps for v in run) * in_step),
        wall_s=wall_s,
    )
    if not config.diloco.enabled:
        return reached
    store = open_store(rendezvous_of(config))
    said = [status for rank in range(REPLICAS) if (status := read_status(store, rank)) is not None]
    parameters = sum(values.size for values in load_file(Path(config.model.path) / "model.safetensors").values())
    rounds = int(steps[0][-1]["diloco/round"])
    moved = statistics.fmean(status.bytes_up + status.bytes_down for status in said)
    return replace(
        reached,
        rounds=rounds,
        bytes_per_parameter=moved / parameters,
        stall_share=sum(status.stall_s for status in said) / sum(status.seconds for status in said),
    )


def main() -> None:
    """Prepare, train every way on every seed, one after the other, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=36, help="of `parallel` and of each of the replicas")
    parser.add_argument("--sync-every", type=int, default=6, help="H")
    parser.add_argument("--codec", default="int8")
    parser.add_argument("--out", type=Path, default=Path("runs/diloco-rl"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    found: dict[str, list[Reached]] = {way: [] for way in WAYS}
    for seed in range(options.seeds):
        with (options.out / f"seed{seed}.log").open("a") as log:
            prepare(options.out / f"seed{seed}.prepared", Terminal(Console(file=log)), seed=seed, sandbox="auto")
        for way in WAYS:
            found[way].append(reached := run_way(way, seed, options))
            print(f"seed {seed}, {way}: {reached.start:.3f} -> {reached.pass_at_1:.3f} in {reached.wall_s:.0f} s", flush=True)
    _show(found, options)


def _show(found: dict[str, list[Reached]], options: argparse.Namespace) -> None:
    cells = []
    for way, rows in found.items():
        passed = [row.pass_at_1 for row in rows]
        spread = statistics.stdev(passed) / len(passed) ** 0.5 if len(passed) > 1 else float("nan")
        curve = " ".join(f"{statistics.fmean(values):.3f}" for values in zip(*(row.rewards for row in rows), strict=True))
        means = (statistics.fmean(getattr(row, name) for row in rows) for name in ("steps", "rollouts", "tokens"))
        rounds, moved = rows[0].rounds, statistics.fmean(row.bytes_per_parameter for row in rows)
        traffic = (
            (f"{rounds}", f"{moved:.2f}", f"{statistics.fmean(row.stall_share for row in rows):.1%}") if rounds else ("", "", "")
        )
        cells.append(
            (way, f"{statistics.fmean(passed):.3f} ± {spread:.3f}", curve, *(f"{mean:,.0f}" for mean in means), *traffic)
        )
    columns = ("way", "pass@1", "reward by rollouts", "steps", "rollouts", "tokens", "rounds", "bytes a parameter", "stall")
    start = [row.start for row in found["alone"]]
    Terminal().table(f"pass@1 on held-out tasks, from {statistics.fmean(start):.3f}", columns, cells)
    figures = {way: [asdict(row) for row in rows] for way, rows in found.items()}
    told = {"replicas": REPLICAS, "steps": options.steps, "sync_every": options.sync_every, "codec": options.codec}
    print(json.dumps({"bench": "diloco-rl", **told, **figures}))


if __name__ == "__main__":
    main()
