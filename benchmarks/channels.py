"""Measure what each channel does to a policy, alone and beside the others, and beside what could replace it.

The world is `channel_world`: the quickstart's tasks with exact probabilities, so that pass@1 has no sampling error and a run
costs seconds. Everything else is the trainer's own: records, `collate`, `Learner.update` with its self-teacher, anchor and
brake, AdamW, warm-up and clipping. Five seeds have five policies, each warm-started from another initialisation. Each run is
kept in `--work` as soon as it is done, and is not made again; neither is one of the present code that the file of `--write` has.
Channels are judged by paired differences over the seeds, with a 95 % t interval:

- harm: no channel may lower pass@1 beyond its interval, at any setting of the grid, beside the same run without it;
- falling: with pairs, the log-prob of the chosen answers ends no lower than it began, in every run;
- default: what the run file chooses by itself is within its interval of the best setting of its grid.

CPU-seconds are those of rollouts and updates, without warm starts and measurements. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from channel_arms import FORM_STEPS, PAIRS, SEEDS, SIBLINGS, TASKS, Arm, grid
from channel_tables import behind, fallen, harms, table
from channel_world import Rule, drawn, hints_of, in_both_forms, meanings, outcomes, pairs_of, rules, standing, trajectory_of
from measuring import ROOT, digest_of_code, emit

from composer_replication.config import RunConfig
from composer_replication.hints import hold_turns
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward.models import load_policy, save_policy
from composer_replication.observe import Terminal
from composer_replication.policy_gradient import group_advantages
from composer_replication.quickstart.run import warm_start
from composer_replication.quickstart.warm_start import imitate
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.hint_filter import SelectedHints, only_useful
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.pairs.held import pairs_of_step, turns_to_hold
from composer_replication.types import Pair, Trajectory

_MEASURED = (
    *("composer_replication/loss/**/*.py", "composer_replication/distillation/**/*.py"),
    *("composer_replication/trainer/learning/**/*.py", "composer_replication/trainer/pairs/held.py"),
    *(
        "composer_replication/hints/holding.py",
        "composer_replication/hints/insertion.py",
        "composer_replication/trainer/hint_filter.py",
        "benchmarks/channel_world.py",
    ),
)
"""Code that the figures describe: runs of other code are made again."""


def config_of(arm: Arm, policy: Path) -> RunConfig:
    """Return the run of an arm."""
    sections: dict[str, dict[str, Any]] = {"hint": {"weight": arm.hint}, "replay": {"weight": arm.replay}}
    for key, value in arm.options.items():
        section, name = key.split(".")
        sections[section][name] = value
    return RunConfig.model_validate(
        {
            "name": "channels",
            "steps": arm.steps,
            "model": {"path": str(policy), "device": "cpu"},
            "tasks": {"train": "tasks"},
            "loss": sections,
            "optimizer": {"learning_rate": arm.rate, "schedule": "linear", "micro_batch_tokens": 10240},
        }
    )


def train(arm: Arm, seed: int, policy: Path) -> dict[str, Any]:
    """Train an arm from the warm policy of a seed, and return what became of it."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = config_of(arm, policy)
    model, tokenizer = load_policy(config.model)
    renderer = ChatRenderer(tokenizer)
    every = rules(renderer, 2 if arm.long_pairs else 1)
    practice, held_out = ([rule for rule in every if rule.held_out == held] for held in (False, True))
    learner = Learner(model, config)
    pairs, traces = pairs_of(model, practice, random.Random(f"{seed}/pairs"), wrong=arm.wrong_pairs, long=arm.long_pairs)
    pairs = learner.with_reference_logprobs([*pairs, *turns_to_hold(pairs, traces, config)])
    sampler = _Sampler(arm, seed, renderer, practice, learner)
    before = standing(model, held_out)
    curve, spent = [], 0.0
    for step in range(1, arm.steps + 1):
        began = time.process_time()
        batch = sampler.batch(step) | _pairs(arm, pairs, step)
        metrics = learner.update(batch).metrics if batch else {}
        spent += time.process_time() - began
        curve.append({name: metrics[name] for name in _KEPT if name in metrics})
    after = standing(model, held_out)
    compared = [pair for pair in pairs if pair.rejected_ids]
    chosen, rejected = _likelihoods(learner, compared)
    return {
        "arm": asdict(arm) | {"options": dict(arm.options)},
        "seed": seed,
        "pass_at_1_before": before.pass_at_1,
        "pass_at_1": after.pass_at_1,
        "passes": after.passes,
        "on_script": after.on_script,
        "chosen": chosen,
        "rejected": rejected,
        "pairs": len(compared),
        "rollouts": sampler.rollouts,
        "cpu_s": spent,
        "curve": curve,
    }


