"""The same work on every substrate: seconds of a step, tokens per second, CPU-seconds and memory, beside the local trainer.

A run of a few steps over the quickstart's tasks and policy with all three channels, by `composer train` in each substrate's own
environment (`.nox/NAME`, made by `make bench-substrates`), in rounds, one after the other; figures are medians over the rounds.
The first step of a run is left out: it pays for starting. A step ends when its line of metrics is written. CPU-seconds and memory
are those of all processes that the command brings about; memory is the most that they hold together (PSS, sampled). A channel
whose loss is 0 in all steps of a run is an error. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from measuring import emit, family
from rich.console import Console
from rich.table import Table

from composer_replication.config import to_toml
from composer_replication.observe import RunDir, Terminal
from composer_replication.quickstart.run import prepare, quickstart_config

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {"local": ".venv", "trl": ".nox/trl", "verl": ".nox/verl", "ray": ".nox/mesh", "monarch": ".nox/monarch"}
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run took, its first step left out."""

    step_s: float
    tokens_per_s: float
    cpu_s_per_step: float
    memory_mb: float
    channels: dict[str, float]
    """Size of each channel's loss, summed over the steps, to show that it was on."""


def composer_of(kind: str) -> Path:
    """The command in a substrate's environment. Exits when there is none."""
    command = ROOT / ENVIRONMENTS[kind] / "bin" / "composer"
    if not command.exists():
        session = Path(ENVIRONMENTS[kind]).name
        sys.exit(f"{kind}: no environment at {ENVIRONMENTS[kind]}; make it with: .venv/bin/nox --install-only -s {session}")
    return command


def pss_mb(pids: list[int]) -> float:
    """Proportional set size of processes together."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
    return total / 1024


def watch(process: subprocess.Popen[bytes], metrics: Path) -> tuple[list[float], list[float], float]:
    """When each step's line appeared, the CPU-seconds spent until then, and the peak of memory, until the process ends."""
    times: list[float] = []
    spent: list[float] = []
    ended: dict[int, float] = {}
    peak = 0.0
    while process.poll() is None:
        now = family()
        del now[os.getpid()]  # this one only watches
        ended |= now
        seen = metrics.read_text().count("\n") if metrics.exists() else 0
        while len(times) < seen:
            times.append(time.perf_counter())
            spent.append(sum(ended.values()))
        peak = max(peak, pss_mb(list(now)))
        time.sleep(0.1)
    return times, spent, peak


def run(kind: str, world: Path, steps: int) -> Measured:
    """Train on one substrate. Raises RuntimeError when it fails, or a channel was silent."""
    out = world / "runs" / kind
    shutil.rmtree(out, ignore_errors=True)
    run_file = world / f"{kind}.toml"
    config = quickstart_config(world, out, (), seed=0, steps=steps, sandbox="auto")
    data = tomllib.loads(to_toml(config))
    data["arms"] = {"main": {}}
    data["checkpoint_every"] = steps
    data["eval"] = {"every": steps, "samples": 1}
    data["tasks"].pop("held_out")
    data["loss"]["replay"]["pairs"] = str(world / "pairs.jsonl")
    data["substrate"] = {"type": kind}
    run_file.write_text(tomli_w.dumps(data))
    log = world / f"{kind}.log"
    with log.open("wb") as told:
        process = subprocess.Popen(
            [composer_of(kind), "train", run_file],
            stdout=told,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"},
        )
        times, spent, peak = watch(process, out / "metrics.jsonl")
    if process.returncode != 0:
        raise RuntimeError(f"{kind}: composer train exited with {process.returncode}:\n{log.read_text()[-2000:]}")
    lines = [line for line in RunDir(out).read_metrics() if line.step > 0]
    timed = list(zip(times, spent, strict=True))[-len(lines) :]
    (first, cpu_first), (last, cpu_last) = timed[0], timed[-1]
    tokens = sum(line.values["rollout/tokens/mean"] for line in lines[1:]) * config.rollout.groups * config.rollout.group_size
    losses = {c: sum(abs(line.values.get(f"{c}/loss", 0.0)) for line in lines) for c in ("rlvr", "hint", "replay")}
    if silent := [name for name, loss in losses.items() if not loss]:
        raise RuntimeError(f"{kind}: nothing came of {', '.join(silent)}: the loss is 0 in every step of {out}")
    return Measured(
        step_s=(last - first) / (len(lines) - 1),
        tokens_per_s=tokens / (last - first),
        cpu_s_per_step=(cpu_last - cpu_first) / (len(lines) - 1),
        memory_mb=peak,
        channels=losses,
    )


