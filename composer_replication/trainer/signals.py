"""The learning signals of a step: advantages over groups, hints at error turns, and the batch of both and of pairs.

It is the same on every substrate. What it needs of the policy's weights it is given as functions: they may be in another process.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_replication.config import HintConfig, RunConfig
from composer_replication.envs.source import AnyTask
from composer_replication.hints import (
    Detector,
    HintContext,
    HintGenerator,
    detectors_named,
    find_hints,
    generators_named,
    hold_turns,
    insert_hints,
    shuffle_hints,
)
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.rollouts.agent_loop import derive_seed
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.hint_filter import SelectedHints
from composer_replication.trainer.preflight import NO_SOURCE
from composer_replication.trainer.rewards import TokenAdvantages, taking_part, weigh
from composer_replication.trainer.sampling.material import TaskMaterial
from composer_replication.types import Group, Hint, HintedTurn, Pair, ToolSchema, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class HintSources:
    """Detectors, generators and the material of hints."""

    contexts: Mapping[str, HintContext]
    """By task id: tools, the project's documentation and the instruction."""
    gold: Mapping[str, Sequence[str]]
    """By task id: the deleted code, which no hint may give away."""
    detectors: Sequence[Detector]
    generators: Sequence[HintGenerator]

    @classmethod
    def of(cls, hint: HintConfig, tasks: Iterable[AnyTask], tools: tuple[ToolSchema, ...] = ()) -> HintSources:
        """Return the sources that hints about `tasks` may use when no teacher can be asked.

        Raises:
            ConfigError: `hint` names an unknown detector or generator, or `judge`.
        """
        known = {task.spec.task_id: task for task in tasks}
        return cls(
            contexts=TaskMaterial(known, lambda task: hint_context(task, tools)),
            gold=TaskMaterial(known, lambda task: task.deleted_code()),
            detectors=detectors_named(hint.detectors),
            generators=generators_named(hint.generators),
        )


def hint_context(task: AnyTask, tools: tuple[ToolSchema, ...]) -> HintContext:
    """Return the material that hints about a task may use."""
    return HintContext(tools=tools, documentation=task.docs(), instruction=task.spec.instruction)


@dataclass(frozen=True, slots=True)
class Signals:
    """Learning signals of one step's trajectories."""

    advantages: Sequence[float | None]
    """One per trajectory, groups in order; None: no part of the policy gradient."""
    token_advantages: TokenAdvantages = field(default_factory=dict)
    """Added to it for each sampled token; see `Advantages.of_tokens`."""
    hinted: Sequence[HintedTurn] = ()
    hints: Sequence[Hint] = ()
    """The hints of `hinted`, then those that were dropped (`Hint.dropped`)."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Error turns that teach nothing, by reason."""


