"""The parts of an arm that imitates: its batches are demonstrations, and its loss is cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial

from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.rollouts.protocol import Budgets
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.collector import RolloutCollector
from composer_replication.trainer.sampling.task_sampler import choose_tasks
from composer_replication.trainer.signals import SignalMaker, Signals
from composer_replication.trainer.stages.demonstrations import Demonstrations
from composer_replication.types import Group, Pair, Trajectory

_UNBOUNDED = Budgets(turn_tokens=1 << 22, trajectory_tokens=1 << 24, context_tokens=1 << 26, max_turns=1 << 10)
"""What a demonstration of another may take; those too long for the policy are left out afterwards, and counted."""


class DemonstrationCollector(RolloutCollector):
    """Gives each step its demonstrations in place of rollouts. They are gathered before the first step and then kept in the run
    directory, as its traces. Evaluations are those of any arm."""

    _found: Sequence[Trajectory] = ()

    async def collect(self, step: int, version: int) -> list[Group]:
        """Return the demonstrations of a step, each a group by itself; every pass over all of them is a new permutation."""
        del version
        if not self._found:
            self._found = self.context.run_dir.read_traces(self.arm) or await self._gather()
        chosen = choose_tasks(self._found, self.config.seed, step, min(self.config.sft.batch, len(self._found)))
        return [Group(group_id=one.trajectory_id, task_id=one.task_id, trajectories=(one,)) for one in chosen]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return how many demonstrations a step learns from; they were rewarded when they were gathered."""
        return {"sft/demonstrations": float(len(groups))}

    async def _gather(self) -> list[Trajectory]:
        """Gather the demonstrations, keep them, and say where they are from. Raises as `Demonstrations.gather`."""
        sft, run_dir = self.config.sft, self.context.run_dir
        most = min(self.config.rollout.context_tokens, self.context_window)
        folder = run_dir.path / "demonstrations" / self.arm
        demonstrations = Demonstrations(sft, self.renderer, most, folder)
        own, others = (partial(self.demonstrate, budgets=budgets) for budgets in (Budgets.of(self.config.rollout), _UNBOUNDED))
        found = await demonstrations.gather(
            [task for task in self.context.train if not task.spec.impossible],
            lambda tasks, siblings, engine, what: (own if engine is None else others)(tasks, siblings, engine, what),
        )
        self.engine.rest()
        run_dir.write_traces(self.arm, found)
        counted = ", ".join(f"{count} {what}" for what, count in demonstrations.counts.items())
        passes = sft.steps * min(sft.batch, len(found)) / len(found)
        self.journal.note(f"{len(found)} demonstrations ({counted}); {sft.steps} steps are {passes:.1f} passes over them")
        return found


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


def learn_from_demonstrations(trainer: ArmTrainer) -> None:
    """Let an arm learn from demonstrations."""
    before = trainer.collector
    trainer.collector = DemonstrationCollector(before.context, before.config, before.engine, before.renderer, before.journal)
    known = {field.name: getattr(trainer.signals, field.name) for field in fields(SignalMaker)}
    trainer.signals = ImitationSignals(**known)
