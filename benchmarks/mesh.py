"""What asynchronous rollouts bring on a mesh, and how long it takes to recover from a death.

The quickstart's policy and tasks, 4 groups of 8 a step, rlvr and hint. For each mesh: trajectories trained on per minute of the
steps' own time (evaluation and the first two steps left out), synchronous and asynchronous in turn, one process beside them;
CPU-seconds of all actors; the largest staleness that was trained on. Then one actor of each role is killed with SIGKILL, one by
one: seconds until its death is noticed and until its successor is at work. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import shutil
import signal
import statistics
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measuring import emit
from rich.table import Table

from composer_replication.config import RunConfig, SubstrateConfig
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.console import Console
from composer_replication.quickstart.run import prepare, quickstart_config
from composer_replication.recipes.mesh.driver import Driver
from composer_replication.trainer.report import train
from composer_replication.trainer.run_context import RunContext

MESHES = {"ray": "RayMesh", "monarch": "MonarchMesh"}
VICTIMS = ("generator-0", "env-0", "rewarder", "trainer")
WARM_UP = 2


def configured(prepared: Path, run: Path, steps: int, **substrate: Any) -> RunConfig:
    config = quickstart_config(prepared, run, (), seed=0, steps=steps, sandbox="auto")
    loss = config.loss.model_copy(update={"replay": config.loss.replay.model_copy(update={"weight": 0.0})})
    update = {
        "loss": loss,
        "arms": {"main": {}},
        "substrate": SubstrateConfig(**substrate),
        "checkpoint_every": 4,
        "eval": config.eval.model_copy(update={"every": 1000, "samples": 1}),
    }
    return config.model_copy(update=update)


def opened(config: RunConfig) -> RunContext:
    run_dir = RunDir.create(config.out / config.name)
    return RunContext.open(config, run_dir, Terminal(Console(quiet=True), on_event=run_dir.log_event))


async def on_mesh(kind: str, config: RunConfig, watch: Any = None) -> Driver:
    """Train on a mesh of this kind; `watch(driver)` goes on meanwhile."""
    mesh = getattr(importlib.import_module(f"composer_replication.recipes.{kind}.mesh"), MESHES[kind])()
    context = opened(config)
    try:
        with context.terminal.phase("") as shown:
            driver = Driver(mesh, context, config, "main", shown)
            watching = asyncio.create_task(watch(driver)) if watch else None
            await driver.run()
            if watching is not None:
                await watching
    finally:
        await mesh.close()
    return driver


def rates(run: Path) -> dict[str, float]:
    """Of the steps after the warm-up."""
    lines = [line.values for line in RunDir(run).read_metrics() if line.step > 0]
    steps = lines[WARM_UP:]
    wall = sum(values["time/rollout_s"] + values["time/update_s"] for values in steps)
    trajectories = 32 * len(steps)
    cpu = lines[-1]["cost/cpu_s"] - lines[WARM_UP - 1]["cost/cpu_s"]
    return {
        "trajectories_per_min": 60 * trajectories / wall,
        "cpu_s_per_trajectory": cpu / trajectories,
        "waiting_share": sum(values["time/rollout_s"] for values in steps) / wall,
        "staleness_max": max(values.get("mesh/staleness/max", 0.0) for values in steps),
        "dropped": lines[-1].get("mesh/dropped", 0.0),
    }


def throughput(kinds: list[str], prepared: Path, folder: Path, steps: int, rounds: int, staleness: int) -> dict[str, Any]:
    """Every setting in turn, `rounds` times; medians."""
    found: dict[str, list[dict[str, float]]] = {}
    for round_ in range(rounds):
        alone = configured(prepared, folder / f"local-{round_}", steps)
        run_dir = RunDir.create(folder / alone.name)
        asyncio.run(train(alone, run_dir, Terminal(Console(quiet=True), on_event=run_dir.log_event)))
        found.setdefault("one process", []).append(rates(folder / alone.name))
        for kind in kinds:
            for name, bound in (("synchronous", 0), ("asynchronous", staleness)):
                run = folder / f"{kind}-{name}-{round_}"
                asyncio.run(on_mesh(kind, configured(prepared, run, steps, type=kind, generators=2, max_staleness=bound)))
                found.setdefault(f"{kind} {name}", []).append(rates(run))
                print(f"round {round_ + 1}: {run.name}: {found[f'{kind} {name}'][-1]}", flush=True)
    return {
        name: {key: statistics.median(one[key] for one in measured) for key in measured[0]} for name, measured in found.items()
    }


async def kill_in_turn(driver: Driver, seconds: dict[str, dict[str, float]]) -> None:
    for step, name in enumerate(VICTIMS, start=1):
        while driver.version < step or sum(driver.supervisor.replaced.values()) < step - 1:
            await asyncio.sleep(0.02)
        handle = driver.supervisor.handles[name]
        began = time.monotonic()
        os.kill(handle.pid, signal.SIGKILL)
        while name not in driver.supervisor.gone:
            await asyncio.sleep(0.005)
        noticed = time.monotonic() - began
        while name in driver.supervisor.gone:
            await asyncio.sleep(0.005)
        seconds[name] = {"noticed_s": noticed, "at_work_s": time.monotonic() - began}


def recovery(kind: str, prepared: Path, folder: Path) -> dict[str, dict[str, float]]:
    seconds: dict[str, dict[str, float]] = {}
    config = configured(prepared, folder / f"{kind}-killed", len(VICTIMS) + 2, type=kind, generators=2)
    driver = asyncio.run(on_mesh(kind, config, lambda driver: kill_in_turn(driver, seconds)))
    over = [n for numbers in driver.ledger.trained.values() for n in numbers] + list(driver.ledger.dropped)
    assert sorted(over) == sorted(driver.ledger.issued), "a group was counted twice, or not at all"
    return seconds


def show(rated: dict[str, Any], recovered: dict[str, Any]) -> None:
    table = Table(title="trajectories trained on per minute")
    for column in ("", "per minute", "CPU-s each", "trainer waits", "staleness max", "dropped"):
        table.add_column(column)
    for name, one in rated.items():
        table.add_row(
            name,
            f"{one['trajectories_per_min']:.0f}",
            f"{one['cpu_s_per_trajectory']:.2f}",
            f"{one['waiting_share']:.0%}",
            f"{one['staleness_max']:.0f}",
            f"{one['dropped']:.0f}",
        )
    killed = Table(title="seconds from SIGKILL until noticed / until the successor is at work")
    for column in ("", *recovered):
        killed.add_column(column)
    for name in VICTIMS:
        cells = [f"{r[name]['noticed_s']:.1f} / {r[name]['at_work_s']:.1f}" for r in recovered.values()]
        killed.add_row(name, *cells)
    console = Console(width=120)
    console.print(table)
    console.print(killed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--meshes", nargs="+", default=[kind for kind in MESHES if find_spec(kind)], choices=MESHES)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2, help="of throughput; 0 leaves that out")
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--prepared", type=Path, default=Path("runs/bench-mesh.prepared"), help="made where it is missing")
    options = parser.parse_args()
    prepare(options.prepared, Terminal(), seed=0, sandbox="auto")
    folder = Path(tempfile.mkdtemp(prefix="bench-mesh-"))
    try:
        rated = throughput(options.meshes, options.prepared, folder, options.steps, options.rounds, options.staleness)
        recovered = {kind: recovery(kind, options.prepared, folder) for kind in options.meshes}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(rated, recovered)
    ratios = {
        kind: rated[f"{kind} asynchronous"]["trajectories_per_min"] / rated[f"{kind} synchronous"]["trajectories_per_min"]
        for kind in (options.meshes if rated else ())
    }
    if rated:
        print(f"asynchronous over synchronous: {', '.join(f'{kind} {ratio:.2f}' for kind, ratio in ratios.items())}")
    emit("mesh", {"rates": rated, "asynchronous_over_synchronous": ratios, "recovery": recovered, "bound": options.staleness})


if __name__ == "__main__":
    main()