_KEPT = (
    *("rlvr/pull", "hint/pull", "replay/pull", "optimizer/grad_norm", "hint/loss", "replay/loss", "replay/accuracy"),
    *("replay/chosen/distance/mean", "replay/rejected/distance/mean", "replay/preference_share"),
)


class _Sampler:
    """The rollouts of an arm's steps, and what is learnt from them."""

    def __init__(self, arm: Arm, seed: int, renderer: ChatRenderer, practice: Sequence[Rule], learner: Learner) -> None:
        self.arm, self.renderer, self.practice, self.learner = arm, renderer, practice, learner
        self.rng, self.order = random.Random(f"{seed}/rollouts"), random.Random(f"{seed}/tasks")
        self.words = meanings(arm.wrong_hints, random.Random(f"{seed}/hints"))
        self.queue: list[Rule] = []
        self.rollouts = 0
        self.hinted: list[Trajectory] = []

    def batch(self, step: int) -> Batch:
        """Return a step's batch; empty where there is nothing in it."""
        if self.arm.rollouts == "none":
            return {}
        if self.arm.rollouts == "hinted":
            return self._imitation(step)
        some = self._tasks(TASKS)
        groups = drawn(self.learner.policy, self.renderer, some, SIBLINGS, step, self.rng)
        self.rollouts += TASKS * SIBLINGS
        span = self.learner.config.loss.hint.span
        hints = hints_of(groups, some, self.renderer, self.words, span) if self.arm.hint > 0 else []
        trajectories = [one for siblings in groups for one in siblings]
        if self.arm.useful_only:
            hints = [*only_useful(SelectedHints(hints, (), ()), trajectories, self.learner).hinted]
        advantages: list[float | None] = []
        for siblings in groups:
            rewards = [float(one.reward) for one in siblings if isinstance(one.reward, float)]
            known = {"grpo": group_advantages(rewards), "rewards": rewards, "unscored": [None] * len(rewards)}
            advantages += known[self.arm.rollouts]
        hints += hold_turns(trajectories, hints, per_hint=self.learner.config.loss.hint.held_turns, seed=step)
        options = {"pad_id": 0, "hint_reduction": self.learner.config.loss.hint.reduction}
        return collate(trajectories, advantages, hints, **options)

    def _imitation(self, step: int) -> Batch:
        """Return a batch of the hinted rollouts that pass, without their hints; made once."""
        if step == 1:
            tasks = self.practice * self.arm.hinted_rollouts
            self.hinted = hinted_passes(self.learner.policy, self.renderer, tasks, self.words, self.rng)
            self.rollouts = len(tasks)
        some = self.order.sample(self.hinted, min(PAIRS, len(self.hinted)))
        return collate(some, None, pad_id=0) if some else {}

    def _tasks(self, count: int) -> list[Rule]:
        if len(self.queue) < count:
            self.queue = self.order.sample(self.practice, len(self.practice))
        some, self.queue = self.queue[:count], self.queue[count:]
        return some


