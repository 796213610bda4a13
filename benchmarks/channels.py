"""Measure what each channel does to a policy, alone and beside the others, and beside what could replace it.

The world is `channel_world`: the quickstart's tasks with exact probabilities, so that pass@1 has no sampling error and a run
costs seconds. Everything else is the trainer's own: records, `collate`, `Learner.update` with its self-teacher, anchor and
brake, AdamW, warm-up and clipping. Five seeds have five policies, each warm-started from another initialisation. Each run is
kept in `--work` as soon as it is done, and is not made again; neither is one of the present code that the file of `--write` has.
Channels are judged by paired differences over the seeds, with a 95 % t interval:

- harm: no channel may lower pass@1 beyond its interval, at any setting of the grid, beside the same run without it;
- falling: with pairs, the log-prob of the chosen answers ends no lower than it began, in every run, or than it ends without the
  pairs where the policy gradient lowers it;
- default: what the run file chooses by itself is within its interval of the best setting of its grid.

CPU-seconds are those of rollouts and updates, without warm starts and measurements. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from channel_arms import FORM_STEPS, SEEDS, grid
from channel_runs import config_of, settings_of, train
from channel_tables import behind, carried_down, fallen, harms, table
from channel_world import in_both_forms
from measuring import ROOT, digest_of_code, emit

from composer_replication.loss.forward.models import load_policy, save_policy
from composer_replication.observe import Terminal
from composer_replication.quickstart.run import warm_start
from composer_replication.quickstart.warm_start import imitate
from composer_replication.tokens import ChatRenderer

_WARM = tuple(f"composer_replication/{room}/**/*.py" for room in ("quickstart", "tokens"))
"""Code that makes the policies which all arms start from."""
_MEASURED = (
    *(f"composer_replication/{room}/**/*.py" for room in ("loss", "distillation", "kernels", "policy_gradient")),
    *("composer_replication/trainer/learning/**/*.py", "composer_replication/trainer/pairs/held.py"),
    *("composer_replication/hints/holding.py", "composer_replication/hints/insertion.py"),
    *("composer_replication/trainer/hint_filter.py", "benchmarks/channel_world.py", "benchmarks/channel_runs.py"),
    *_WARM,
)
"""Code that the figures describe: runs of other code are made again."""


def policy_name(seed: int, both_forms: bool) -> str:
    """Return the folder of a seed's policy."""
    made_by = digest_of(_WARM)
    return f"policy{seed}-both-forms-{made_by}" if both_forms else f"policy{seed}-{made_by}"


def learn_both_forms(work: Path, seed: int) -> None:
    """Make a seed's policy that writes its edits in either form; one that is there is kept."""
    out = work / policy_name(seed, both_forms=True)
    if out.exists():
        return
    model, tokenizer = load_policy(config_of(grid()[0], work / policy_name(seed, both_forms=False)).model)
    imitate(model, ChatRenderer(tokenizer), steps=FORM_STEPS, seed=seed, demonstrate=in_both_forms)
    save_policy(model, tokenizer, out.with_name(f"{out.name}.partial"))
    out.with_name(f"{out.name}.partial").rename(out)


def digest_of(patterns: Sequence[str]) -> str:
    """Return a digest of the files of these names."""
    return digest_of_code({path for pattern in patterns for path in ROOT.glob(pattern)})


def written(figures: Path | None) -> list[dict[str, Any]]:
    """Return the runs of the present code in a file of `--write`; none where there is no such file."""
    if figures is None or not figures.exists():
        return []
    found = json.loads(figures.read_text("utf-8"))
    return found["runs"] if found["code"] == digest_of(_MEASURED) else []


def main() -> None:
    """Make the runs that are missing, print the table, and exit with 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "bench-channels", help="keep policies and runs here")
    parser.add_argument("--write", type=Path, help="write the table and every run's figures to this file")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="make the runs of so many seeds")
    parser.add_argument("--only", default="", help="make only the arms whose name contains this")
    options = parser.parse_args()
    if options.write and options.seeds < 2:
        parser.error("--write needs --seeds 2 or more: one seed has no interval")
    options.work.mkdir(parents=True, exist_ok=True)
    code = digest_of(_MEASURED)
    store = options.work / f"{code}.jsonl"
    known = [json.loads(line) for line in store.read_text("utf-8").splitlines()] if store.exists() else []
    wanted = {(arm.name, arm.rate): settings_of(arm) for arm in grid()}
    made = {
        (run["arm"]["name"], run["arm"]["rate"], run["seed"]): run
        for run in [*written(options.write), *known]
        if run["settings"] == wanted.get((run["arm"]["name"], run["arm"]["rate"]))
    }
    runs = list(made.values())
    for seed in range(options.seeds):
        warm_start(options.work / policy_name(seed, both_forms=False), Terminal(), seed)
        learn_both_forms(options.work, seed)
    missing = [
        (arm, seed)
        for seed in range(options.seeds)
        for arm in grid()
        if options.only in arm.name and (arm.name, arm.rate, seed) not in made
    ]
    with ProcessPoolExecutor(2) as processes, store.open("a", encoding="utf-8") as kept:
        jobs = [processes.submit(train, arm, seed, options.work / policy_name(seed, arm.long_pairs)) for arm, seed in missing]
        for number, job in enumerate(jobs, start=1):
            run = job.result()
            runs.append(run)
            kept.write(json.dumps(run) + "\n")
            kept.flush()
            arm = run["arm"]
            print(
                f"{number}/{len(jobs)} seed {run['seed']} {arm['name']} at {arm['rate']:g}: "
                f"{run['pass_at_1_before']:.3f} -> {run['pass_at_1']:.3f}, {run['cpu_s']:.1f} CPU-s",
                flush=True,
            )
    rows = table(runs)
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    found = {"harms": harms(runs), "fallen": fallen(runs), "behind": behind(runs)}
    told = {"carried_down": carried_down(runs)}
    if options.write:
        kept_runs = [{key: value for key, value in run.items() if key != "curve"} for run in runs]
        text = json.dumps({"code": code, "table": rows, **found, **told, "runs": kept_runs}, indent=1, sort_keys=True)
        options.write.write_text(text + "\n", "utf-8")
    passed = not any(found.values()) and len(runs) == SEEDS * len(grid())
    emit("channels", {"runs": len(runs), **found, **told, "passed": passed})
    raise SystemExit(not passed)


if __name__ == "__main__":
    main()
