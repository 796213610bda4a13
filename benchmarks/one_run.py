"""One run of the quickstart on one substrate: its policy, tasks and teachers, by `composer train` in that environment.

    python benchmarks/one_run.py trl              # make one-run SUBSTRATE=trl makes the environment first
    python benchmarks/one_run.py ray monarch --steps 4

36 steps of 32 rollouts with all three channels and seed 0 unless told otherwise. Prints pass@1 of every evaluation and what each
channel did, and ends with one line of JSON; a channel that is on and whose loss was 0 in every step is an error. The meshes have
2 generators and take groups that are at most one step old. Runs stay in `runs/one-run/runs`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from measuring import emit
from rich.console import Console
from rich.table import Table
from substrates import ENVIRONMENTS, ROOT, composer_of

from composer_replication.config import RunConfig, SubstrateConfig, TeacherConfig, resolve_arm, to_toml
from composer_replication.observe import RunDir, Terminal
from composer_replication.quickstart.run import ARM_STEPS, ARMS, prepare, quickstart_config
from composer_replication.quickstart.teachers import TEACHERS, served

ARM = "three_channels"
COUNTS = {"rlvr": "rlvr/tokens", "hint": "hint/turns", "replay": "replay/pairs"}
"""What a channel learnt from in a step."""
WORST: dict[str, Callable[[Sequence[float]], float]] = {
    "cost/cpu_s": max,
    "mesh/staleness/max": max,
    "mesh/dropped": max,
    "mesh/replaced": max,
    "rlvr/ratio/max": max,
    "optimizer/grad_norm": min,
}
"""Metrics that only some substrates have, and how those of the steps become one."""


def configured(kind: str, world: Path, teachers: tuple[TeacherConfig, ...], arm: str, steps: int, seed: int) -> RunConfig:
    config = quickstart_config(world, world / "runs" / f"{kind}-{arm}", teachers, seed=seed, steps=steps, sandbox="auto")
    evaluation = config.eval.model_copy(update={"every": max(1, steps // 2)})
    update = {"arms": {arm: ARMS[arm]}, "eval": evaluation, "substrate": SubstrateConfig.model_validate({"type": kind})}
    return config.model_copy(update=update)


def train(config: RunConfig) -> RunDir:
    """Exits with the status and the last words of a run that fails."""
    kind, out = config.substrate.type, config.out / config.name
    shutil.rmtree(out, ignore_errors=True)
    config.out.mkdir(parents=True, exist_ok=True)
    run_file, log = config.out / f"{config.name}.toml", config.out / f"{config.name}.log"
    run_file.write_text(to_toml(config))
    print(f"{kind}: {config.steps} steps; {log} tells how far it is", flush=True)
    with log.open("wb") as told:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"}
        command = [composer_of(kind), "train", run_file]
        done = subprocess.run(command, stdout=told, stderr=subprocess.STDOUT, env=environment, check=False)
    if done.returncode != 0:
        print(log.read_text()[-2000:], file=sys.stderr)
        sys.exit(done.returncode)
    return RunDir(out)


def figures(run: RunDir, config: RunConfig, arm: str, wall_s: float) -> dict[str, Any]:
    """What the run's metrics say. Exits when a channel that is on had nothing to say in any step."""
    lines = run.read_metrics()
    values = [line.values for line in lines if line.step > 0]
    if len(values) != config.steps:
        sys.exit(f"{run.path}: metrics of {len(values)} steps, {config.steps} were asked for")
    channels = {name: channel(name, values) for name in on(resolve_arm(config, arm))}
    if silent := [name for name, one in channels.items() if not one["steps_not_0"]]:
        sys.exit(f"{run.path}: nothing came of {', '.join(silent)}: the loss is 0 in every step")
    rewards = [v["reward/mean"] for v in values]
    quarter = max(1, len(rewards) // 4)
    times = [v["time/rollout_s"] + v["time/update_s"] for v in values if "time/rollout_s" in v and "time/update_s" in v]
    evaluated = [line for line in lines if "eval/pass_at_1" in line.values]
    found: dict[str, Any] = {
        "pass_at_1": {line.step: round(line.values["eval/pass_at_1"], 3) for line in evaluated},
        "pass_at_1_se": {line.step: round(line.values["eval/pass_at_1_se"], 3) for line in evaluated},
        "reward_first_quarter": round(statistics.fmean(rewards[:quarter]), 3),
        "reward_last_quarter": round(statistics.fmean(rewards[-quarter:]), 3),
        "channels": channels,
        "step_s_median": round(statistics.median(times), 2) if times else None,
        "wall_s": round(wall_s, 1),
    }
    for name, worst in WORST.items():
        if known := [v[name] for v in values if name in v]:
            found[name] = round(worst(known), 6)
    return found


def on(config: RunConfig) -> list[str]:
    loss = config.loss
    return ["rlvr"] + [name for name, weight in (("hint", loss.hint.weight), ("replay", loss.replay.weight)) if weight > 0]


def channel(name: str, values: Sequence[dict[str, float]]) -> dict[str, float]:
    """A channel's loss over the steps, in how many it was not 0, and what it learnt from on average, where that is told."""
    losses = [v.get(f"{name}/loss", 0.0) for v in values]
    learnt = [v[COUNTS[name]] for v in values if COUNTS[name] in v]
    return {
        "steps_not_0": sum(loss != 0.0 for loss in losses),
        "loss_first": float(f"{losses[0]:.4g}"),
        "loss_last": float(f"{losses[-1]:.4g}"),
        **({COUNTS[name].partition("/")[2]: round(statistics.fmean(learnt), 1)} if learnt else {}),
    }


def show(found: dict[str, dict[str, Any]], steps: int) -> None:
    table = Table("substrate", "pass@1 (step: value ± se)", "reward", "channel: steps not 0, loss first -> last, per step")
    for kind, one in found.items():
        passed = "\n".join(f"{step}: {value:.3f} ± {one['pass_at_1_se'][step]:.3f}" for step, value in one["pass_at_1"].items())
        told = []
        for name, c in one["channels"].items():
            line = f"{name}: {c['steps_not_0']}/{steps}, {c['loss_first']} -> {c['loss_last']}"
            what = COUNTS[name].partition("/")[2]
            told.append(line + (f", {c[what]} {what}" if what in c else ""))
        table.add_row(kind, passed, f"{one['reward_first_quarter']} -> {one['reward_last_quarter']}", "\n".join(told))
    Console(width=130).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("substrates", nargs="+", choices=ENVIRONMENTS, metavar="SUBSTRATE", help=", ".join(ENVIRONMENTS))
    parser.add_argument("--steps", type=int, default=ARM_STEPS)
    parser.add_argument("--arm", choices=ARMS, default=ARM)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--world", type=Path, default=ROOT / "runs" / "one-run", help="where it all lies; made where missing")
    asked = parser.parse_args()
    for kind in asked.substrates:
        composer_of(kind)
    world = asked.world.resolve()
    prepare(world, Terminal(), seed=asked.seed, sandbox="auto")
    found: dict[str, dict[str, Any]] = {}
    with served({name: world / "teachers" / name for name in TEACHERS}) as teachers:
        for kind in asked.substrates:
            config = configured(kind, world, teachers, asked.arm, asked.steps, asked.seed)
            began = time.monotonic()
            run = train(config)
            found[kind] = figures(run, config, asked.arm, time.monotonic() - began)
    show(found, asked.steps)
    emit("one-run", {"arm": asked.arm, "steps": asked.steps, "seed": asked.seed, **found})


if __name__ == "__main__":
    main()