def counted(selected: SelectedHints) -> dict[str, float]:
    """Return the metrics of a step's hints: turns with one, turns that are held, and hints that were dropped."""
    held = sum(turn.held for turn in selected.hinted)
    turns = {"hint/turns": len(selected.hinted) - held, "hint/held": held, "hint/dropped": len(selected.dropped)}
    return {name: float(count) for name, count in turns.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalMaker:
    """The maker of a step's signals and batch, by one arm's configuration."""

    config: RunConfig
    sources: HintSources
    renderer: ChatRenderer
    context_window: int
    """Most positions the policy can attend to; a hint that does not fit is dropped."""
    kl: Callable[[Sequence[Trajectory]], Sequence[float]] | None = None
    """Nats of KL to the reference per trajectory; asked only where `reward.kl_weight` is above 0."""
    steps: Callable[[Sequence[Trajectory]], Sequence[Sequence[float | None]]] | None = None
    """Score of every turn of each trajectory; asked only where `reward.prm.weight` is above 0, and by the curriculum."""
    teachers: Callable[[Sequence[Trajectory]], Sequence[Sequence[Sequence[float]]]] | None = None
    """Teachers' log-probs of every sampled token of each turn; asked only where `reward.teacher_kl_weight` is above 0."""
    useful: Callable[[SelectedHints, Sequence[Trajectory]], SelectedHints] | None = None
    """Leaves out hints that do not help the self-teacher; asked only with `loss.hint.useful_only`."""

    def make(self, step: int, groups: Sequence[Group]) -> Signals:
        """Return advantages over groups and hints at error turns. Raises ValueError when an option needs a missing function."""
        trajectories = [t for g in groups for t in g.trajectories]
        asked: dict[str, Any] = {"kl": self.kl, "steps": self.steps, "teachers": self.teachers}
        weighed = weigh(groups, self.config, end_of_thinking=self.renderer.end_of_thinking, **asked)
        if self.config.loss.hint.weight == 0:
            return Signals(weighed.values, weighed.of_tokens, metrics=weighed.metrics)
        selected = self.select_hints(step, trajectories)
        dropped = Counter(str(hint.dropped) for hint in selected.dropped)
        metrics = {**counted(selected), **weighed.metrics}
        return Signals(weighed.values, weighed.of_tokens, selected.hinted, (*selected.hints, *selected.dropped), metrics, dropped)

    def select_hints(self, step: int, trajectories: Sequence[Trajectory]) -> SelectedHints:
        """Return the hints of a step with the turns to hold, and every other finding with the reason why it was dropped."""
        hint, seed = self.config.loss.hint, derive_seed(self.config.seed, step)
        selected = self._hints(trajectories, seed)
        compares_all, agrees = hint.span == "trajectory", hint.self_teacher == "live"  # without a hint it agrees with itself
        per_hint = 0 if compares_all or agrees else hint.held_turns
        errors = [(hint.trajectory_id, hint.turn) for hint in selected.dropped]
        window = self.context_window
        held = hold_turns(trajectories, selected.hinted, per_hint=per_hint, seed=seed, errors=errors, context_window=window)
        return dataclasses.replace(selected, hinted=(*selected.hinted, *held))

    def _hints(self, trajectories: Sequence[Trajectory], seed: int) -> SelectedHints:
        hint = self.config.loss.hint
        found = find_hints(
            trajectories,
            self.sources.contexts,
            max_per_trajectory=hint.per_trajectory,
            gold=self.sources.gold,
            detectors=self.sources.detectors,
            generators=self.sources.generators,
            demo=hint.demo,
        )
        hints, dropped = found.hints, list(found.dropped_hints)
        if hint.shuffle:
            hints = shuffle_hints(found.hints, trajectories, seed)
            places = {(h.trajectory_id, h.turn) for h in hints}
            lonely = (h for h in found.hints if (h.trajectory_id, h.turn) not in places)
            dropped += [dataclasses.replace(h, dropped="no other task has another hint") for h in lonely]
        inserted = insert_hints(trajectories, hints, self.renderer, span=hint.span, context_window=self.context_window)
        selected = SelectedHints(inserted.hinted, inserted.hints, (*dropped, *inserted.dropped_hints))
        if not hint.useful_only:
            return selected
        if self.useful is None:
            raise ValueError("loss.hint.useful_only is on, and nothing says which hints are useful")
        return self.useful(selected, trajectories)

    def batch(self, groups: Sequence[Group], signals: Signals, pairs: Sequence[Pair]) -> Batch:
        """Return the tensors of all three channels."""
        trajectories = [t for g in groups for t in g.trajectories]
        trajectories, advantages = taking_part(trajectories, signals.advantages, signals.hinted)
        return collate(
            trajectories,
            advantages,
            signals.hinted,
            pairs,
            pad_id=int(self.renderer.tokenizer.pad_token_id),
            objective=self.config.loss.rlvr.objective,
            max_tokens=self.config.rollout.trajectory_tokens,
            hint_reduction=self.config.loss.hint.reduction,
            token_advantages=signals.token_advantages,
        )

    def why_off(self, pairs: Sequence[Pair], signals: Signals) -> dict[str, str]:
        """Return why a channel got no inputs, where the loss cannot know."""
        loss, off = self.config.loss, {}
        added = (turn for turns in signals.token_advantages.values() for turn in turns)
        if not any(signals.advantages) and not any(map(any, added)):
            off["rlvr"] = "every advantage is 0: no group has rewards that differ"
        if loss.hint.weight > 0 and not signals.hinted:
            reasons = ", ".join(f"{n} {why}" for why, n in signals.dropped.items())
            off["hint"] = f"no hints in this step ({reasons or 'no error turns'})"
        if loss.replay.weight > 0 and not pairs:
            sources = {"no verified disagreement": bool(self.config.teachers), "no re-attempt passed": loss.replay.reattempts > 0}
            off["replay"] = "no pairs: " + (", ".join(why for why, on in sources.items() if on) or NO_SOURCE)
        return off