def hinted_passes(
    policy: Any, renderer: ChatRenderer, practice: Sequence[Rule], words: dict[str, str], rng: random.Random
) -> list[Trajectory]:
    """Return the rollouts that pass, of one for each of these tasks in which the edit is made with the hint in the context; as if
    there had been none."""
    found = []
    for rule in practice:
        before = rule.hinted(renderer, words[rule.term])
        hinted = replace(rule, prompt=before, scripts=tuple(replace(one, turns=one.turns[1:]) for one in rule.scripts))
        (mine,) = outcomes(policy, [hinted])
        chances = [math.exp(one.logprob) for one in mine]
        one = rng.choices([*mine, None], weights=[*chances, max(0.0, 1.0 - sum(chances))])[0]
        if one is not None and one.script.passes:
            (plain,) = outcomes(policy, [rule])
            (same,) = [other for other in plain if other.script.operator == one.script.operator]
            found.append(trajectory_of(same, 0, 0))
    return found


def _pairs(arm: Arm, pairs: Sequence[Pair], step: int) -> Batch:
    return collate([], None, [], pairs_of_step(pairs, step, PAIRS), pad_id=0) if arm.replay > 0 and pairs else {}


def _likelihoods(learner: Learner, pairs: Sequence[Pair]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean log-prob of chosen and of rejected answers, before and after."""
    now = learner.with_reference_logprobs(pairs)
    sides = []
    for side in ("chosen", "rejected"):
        before, after = ([getattr(pair, f"ref_{side}_logprob") for pair in some] for some in (pairs, now))
        sides.append({"before": statistics.fmean(before), "after": statistics.fmean(after)})
    return sides[0], sides[1]


# --- runs ------------------------------------------------------------------------------------------------------------------


def policy_name(seed: int, both_forms: bool) -> str:
    """Return the folder of a seed's policy."""
    return f"policy{seed}-both-forms" if both_forms else f"policy{seed}"


def learn_both_forms(work: Path, seed: int) -> None:
    """Make a seed's policy that writes its edits in either form; one that is there is kept."""
    out = work / policy_name(seed, both_forms=True)
    if out.exists():
        return
    model, tokenizer = load_policy(config_of(grid()[0], work / policy_name(seed, both_forms=False)).model)
    imitate(model, ChatRenderer(tokenizer), steps=FORM_STEPS, seed=seed, demonstrate=in_both_forms)
    save_policy(model, tokenizer, out.with_name(f"{out.name}.partial"))
    out.with_name(f"{out.name}.partial").rename(out)


def code_digest() -> str:
    """Return a digest of the code that is measured."""
    return digest_of_code(path for pattern in _MEASURED for path in ROOT.glob(pattern))


def written(figures: Path | None) -> list[dict[str, Any]]:
    """Return the runs of the present code in a file of `--write`; none where there is no such file."""
    if figures is None or not figures.exists():
        return []
    found = json.loads(figures.read_text("utf-8"))
    return found["runs"] if found["code"] == code_digest() else []


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
    store = options.work / f"{code_digest()}.jsonl"
    known = [json.loads(line) for line in store.read_text("utf-8").splitlines()] if store.exists() else []
    made = {(run["arm"]["name"], run["arm"]["rate"], run["seed"]): run for run in [*written(options.write), *known]}
    runs = list(made.values())
    for seed in range(options.seeds):
        warm_start(options.work / f"policy{seed}", Terminal(), seed)
        learn_both_forms(options.work, seed)
    wanted = [
        (arm, seed)
        for seed in range(options.seeds)
        for arm in grid()
        if options.only in arm.name and (arm.name, arm.rate, seed) not in made
    ]
    with ProcessPoolExecutor(2) as processes, store.open("a", encoding="utf-8") as kept:
        jobs = [processes.submit(train, arm, seed, options.work / policy_name(seed, arm.long_pairs)) for arm, seed in wanted]
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
    if options.write:
        kept_runs = [{key: value for key, value in run.items() if key != "curve"} for run in runs]
        text = json.dumps({"code": code_digest(), "table": rows, **found, "runs": kept_runs}, indent=1, sort_keys=True)
        options.write.write_text(text + "\n", "utf-8")
    passed = not any(found.values()) and len(runs) == SEEDS * len(grid())
    emit("channels", {"runs": len(runs), **found, "passed": passed})
    raise SystemExit(not passed)


if __name__ == "__main__":
    main()
