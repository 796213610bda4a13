"""Measure what hinted re-attempts add to the policy gradient and hints, beside as many rollouts without hints.

    python benchmarks/reattempts.py --write docs/figures/reattempts.json      # make bench-reattempts

The quickstart's tasks and policy, without teachers, at one learning rate for every arm:

- `hints`: 4 groups of 8 rollouts a step, and hints;
- `hints, more siblings`: 4 groups of 10, as many rollouts as the last arm has;
- `re-attempts`: 4 groups of 8, and 8 failed ones tried again with their hint in the context.

A run that is there is resumed or read. The last line is JSON; it passes when the re-attempts are not below the others beyond the
95 % interval of the difference over the held-out tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections import defaultdict
from pathlib import Path

from measuring import emit

from composer_replication.config import RunConfig
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.metrics import t_975
from composer_replication.quickstart.run import ARM_STEPS, prepare, quickstart_config
from composer_replication.trainer.open_run import open_run
from composer_replication.trainer.report import train

ROOT = Path(__file__).resolve().parents[1]
AGAIN = 8
ARMS = {
    "hints": (8, {"loss.replay.weight": 0.0}),
    "hints, more siblings": (10, {"loss.replay.weight": 0.0}),
    "re-attempts": (8, {"loss.replay.reattempts": AGAIN}),
}
"""Siblings of a group, and what the arm sets."""


def trained(name: str, work: Path, seed: int) -> RunDir:
    """Train an arm, or read what it has reached."""
    siblings, options = ARMS[name]
    run = work / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
    base = quickstart_config(work / f"prepared{seed}", run, (), seed=seed, steps=ARM_STEPS, sandbox="auto").model_dump()
    base["rollout"]["group_size"] = siblings
    config = RunConfig.model_validate(base | {"arms": {"main": options}})
    terminal = Terminal()
    with open_run(config, resume=True) as run_dir:
        terminal.on_event = run_dir.log_event
        asyncio.run(train(config, run_dir, terminal))
        return run_dir


def passed(run: RunDir) -> dict[str, float]:
    """Return the share of samples that pass, by held-out task, at the last evaluation."""
    found = defaultdict(list)
    for one in run.read_evaluation("main", run.evaluations("main")[-1]):
        found[one.task_id].append(float(one.passed))
    return {task: statistics.fmean(each) for task, each in found.items()}


def main() -> None:
    """Train what is missing and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "bench-reattempts", help="keep policies and runs here")
    parser.add_argument("--write", type=Path, help="write the figures to this file")
    parser.add_argument("--seed", type=int, default=0, help="seed of the warm start and of the runs")
    options = parser.parse_args()
    prepare(options.work / f"prepared{options.seed}", Terminal(), seed=options.seed, sandbox="auto")
    rows, shares = [], {}
    for name in ARMS:
        run = trained(name, options.work, options.seed)
        shares[name] = passed(run)
        lines = [line.values for line in run.read_metrics()]
        counts = {key: sum(line.get(f"reattempt/{key}", 0.0) for line in lines) for key in ("tried", "passed", "pairs")}
        start = next(line["eval/pass_at_1"] for line in lines if "eval/pass_at_1" in line)
        rows.append(
            {
                "arm": name,
                "start": round(start, 3),
                "pass_at_1": round(statistics.fmean(shares[name].values()), 3),
                "rollouts": lines[-1]["rollout/total"],
                "cpu_s": round(lines[-1]["cost/cpu_s"], 1),
                **counts,
            }
        )
        print(rows[-1], flush=True)
    gains = {name: difference(shares["re-attempts"], other) for name, other in shares.items() if name != "re-attempts"}
    found = {"seed": options.seed, "rows": rows, "gain_over": gains, "passed": all(high >= 0 for _, high in gains.values())}
    emit("reattempts", found, options.write)
    raise SystemExit(not found["passed"])


def difference(ours: dict[str, float], theirs: dict[str, float]) -> tuple[float, float]:
    """Return the 95 % t interval of the mean difference over the tasks."""
    each = [ours[task] - theirs[task] for task in ours]
    half = t_975(len(each) - 1) * statistics.stdev(each) / len(each) ** 0.5
    return round(statistics.fmean(each) - half, 3), round(statistics.fmean(each) + half, 3)


if __name__ == "__main__":
    main()
