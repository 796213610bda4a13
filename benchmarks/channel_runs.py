"""Train an arm of `channels` in the world of `channel_world`, with the trainer's own learner."""

from __future__ import annotations

import hashlib
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from channel_arms import FORM_STEPS, PAIRS, PRACTICE, SIBLINGS, TASKS, Arm
from channel_world import Rule, drawn, hints_of, meanings, outcomes, pairs_of, rules, standing, trajectory_of

from composer_replication.config import RunConfig
from composer_replication.hints import hold_turns
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward.models import load_policy
from composer_replication.policy_gradient import group_advantages
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.hint_filter import SelectedHints, only_useful
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.pairs.held import pairs_of_step, turns_to_hold
from composer_replication.types import Pair, Trajectory


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


def settings_of(arm: Arm) -> str:
    """Return a digest of all that an arm is made of, defaults of the run file among them."""
    config = config_of(arm, Path("policy"))
    made_of = [asdict(arm), config.loss.model_dump(), config.optimizer.model_dump(), TASKS, SIBLINGS, PAIRS, PRACTICE, FORM_STEPS]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True, default=str).encode()).hexdigest()[:16]


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
        "settings": settings_of(arm),
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
