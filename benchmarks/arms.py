"""The experiment behind the claim: three seeds with warm starts of their own, four settings of every arm, equal rollouts.

For every seed: tasks, warm start and teachers as in the quickstart, then each arm at four settings: two learning rates by two
weights of the hint and replay channels, or, for GRPO alone, which has no such weight, four learning rates around theirs. An
arm's setting is chosen by the reward on TRAINING tasks over its last steps, a mean over the seeds; what is reported is pass@1 on
the held-out tasks, and the table gives it for every setting. The traces that replay freezes are rollouts too: GRPO alone gets one
more step instead. The control arm gets every hint's text from another task. Everything lies under `runs/arms`, with a log and a
report for each run, and an interrupted experiment goes on. One process per CPU, each on one thread. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from composer_replication.observe import Terminal
from composer_replication.observe.console import Console
from composer_replication.quickstart.run import prepare, quickstart_config
from composer_replication.quickstart.teachers import TEACHERS, served
from composer_replication.trainer.open_run import open_run
from composer_replication.trainer.report import train

RATES = (5e-4, 1e-3)
WEIGHTS = (0.3, 1.0)
GRPO_RATES = (1e-4, 3e-4, 6e-4, 1e-3)
LAST_STEPS = 20
"""The training reward that chooses a setting is a mean over so many steps."""

Overrides = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Reached:
    """What one setting reached on one seed."""

    pass_at_1: float
    training_reward: float
    rollouts: int
    tokens: int
    cpu_s: float


def grid(steps: int) -> dict[str, dict[str, Overrides]]:
    """Every setting of every arm."""
    arms: dict[str, dict[str, Overrides]] = {"grpo_only": {}, "three_channels": {}, "shuffled_hints": {}}
    for rate in GRPO_RATES:
        off: Overrides = {"loss.hint.weight": 0.0, "loss.replay.weight": 0.0, "steps": steps + 1}
        arms["grpo_only"][f"grpo_only-lr{rate:g}"] = {"optimizer.learning_rate": rate, **off}
    for rate, weight in itertools.product(RATES, WEIGHTS):
        on: Overrides = {"optimizer.learning_rate": rate, "loss.hint.weight": weight, "loss.replay.weight": weight}
        arms["three_channels"][f"three_channels-lr{rate:g}-w{weight:g}"] = on
        arms["shuffled_hints"][f"shuffled_hints-lr{rate:g}-w{weight:g}"] = {**on, "loss.hint.shuffle": True}
    return arms


def prepare_seed(out: Path, seed: int) -> None:
    """Tasks, warm start and teachers of one seed."""
    with (out / f"seed{seed}.log").open("a") as log:
        prepare(out / f"seed{seed}.prepared", Terminal(Console(file=log)), seed=seed, sandbox="auto")


def run_arm(out: Path, seed: int, arm: str, steps: int) -> tuple[float, dict[str, Reached]]:
    """All settings of one arm on one seed: the warm start's pass@1, and what each setting reached."""
    prepared, run_path = out / f"seed{seed}.prepared", out / f"seed{seed}-{arm}"
    folders = {name: prepared / "teachers" / name for name in TEACHERS}
    with (out / f"seed{seed}-{arm}.log").open("a") as log, served(folders) as teachers:
        config = quickstart_config(prepared, run_path, teachers, seed=seed, steps=steps, sandbox="auto")
        config = config.model_copy(update={"arms": grid(steps)[arm]})
        with open_run(config, resume=True) as run_dir:
            terminal = Terminal(Console(file=log), on_event=run_dir.log_event)
            rows = asyncio.run(train(config, run_dir, terminal, start_label="warm start"))
    metrics = run_dir.read_metrics()
    first = next(m.values["eval/pass_at_1"] for m in metrics if m.step == 0)
    reached = {}
    for row in rows:
        rewards = [m.values["reward/mean"] for m in metrics if m.arm == row.arm and m.step > 0][-LAST_STEPS:]
        cpu_s = float("nan") if row.cpu_s is None else row.cpu_s
        reached[row.arm] = Reached(row.pass_at_1, statistics.fmean(rewards), row.rollouts or 0, row.tokens or 0, cpu_s)
    return first, reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("runs/arms"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    seeds, arms = range(options.seeds), tuple(grid(options.steps))
    starts: dict[int, float] = {}
    rows: dict[str, dict[int, Reached]] = {}
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(prepare_seed, itertools.repeat(options.out), seeds))
        print(f"{options.seeds} warm starts are ready; {len(arms) * options.seeds} runs follow", flush=True)
        jobs = {pool.submit(run_arm, options.out, s, arm, options.steps): (s, arm) for arm in arms for s in seeds}
        for job in as_completed(jobs):
            seed, arm = jobs[job]
            starts[seed], reached = job.result()
            for setting, row in reached.items():
                rows.setdefault(setting, {})[seed] = row
            print(f"seed {seed}, {arm}: " + ", ".join(f"{s} {row.pass_at_1:.3f}" for s, row in reached.items()), flush=True)
    _show(starts, rows, options.steps)


def _show(starts: dict[int, float], rows: dict[str, dict[int, Reached]], steps: int) -> None:
    """The table of all settings, and the JSON line with the chosen one of each arm."""
    passed = {s: [by_seed[seed].pass_at_1 for seed in sorted(by_seed)] for s, by_seed in rows.items()}
    practised = {s: statistics.fmean(r.training_reward for r in by_seed.values()) for s, by_seed in rows.items()}
    chosen = {arm: max(settings, key=practised.__getitem__) for arm, settings in grid(steps).items()}
    start = [starts[seed] for seed in sorted(starts)]
    cells: list[tuple[str, ...]] = [("warm start", *_cells(start), "", "0", "0", "0")]
    for setting in sorted(rows, key=lambda s: -practised[s]):
        found = rows[setting].values()
        spent = (statistics.fmean(column) for column in zip(*((r.rollouts, r.tokens, r.cpu_s) for r in found), strict=True))
        mark = " *" if setting in chosen.values() else ""
        cells.append((setting + mark, *_cells(passed[setting]), f"{practised[setting]:.3f}", *(f"{x:,.0f}" for x in spent)))
    columns = ("setting", "pass@1", "each seed", "training reward", "rollouts", "tokens", "CPU s")
    Terminal().table(f"pass@1 on held-out tasks after {steps} steps; * chosen by training reward", columns, cells)
    figures = {arm: {"setting": s, "pass_at_1": passed[s], "mean": statistics.fmean(passed[s])} for arm, s in chosen.items()}
    print(json.dumps({"steps": steps, "warm_start": start, "chosen": figures}))


def _cells(values: list[float]) -> tuple[str, str]:
    """Mean with its standard error, and the values."""
    mean = statistics.fmean(values)
    se = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{mean:.3f} ± {se:.3f}", " ".join(f"{v:.3f}" for v in values)


if __name__ == "__main__":
    main()
