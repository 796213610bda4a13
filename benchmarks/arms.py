"""The experiment behind the claim: three seeds with warm starts of their own, every arm over the same grid, equal rollouts.

For every seed: tasks, warm start and teachers as in the quickstart, then each arm at every learning rate and weight of the grid.
An arm's setting is chosen by its mean pass@1 over the seeds, so every arm is tuned alike; the table gives all settings. The
control arm gets every hint's text from another task. Everything lies under `runs/arms` and an interrupted experiment goes on.
Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
from pathlib import Path

from composer_replication.embedded.quickstart import prepare, quickstart_config
from composer_replication.embedded.teachers import TEACHERS, served
from composer_replication.observe import Terminal
from composer_replication.trainer.loop import train
from composer_replication.trainer.open_run import open_run

RATES = (1e-4, 2e-4, 4e-4)
WEIGHTS = (0.3, 1.0)

Overrides = dict[str, str | int | float | bool]


def grid() -> dict[str, Overrides]:
    """Every setting of every arm; the weight is that of hint and replay channel, so GRPO alone has none."""
    arms: dict[str, Overrides] = {}
    for rate in RATES:
        off: Overrides = {"loss.hint.weight": 0.0, "loss.replay.weight": 0.0}
        arms[f"grpo_only-lr{rate:g}"] = {"optimizer.learning_rate": rate, **off}
    for rate, weight in itertools.product(RATES, WEIGHTS):
        on: Overrides = {"optimizer.learning_rate": rate, "loss.hint.weight": weight, "loss.replay.weight": weight}
        arms[f"three_channels-lr{rate:g}-w{weight:g}"] = on
        arms[f"shuffled_hints-lr{rate:g}-w{weight:g}"] = {**on, "loss.hint.shuffle": True}
    return arms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("runs/arms"))
    options = parser.parse_args()
    terminal = Terminal()
    results: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        prepared, run_path = options.out / f"seed{seed}.prepared", options.out / f"seed{seed}"
        prepare(prepared, terminal, seed=seed, sandbox="auto")
        with served({name: prepared / "teachers" / name for name in TEACHERS}) as teachers:
            config = quickstart_config(prepared, run_path, teachers, seed=seed, steps=options.steps, sandbox="auto")
            config = config.model_copy(update={"arms": grid()})
            run_dir = open_run(config, resume=True)
            terminal.on_event = run_dir.log_event
            rows = asyncio.run(train(config, run_dir, terminal, start_label="warm start"))
        for row in rows:
            results.setdefault(row.arm, []).append(row.pass_at_1)
    means = {arm: statistics.fmean(values) for arm, values in results.items()}
    best = {name: max((a for a in means if a.startswith(name)), key=means.__getitem__) for name in _names(means)}
    rows_shown = [(arm, f"{means[arm]:.3f}", " ".join(f"{v:.3f}" for v in results[arm])) for arm in means]
    terminal.table("pass@1 on held-out tasks, mean over seeds", ("setting", "mean", "each seed"), rows_shown)
    print(json.dumps({"steps": options.steps, "best": {n: {"setting": a, "pass_at_1": results[a]} for n, a in best.items()}}))


def _names(means: dict[str, float]) -> list[str]:
    return list(dict.fromkeys(arm.partition("-")[0] for arm in means))


if __name__ == "__main__":
    main()
