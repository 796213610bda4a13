"""A curriculum: tasks that the policy solves about half the time, and harder ones as easy ones are solved.

The gradient of a group whose siblings all got the same verdict is zero, and its expected size is greatest at a pass rate of one
half (the variance p (1 - p) of the reward; the same argument as DAPO's dynamic sampling, 2503.14476, section 3.2, before the
rollouts instead of after). Pass rates are measured in the run itself and fade, because the policy changes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from composer_replication.config import CurriculumConfig
from composer_replication.envs.source import AnyTask
from composer_replication.tasks.features.hidden_tests import withheld_tests
from composer_replication.tasks.join import can_be_joined
from composer_replication.tasks.store import Task
from composer_replication.types import Group, Unscored

TaskT = TypeVar("TaskT", bound=AnyTask)


@dataclass(slots=True)
class Record:
    """The counts of one task's rollouts so far."""

    passed: float = 0.0
    tried: float = 0.0
    """Rollouts that passed, and all that were scored; both fade from visit to visit."""
    near: float = 0.0
    """Credit for rollouts that failed and came near, in passes; it fades likewise, and counts for drawing alone."""
    failed_visits: int = 0
    """Visits in a row on which every sibling failed."""
    last_step: int = 0
    """The last step that trained on it."""
    view: int = 0
    """How often the tests that the agent sees have become fewer; what was counted before is forgotten then."""

    @property
    def rate(self) -> float:
        """The pass rate, with one success and one failure assumed beforehand."""
        return (self.passed + 1) / (self.tried + 2)

    @property
    def promise(self) -> float:
        """The pass rate with the credit for rollouts that came near."""
        return (self.passed + self.near + 1) / (self.tried + 2)


