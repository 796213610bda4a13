"""The experiment behind the claim: three seeds with warm starts of their own, every arm over the same grid, equal rollouts.

For every seed: tasks, warm start and teachers as in the quickstart, then each arm at every learning rate and weight of the grid.
An arm's setting is chosen by its mean pass@1 over the seeds, so every arm is tuned alike; the table gives all settings. The
control arm gets every hint's text from another task. Everything lies under `runs/arms`, with a log and a report for each run, and
an interrupted experiment goes on. One process per CPU, each on one thread. Ends with one line of JSON.
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
from pathlib import Path

from rich.console import Console

from composer_replication.embedded.quickstart import ARM_STEPS, prepare, quickstart_config
from composer_replication.embedded.teachers import TEACHERS, served
from composer_replication.observe import Terminal
from composer_replication.trainer.loop import train
from composer_replication.trainer.open_run import open_run

RATES = (3e-4, 1e-3)
WEIGHTS = (0.3, 1.0)

Overrides = dict[str, str | int | float | bool]
Rows = dict[str, tuple[float, int, int, float]]
"""By setting: pass@1, rollouts, tokens, CPU seconds."""


def grid() -> dict[str, dict[str, Overrides]]:
    """Every setting of every arm; the weight is that of hint and replay channel, so GRPO alone has none."""
    arms: dict[str, dict[str, Overrides]] = {"grpo_only": {}, "three_channels": {}, "shuffled_hints": {}}
    for rate in RATES:
        off: Overrides = {"loss.hint.weight": 0.0, "loss.replay.weight": 0.0}
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


def run_arm(out: Path, seed: int, arm: str, steps: int) -> tuple[float, Rows]:
    """All settings of one arm on one seed: the warm start's pass@1, and what each setting reached."""
    prepared, run_path = out / f"seed{seed}.prepared", out / f"seed{seed}-{arm}"
    folders = {name: prepared / "teachers" / name for name in TEACHERS}
    with (out / f"seed{seed}-{arm}.log").open("a") as log, served(folders) as teachers:
        config = quickstart_config(prepared, run_path, teachers, seed=seed, steps=steps, sandbox="auto")
        run_dir = open_run(config.model_copy(update={"arms": grid()[arm]}), resume=True)
        terminal = Terminal(Console(file=log), on_event=run_dir.log_event)
        rows = asyncio.run(train(config.model_copy(update={"arms": grid()[arm]}), run_dir, terminal, start_label="warm start"))
    first = next(m.values["eval/pass_at_1"] for m in run_dir.read_metrics() if m.step == 0)
    return first, {row.arm: (row.pass_at_1, row.rollouts, row.tokens, row.cpu_s) for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=ARM_STEPS)
    parser.add_argument("--out", type=Path, default=Path("runs/arms"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    seeds, arms = range(options.seeds), tuple(grid())
    starts: dict[int, float] = {}
    rows: dict[str, dict[int, tuple[float, int, int, float]]] = {}
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(prepare_seed, itertools.repeat(options.out), seeds))
        print(f"{options.seeds} warm starts are ready; {len(arms) * options.seeds} runs follow", flush=True)
        jobs = {pool.submit(run_arm, options.out, s, arm, options.steps): (s, arm) for arm in arms for s in seeds}
        for job in as_completed(jobs):
            seed, arm = jobs[job]
            starts[seed], reached = job.result()
            for setting, row in reached.items():
                rows.setdefault(setting, {})[seed] = row
            print(f"seed {seed}, {arm}: " + ", ".join(f"{s} {row[0]:.3f}" for s, row in reached.items()), flush=True)
    _show(starts, rows, options.steps)


def _show(starts: dict[int, float], rows: dict[str, dict[int, tuple[float, int, int, float]]], steps: int) -> None:
    """The table of all settings, and the JSON line with the best of each arm."""
    means = {setting: statistics.fmean(row[0] for row in by_seed.values()) for setting, by_seed in rows.items()}
    best = {arm: max((s for s in means if s.startswith(arm)), key=means.__getitem__) for arm in grid()}
    cells = [("warm start", *_cells([starts[s] for s in sorted(starts)]), "0", "0", "0")]
    for setting in sorted(rows, key=lambda s: -means[s]):
        by_seed = [rows[setting][s] for s in sorted(rows[setting])]
        spent = [f"{statistics.fmean(row[i] for row in by_seed):,.0f}" for i in (1, 2, 3)]
        cells.append((f"{setting}{' *' if setting in best.values() else ''}", *_cells([row[0] for row in by_seed]), *spent))
    columns = ("setting", "pass@1", "each seed", "rollouts", "tokens", "CPU s")
    Terminal().table(f"pass@1 on held-out tasks after {steps} steps, mean over seeds; * best of its arm", columns, cells)
    figures = {arm: {"setting": s, "pass_at_1": [rows[s][seed][0] for seed in sorted(rows[s])]} for arm, s in best.items()}
    print(json.dumps({"steps": steps, "warm_start": [starts[s] for s in sorted(starts)], "best": figures}))


def _cells(values: list[float]) -> tuple[str, str]:
    """Mean with its standard error, and the values."""
    mean = statistics.fmean(values)
    se = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{mean:.3f} ± {se:.3f}", " ".join(f"{v:.3f}" for v in values)


if __name__ == "__main__":
    main()
