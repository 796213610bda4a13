"""Demonstrations: conversations that solved a task, from its solution, the policy's own tries, and files of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import dropwhile, zip_longest
from pathlib import Path
from typing import TypeAlias

from composer_replication.config import SftConfig
from composer_replication.envs.oracle import oracle_script
from composer_replication.envs.source import AnyTask
from composer_replication.prm.data import read_transcripts
from composer_replication.rollouts import Budgets, Engine, ScriptedEngine
from composer_replication.rollouts.reattempt import AGAIN
from composer_replication.tasks.store import Task
from composer_replication.tokens import ChatRenderer
from composer_replication.traces.segments import UNKNOWN_OUTCOME, in_tokens_of
from composer_replication.trainer.corpus.choosing import TaskCode
from composer_replication.trainer.sampling.kept_rollouts import kept_rollouts
from composer_replication.types import Group, Message, Trajectory, Unscored
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Trace

RollOut: TypeAlias = Callable[[int, Engine | None, str, Sequence[AnyTask]], Awaitable[list[Group]]]
"""Makes so many rollouts of each task with an engine (None: the policy's own), under a name for the terminal."""
TryAgain: TypeAlias = Callable[[Sequence[Group]], Awaitable[list[Group]]]
"""Makes a hinted re-attempt of each failed rollout that has a hint; one group for each task of which there is one."""


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """The conversations that a policy is fine-tuned on, and where they come from."""

    trajectories: Sequence[Trajectory]
    counts: Mapping[str, int]
    """How many demonstrations each source gave, and how many were left out and why."""
    sampled: Sequence[Trajectory]
    """Everything that the policy itself has tried for them."""

    @property
    def of_unknown_outcome(self) -> int:
        """How many are from logs that do not say how they ended: nobody knows whether their work passes its tests."""
        return sum(isinstance(one.reward, Unscored) for one in self.trajectories)

    def __str__(self) -> str:
        """Format the counts."""
        return ", ".join(f"{count} {what}" for what, count in self.counts.items()) or "nothing was found"


@dataclass(slots=True)
class DemonstrationSources:
    """The sources that a run file names.

    Args:
        held_out: the tasks that nothing may be learned about.
        budgets: what a rollout of the policy may take; longer demonstrations are left out.
    """

    sft: SftConfig
    renderer: ChatRenderer
    tasks: Sequence[AnyTask]
    held_out: Sequence[AnyTask]
    budgets: Budgets
    _transcripts: dict[Path, list[Trajectory | Trace]] = field(default_factory=dict)
    _code: TaskCode = field(init=False)
    _apart: frozenset[str] = field(init=False)
    """Ids of what is held out."""

    def __post_init__(self) -> None:
        self._code, self._apart = TaskCode(self.held_out), frozenset(task.spec.task_id for task in self.held_out)

    def check(self) -> None:
        """Read the files, and check that every task has what its source needs. To be called before anything is rolled out.

        Raises:
            ConfigError: a file cannot be read, or a task has no solution.
        """
        if self.sft.oracle:
            for task in self.tasks:
                _solved(task)
        self._transcripts = {path: read_transcripts(path) for path in self.sft.traces}

    async def gather(self, roll_out: RollOut, try_again: TryAgain, folder: Path) -> Demonstrations:
        """Return all demonstrations. What an interrupted call has rolled out into `folder` is not rolled out again.

        Raises:
            ConfigError: there are none.
        """
        counts: Counter[str] = Counter()
        found: list[Trajectory] = []
        sampled: list[Trajectory] = []
        if self.sft.oracle:
            engine = ScriptedEngine(self.renderer, _scripts([_solved(task) for task in self.tasks]))
            solutions = await kept_rollouts(self.tasks, 1, partial(roll_out, 1, engine, "solutions"), folder / "solutions")
            found += self._kept("oracle", _flat(solutions), counts)
        if siblings := self.sft.samples:
            tried = await kept_rollouts(self.tasks, siblings, partial(roll_out, siblings, None, "samples"), folder / "samples")
            sampled = _flat(tried)
            found += self._kept("samples", sampled, counts)
            if self.sft.reattempts:
                hinted = _flat(await self._again(tried, try_again, folder / "reattempts"))
                sampled += _new(hinted, sampled)
                found += self._kept("hinted re-attempts", hinted, counts)
        for path, transcripts in self._transcripts.items():
            read = [part for one in transcripts for part in in_tokens_of(self.renderer, one)]
            found += self._kept(path.name, read, counts, graded_elsewhere=True)
        result = Demonstrations(_numbered(found), counts, sampled)
        if not found:
            raise ConfigError(
                f"sft: there is no demonstration to learn from ({result})",
                fix="switch on sft.oracle, raise sft.samples or the budgets in [rollout], or name other sft.traces",
            )
        return result

    async def _again(self, tried: Sequence[Group], try_again: TryAgain, folder: Path) -> list[Group]:
        """Return the re-attempts of all failed samples, made part by part."""
        by_task = {group.task_id: group for group in tried}

        async def some(tasks: Sequence[AnyTask]) -> list[Group]:
            return await try_again([by_task[task.spec.task_id] for task in tasks if task.spec.task_id in by_task])

        return await kept_rollouts(self.tasks, self.sft.samples, some, folder)

    def _kept(
        self, source: str, found: Iterable[Trajectory], counts: Counter[str], *, graded_elsewhere: bool = False
    ) -> Iterator[Trajectory]:
        """Yield what is learned from, and count the rest by its reason."""
        seen: set[tuple[int, ...]] = set()
        of_task: Counter[str] = Counter()
        for one in found:
            ids = one.context_ids(len(one.turns))
            why = self._unfit(one, len(ids), graded_elsewhere=graded_elsewhere)
            if not why and ids in seen:
                why = "the same as another"
            if not why and of_task[one.task_id] == self.sft.per_task:
                why = "more than sft.per_task"
            if why:
                counts[f"{source}: {why}"] += 1
                continue
            counts[f"{source}, of unknown outcome" if isinstance(one.reward, Unscored) else source] += 1
            seen.add(ids)
            of_task[one.task_id] += 1
            yield one

    def _unfit(self, one: Trajectory, tokens: int, *, graded_elsewhere: bool) -> str:
        """Return why a conversation is no demonstration; empty when it is one."""
        if one.task_id in self._apart:
            return "of a held-out task"
        if graded_elsewhere and self._code.given_away_by(
            self.renderer.decode([i for turn in one.turns for i in turn.action_ids])
        ):
            return "writes what a held-out task deletes"
        if isinstance(one.reward, Unscored):
            if one.reward != UNKNOWN_OUTCOME:
                return "not graded"
        elif one.reward < 1.0:
            return "failed"
        if one.grade is not None and one.grade.alarms:
            return "raised an alarm"
        if not one.prompt_ids or not one.num_sampled_tokens():
            return "empty"
        budgets = self.budgets
        beyond = {
            "context_tokens": tokens > budgets.context_tokens,
            "trajectory_tokens": one.num_sampled_tokens() > budgets.trajectory_tokens,
            "turn_tokens": max(len(turn.action_ids) for turn in one.turns) > budgets.turn_tokens,
            "max_turns": len(one.turns) > budgets.max_turns,
        }
        return next((f"beyond rollout.{name}" for name, is_beyond in beyond.items() if is_beyond), "")


def _flat(groups: Iterable[Group]) -> list[Trajectory]:
    return [t for group in groups for t in group.trajectories]


def _new(hinted: Iterable[Trajectory], failed: Iterable[Trajectory]) -> list[Trajectory]:
    """Return re-attempts without the turns that they have from what failed."""
    earlier = {f"{one.trajectory_id}/{AGAIN}": one.turns for one in failed}
    found = []
    for one in hinted:
        beside = zip_longest(one.turns, earlier[one.trajectory_id][: len(one.turns)])
        found.append(replace(one, turns=tuple(turn for turn, _ in dropwhile(lambda both: both[0] == both[1], beside))))
    return found


def _solved(task: AnyTask) -> Task:
    if not isinstance(task, Task):
        raise ConfigError(
            f"sft.oracle = true, and the task {task.spec.task_id} of [env] has no solution", fix="set sft.oracle = false"
        )
    return task


def _scripts(tasks: Sequence[Task]) -> Callable[[str], Sequence[Message]]:
    by_id = {task.spec.task_id: task for task in tasks}
    return lambda session: oracle_script(by_id[session.partition("/")[2].rpartition("/")[0]])


def _numbered(found: Sequence[Trajectory]) -> list[Trajectory]:
    """Give each demonstration an id of its own: those of two sources may be the same."""
    return [replace(one, trajectory_id=f"demonstration/{one.task_id}/{number}") for number, one in enumerate(found)]
