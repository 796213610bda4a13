"""The parts of an arm that imitates: its batches are demonstrations, and its loss is cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from composer_replication.envs.source import AnyTask
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.rollouts.protocol import Budgets, Engine
from composer_replication.rollouts.reattempt import AGAIN
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.collector import RolloutCollector
from composer_replication.trainer.pairs.reattempts import failures_with_hints
from composer_replication.trainer.sampling.task_sampler import choose_tasks
from composer_replication.trainer.signals import SignalMaker, Signals
from composer_replication.trainer.stages.demonstrations import DemonstrationSources
from composer_replication.types import Group, Pair, Trajectory

DEMONSTRATION_STEP = -3
"""The step of their rollouts, so that their draws are their own (`collector.EVAL_STEP` and `TRACE_STEP` are the others)."""
_UNBOUNDED = Budgets(turn_tokens=1 << 22, trajectory_tokens=1 << 24, context_tokens=1 << 26, max_turns=1 << 10)
"""The budgets of solutions: those that the policy's own budgets do not allow are left out afterwards, and counted."""


class DemonstrationCollector(RolloutCollector):
    """Gives each step its demonstrations in place of rollouts. Evaluations are those of any arm."""

    no_reattempts = "sft.reattempts = false"
    hints: SignalMaker
    """Finds the turns that went wrong, and writes hints about them."""
    found: Sequence[Trajectory] = ()
    """The demonstrations, once `gather` has been called."""

    async def gather(self, sources: DemonstrationSources, folder: Path) -> None:
        """Gather the demonstrations, count what the policy has tried for them, and say where they are from.

        To be called before the arm begins or is resumed. `folder` keeps what was rolled out; it belongs to these sources.

        Raises:
            ConfigError: as `DemonstrationSources.gather`.
        """
        gathered = await sources.gather(self._demonstrate, self._try_again, folder)
        self.engine.rest()
        self.found = gathered.trajectories
        self.journal.meter.count(gathered.sampled)
        sft, count = self.config.sft, len(self.found)
        passes = sft.steps * min(sft.batch, count) / count
        self.journal.learns_from(f"{count} demonstrations ({gathered}); {sft.steps} steps are {passes:.1f} passes over them")
        if unknown := gathered.of_unknown_outcome:
            self.journal.learns_from(
                f"demonstrations from logs that do not say how they ended: {unknown} of {count}; they are learnt from as if they "
                "had passed their tests"
            )

    async def collect(self, step: int, version: int) -> list[Group]:
        """Return the demonstrations of a step, each a group by itself; every pass over all of them is a new permutation."""
        del version
        chosen = choose_tasks(self.found, self.config.seed, step, min(self.config.sft.batch, len(self.found)))
        return [Group(group_id=one.trajectory_id, task_id=one.task_id, trajectories=(one,)) for one in chosen]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return how many demonstrations a step learns from; they were rewarded when they were gathered."""
        return {"sft/demonstrations": float(len(groups))}

    async def _demonstrate(self, siblings: int, engine: Engine | None, what: str, tasks: Sequence[AnyTask]) -> list[Group]:
        """Return rollouts to imitate, by the starting policy or by another engine."""
        budgets = Budgets.of(self.config.rollout) if engine is None else _UNBOUNDED
        return await self._collect_groups(tasks, siblings, DEMONSTRATION_STEP, 0, what, engine or self.engine, budgets)

    async def _try_again(self, groups: Sequence[Group]) -> list[Group]:
        """Return a hinted re-attempt of each failed rollout for which there is a hint, in groups by task. None is counted."""
        trajectories = [one for group in groups for one in group.trajectories]
        failures = failures_with_hints(groups, self.hints.select_hints(DEMONSTRATION_STEP, trajectories).hinted)
        found: dict[str, list[Trajectory]] = {}
        for one in await self.try_again(DEMONSTRATION_STEP, 0, failures, counted=False):
            found.setdefault(one.task_id, []).append(one)
        return [Group(group_id=f"{task}/{AGAIN}", task_id=task, trajectories=tuple(each)) for task, each in found.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationSignals(SignalMaker):
    """Makes batches of cross-entropy on every token that was sampled, one mean over the step's tokens."""

    def make(self, step: int, groups: Sequence[Group]) -> Signals:
        """Return no advantages and no hints."""
        del step
        return Signals(advantages=[None for group in groups for _ in group.trajectories])

    def batch(self, groups: Sequence[Group], signals: Signals, pairs: Sequence[Pair]) -> Batch:
        """Return the tensors of the first channel."""
        del signals, pairs
        trajectories = [t for g in groups for t in g.trajectories]
        return collate(trajectories, None, pad_id=int(self.renderer.tokenizer.pad_token_id))

    def why_off(self, pairs: Sequence[Pair], signals: Signals) -> dict[str, str]:
        """Return nothing: demonstrations are always there."""
        del pairs, signals
        return {}


def learn_from_demonstrations(trainer: ArmTrainer) -> DemonstrationCollector:
    """Let an arm learn from demonstrations, and return what gathers them."""
    before = trainer.collector
    collector = DemonstrationCollector(before.context, before.config, before.engine, before.renderer, before.journal)
    trainer.collector, collector.hints = collector, trainer.signals
    known = {field.name: getattr(trainer.signals, field.name) for field in fields(SignalMaker)}
    trainer.signals = ImitationSignals(**known)
    return collector