class Curriculum:
    """Pass rates of one arm, and the choice of tasks that follows from them.

    Tasks are sorted by their estimated difficulty into `levels` equal parts. The first is trained on; the next is added when
    at least half of the open tasks have been visited and their mean pass rate has reached `promote_at`. Larger groups
    of functions are estimated as harder, so a folder of several sizes is a curriculum by itself. A task on which every sibling
    failed for `quarantine_after` visits in a row is left alone but for one visit every `probe_every` steps; no level waits for
    it.

    A task whose own pass rate has reached `promote_at` is made harder: the agent sees the next smaller share of its fail-to-pass
    tests (`visible_tests`; which ones follows from the seed and the task's id), and counts as solved for the levels. Where all
    siblings fail with fewer tests, it shows the share before again instead of going into quarantine.

    Of tasks that are solved with the fewest of their tests, two of one source may be joined into a harder one (`to_join`), up to
    `join_up_to` functions. It is trained on from then on, like a task of the highest open level.
    """

    def __init__(self, config: CurriculumConfig, tasks: Sequence[Task], seed: int) -> None:
        self._config = config
        self._tasks = {task.spec.task_id: task for task in tasks}
        self._views: dict[str, list[frozenset[str]]] = {}
        """By task that was asked for: the sets of tests that are hidden in turn."""
        self._last: dict[str, float] = {}
        """By task of the last step: the share of its fail-to-pass tests that was hidden."""
        ordered = sorted(tasks, key=lambda t: (float(t.provenance.get("difficulty", 0.0)), t.spec.task_id))
        self._level = {task.spec.task_id: number * config.levels // len(ordered) for number, task in enumerate(ordered)}
        self._seed = seed
        self.joined: list[tuple[str, str, str]] = []
        """Ids of two tasks that were to be joined, and of the task they became; empty when they became none."""
        self.records: dict[str, Record] = {}
        self.unlocked = 1
        """Number of levels that are trained on."""

    def choose(self, tasks: Sequence[TaskT], seed: int, step: int, count: int, *, refill: int = 0) -> list[TaskT]:
        """Return at most `count` of `tasks` for a step, none twice, drawn by the weights of `weight`.

        A function of its arguments and the pass rates alone. Where the unlocked levels hold too few tasks, the easiest of the
        others make up the number, and for a step itself those in quarantine, too; a refill rather stays short of it.
        """
        if refill:
            tasks = [task for task in tasks if self.weight(task.spec.task_id, step) > 0]
        keys: dict[str, tuple[int, float]] = {}
        for task in tasks:
            name = task.spec.task_id
            draw = random.Random(f"{seed}/{step}/{refill}/{name}").random()
            weight = self.weight(name, step)
            locked = max(0, self._level[name] - self.unlocked + 1)
            # Efraimidis and Spirakis 2006: the smallest of -log(u) / w are a weighted draw without replacement
            keys[name] = (locked, -math.log(max(draw, 1e-300)) / weight) if weight > 0 else (self._config.levels, draw)
        return sorted(tasks, key=lambda t: keys[t.spec.task_id])[:count]

    def weight(self, task_id: str, step: int) -> float:
        """Return `4 p (1 - p)` of the `promise` p, at least `floor`; 0 in quarantine between probes."""
        record = self.records.get(task_id, Record())
        if self.is_quarantined(task_id) and step - record.last_step < self._config.probe_every:
            return 0.0
        return max(self._config.floor, 4 * record.promise * (1 - record.promise))

    def is_quarantined(self, task_id: str) -> bool:
        """Return whether nothing but failures came of its last visits."""
        return self.records.get(task_id, Record()).failed_visits >= self._config.quarantine_after

    def learn(self, groups: Iterable[Group], step: int, scores: Mapping[str, float] | None = None) -> None:
        """Take in the verdicts of a step, and unlock the next level when it is time. Unscored siblings say nothing.

        Args:
            scores: by trajectory id, how good its turns are, from 0 to 1; failed ones get `prm_credit` times that.
        """
        scores = scores or {}
        self._last = {}
        for group in groups:
            rewards = [t.reward for t in group.trajectories if not isinstance(t.reward, Unscored)]
            if not rewards:
                continue
            record = self.records.setdefault(group.task_id, Record())
            self._last[group.task_id] = len(self.hidden_tests(group.task_id)) / max(
                1, len(self._tasks[group.task_id].spec.fail_to_pass)
            )
            passed = sum(reward >= 1.0 for reward in rewards)
            record.passed = self._config.decay * record.passed + passed
            record.tried = self._config.decay * record.tried + len(rewards)
            failed = [t for t in group.trajectories if not isinstance(t.reward, Unscored) and t.reward < 1.0]
            credit = self._config.prm_credit * sum(scores.get(t.trajectory_id, 0.0) for t in failed)
            record.near = self._config.decay * record.near + credit
            record.failed_visits = 0 if passed else record.failed_visits + 1
            record.last_step = step
            self._change_view(group.task_id, record)
        unlocked = (name for name, level in self._level.items() if level < self.unlocked)
        open_tasks = [name for name in unlocked if not self.is_quarantined(name)]
        visited = [self.records[name] for name in open_tasks if name in self.records]
        rates = [1.0 if record.view else record.rate for record in visited]
        enough = 2 * len(rates) >= len(open_tasks) and sum(rates) >= self._config.promote_at * len(rates)
        if rates and enough and self.unlocked < self._config.levels:
            self.unlocked += 1

    def to_join(self) -> tuple[Task, Task] | None:
        """Return two solved tasks to join into a harder one, the smallest first; none is taken twice."""
        if self._config.join_up_to < 2:
            return None
        used = {name for *pair, _ in self.joined for name in pair}
        solved = [self._tasks[name] for name in self.records if name not in used and self._is_solved(name)]
        solved.sort(key=lambda task: (len(task.spec.deleted), task.spec.task_id))
        of_source: dict[str, list[Task]] = {}
        for task in solved:
            of_source.setdefault(task.spec.source_digest, []).append(task)
        for first in solved:
            mine = of_source[first.spec.source_digest]
            mine.pop(0)
            for second in mine:  # the smallest first
                if len(first.spec.deleted) + len(second.spec.deleted) > self._config.join_up_to:
                    break
                if can_be_joined([first, second]):
                    return first, second
        return None

    def add_joined(self, first: Task, second: Task, task: Task | None) -> None:
        """Record the outcome of joining the pair of `to_join`; `task` is None when there is no task."""
        self.joined.append((first.spec.task_id, second.spec.task_id, "" if task is None else task.spec.task_id))
        if task is not None:
            name = task.spec.task_id
            self._tasks[name] = task
            self._level[name] = max(self._level[first.spec.task_id], self._level[second.spec.task_id])

    def _is_solved(self, task_id: str) -> bool:
        """Return whether the task is solved with as few visible tests as possible."""
        record = self.records.get(task_id, Record())
        return record.rate >= self._config.promote_at and record.view + 1 == len(self._views_of(task_id))

    def hidden_tests(self, task_id: str) -> frozenset[str]:
        """Return the ids of the fail-to-pass tests that the agent does not see now."""
        view = self.records.get(task_id, Record()).view
        return self._views_of(task_id)[view] if view or self._config.visible_tests[0] < 1.0 else frozenset()

    def _views_of(self, task_id: str) -> list[frozenset[str]]:
        if task_id not in self._views:
            self._views[task_id] = _views(self._tasks[task_id], self._config.visible_tests, self._seed)
        return self._views[task_id]

    def _change_view(self, task_id: str, record: Record) -> None:
        if record.rate >= self._config.promote_at and record.view + 1 < len(self._views_of(task_id)):
            change = 1
        elif record.failed_visits >= self._config.quarantine_after and record.view > 0:
            change = -1
        else:
            return
        self.records[task_id] = Record(last_step=record.last_step, view=record.view + change)

    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics."""
        rates = [record.rate for record in self.records.values()]
        return {
            "curriculum/level": float(self.unlocked),
            "curriculum/seen": float(len(self.records)),
            "curriculum/quarantined": float(sum(self.is_quarantined(name) for name in self.records)),
            "curriculum/pass_rate/mean": _mean(rates),
            "curriculum/functions/mean": _mean([float(len(self._tasks[name].spec.deleted)) for name in self._last]),
            "curriculum/withheld/mean": _mean(list(self._last.values())),
            "curriculum/joined": float(sum(bool(task) for *_, task in self.joined)),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON for a checkpoint."""
        records = {name: asdict(record) for name, record in sorted(self.records.items())}
        return {"unlocked": self.unlocked, "records": records, "joined": [list(entry) for entry in self.joined]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, after `add_joined` was called for each of its `joined`."""
        self.unlocked = state["unlocked"]
        self.records = {name: Record(**record) for name, record in state["records"].items()}


def _views(task: Task, shares: Sequence[float], seed: int) -> list[frozenset[str]]:
    """Return the sets of hidden tests of a task, in turn; shares that hide the same tests are left out."""
    if tuple(shares) == (1.0,):
        return [frozenset()]
    return list(dict.fromkeys(withheld_tests(task, share, seed) for share in shares))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