def median(runs: list[Measured]) -> Measured:
    """Of each figure by itself; of the losses those of the first run."""
    fields = ("step_s", "tokens_per_s", "cpu_s_per_step", "memory_mb")
    return Measured(**{name: statistics.median(getattr(one, name) for one in runs) for name in fields}, channels=runs[0].channels)


def write_pairs(world: Path) -> None:
    """A few pairs at the first state of tasks: looking before submitting."""
    rows = []
    for number in range(12):
        messages = [{"role": "system", "content": "You repair code."}, {"role": "user", "content": f"Task {number}."}]
        chosen, rejected = (json.dumps({"name": name, "arguments": {}}) for name in ("list_files", "submit"))
        row = {"state_id": f"pair#{number}", "state_messages": messages, "chosen": chosen, "rejected": rejected}
        rows.append(json.dumps(row | {"n_teachers_agreeing": 2}) + "\n")
    (world / "pairs.jsonl").write_text("".join(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(ENVIRONMENTS), choices=ENVIRONMENTS, metavar="SUBSTRATE")
    parser.add_argument("--steps", type=int, default=5, help="two or more: the first is left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--world", type=Path, default=ROOT / "runs" / "bench-substrates", help="where it all lies")
    asked = parser.parse_args()
    if asked.rounds < 1 or asked.steps < 2:
        parser.error("--rounds wants 1 or more, --steps 2 or more")
    world = asked.world.resolve()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a daemon's orphans count too
    prepare(world, Terminal(), seed=0, sandbox="auto")
    write_pairs(world)
    rounds: dict[str, list[Measured]] = {kind: [] for kind in asked.only}
    for kind in asked.only * asked.rounds:
        rounds[kind].append(run(kind, world, asked.steps))
        print(f"{kind}: {rounds[kind][-1].step_s:.2f} s a step", flush=True)
    found = {kind: median(runs) for kind, runs in rounds.items()}
    table = Table("substrate", "s / step", "tokens / s", "CPU s / step", "peak MB", "rlvr, hint, replay loss")
    for kind, m in found.items():
        losses = ", ".join(f"{value:.3g}" for value in m.channels.values())
        table.add_row(kind, f"{m.step_s:.2f}", f"{m.tokens_per_s:.0f}", f"{m.cpu_s_per_step:.2f}", f"{m.memory_mb:.0f}", losses)
    Console().print(table)
    figures: dict[str, dict[str, Any]] = {
        kind: {
            "step_s": round(m.step_s, 3),
            "step_s_of_rounds": [round(one.step_s, 3) for one in rounds[kind]],
            "cpu_s_per_step": round(m.cpu_s_per_step, 3),
            "losses": {name: float(f"{value:.4g}") for name, value in m.channels.items()},
        }
        for kind, m in found.items()
    }
    if "local" in found:
        base = found["local"]
        for kind, m in found.items():
            figures[kind] |= {"wall_ratio": round(m.step_s / base.step_s, 2)}
            figures[kind] |= {"cpu_ratio": round(m.cpu_s_per_step / base.cpu_s_per_step, 2)}
            figures[kind] |= {"memory_mb": round(m.memory_mb), "tokens_per_s": round(m.tokens_per_s, 1)}
    emit("substrates", figures)


if __name__ == "__main__":
    main()
