"""Demonstrations: conversations that solved a task, from its solution, the policy's own tries, and files of others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from composer_replication.config import SftConfig
from composer_replication.envs.oracle import oracle_script
from composer_replication.envs.source import AnyTask
from composer_replication.prm.data import read_transcripts
from composer_replication.rollouts import Engine, ScriptedEngine
from composer_replication.tasks.store import Task
from composer_replication.tokens import ChatRenderer
from composer_replication.traces.segments import in_tokens_of
from composer_replication.trainer.sampling.kept_rollouts import kept_rollouts
from composer_replication.types import Group, Message, Trajectory, Unscored
from composer_replication.types.errors import ConfigError

RollOut: TypeAlias = Callable[[Sequence[AnyTask], int, Engine | None, str], Awaitable[list[Group]]]
"""Roll out tasks, so many siblings each, with an engine (None: the policy's own), under a name for the terminal."""


class Demonstrations:
    """What a policy is fine-tuned on, and where it comes from."""

    def __init__(self, sft: SftConfig, renderer: ChatRenderer, most_tokens: int, folder: Path) -> None:
        self.sft = sft
        self.renderer = renderer
        self.most_tokens = most_tokens
        """Longer ones are left out."""
        self.folder = folder
        """Where rollouts are kept until all of them are there."""
        self.counts: Counter[str] = Counter()
        """How many demonstrations each source gave, and how many were left out and why."""

    async def gather(self, tasks: Sequence[AnyTask], roll_out: RollOut) -> list[Trajectory]:
        """Return all demonstrations. What an interrupted call has rolled out is not rolled out again.

        Raises:
            ConfigError: there are none, a file of traces cannot be read, or tasks of another environment have no solutions.
        """
        found: list[Trajectory] = []
        if self.sft.oracle:
            engine = ScriptedEngine(self.renderer, _scripts([_solved(task) for task in tasks]))
            found += self._kept("oracle", await self._rolled_out(tasks, 1, engine, "solutions", roll_out))
        if self.sft.samples:
            found += self._kept("samples", await self._rolled_out(tasks, self.sft.samples, None, "samples", roll_out))
        for path in self.sft.traces:
            read = [part for one in read_transcripts(path) for part in in_tokens_of(self.renderer, one)]
            found += self._kept(path.name, read)
        if not found:
            why = ", ".join(f"{count} {what}" for what, count in self.counts.items()) or "nothing was found"
            raise ConfigError(
                f"sft: there is no demonstration to learn from ({why})",
                fix="switch on sft.oracle, raise sft.samples or rollout.context_tokens, or name other sft.traces",
            )
        return _numbered(found)

    async def _rolled_out(
        self, tasks: Sequence[AnyTask], siblings: int, engine: Engine | None, what: str, roll_out: RollOut
    ) -> list[Trajectory]:
        groups = await kept_rollouts(tasks, lambda some: roll_out(some, siblings, engine, what), self.folder / what)
        return [t for group in groups for t in group.trajectories]

    def _kept(self, source: str, found: Iterable[Trajectory]) -> Iterator[Trajectory]:
        """Yield what is learned from, and count the rest by its reason."""
        seen: set[tuple[int, ...]] = set()
        of_task: defaultdict[str, int] = defaultdict(int)
        for one in found:
            ids = one.context_ids(len(one.turns))
            why = ""
            if not isinstance(one.reward, Unscored) and one.reward < 1.0:
                why = "failed"
            elif len(ids) > self.most_tokens:
                why = f"longer than {self.most_tokens} tokens"
            elif ids in seen:
                why = "the same as another"
            elif of_task[one.task_id] == self.sft.per_task:
                why = "more than sft.per_task"
            self.counts[f"{source}: {why}" if why else source] += 1
            if not why:
                seen.add(ids)
                of_task[one.task_id] += 1
                yield one


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
