"""The state that the agent loops of one process share: tasks, sandbox, hints, and the records of groups."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from transformers import AutoConfig, GenerationConfig

from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.files import append_line, read_lines, replace_file
from composer_replication.recipes.verl.plan import ArmPlan
from composer_replication.rollouts.agent_loop import Rollout, derive_seed
from composer_replication.rollouts.protocol import Budgets
from composer_replication.rollouts.transformers_engine import stop_ids_of
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.collector import EVAL_STEP
from composer_replication.trainer.rewards import penalties_of
from composer_replication.trainer.run_context import RunContext
from composer_replication.types import Group, Hint, HintedTurn, Trajectory, from_json, to_json

_FOLDERS = "agents-*"
"""Folders of the processes that ran agent loops: a file for each step, with a line of JSON for each group."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group of rollouts, with its hints and penalties."""

    step: int
    """The step; of an evaluation, the optimizer steps taken before it."""
    evaluation: bool
    group: Group
    hints: Sequence[Hint] = ()
    """The hints that are used, then those that were dropped (`Hint.dropped`)."""
    hinted: Sequence[HintedTurn] = ()
    penalties: dict[str, list[float]] = field(default_factory=dict)
    """The penalties of each trajectory, by name."""

    def penalty(self, number: int) -> float:
        """Return the sum of the penalties on trajectory `number`."""
        return sum(values[number] for values in self.penalties.values())

    def line(self) -> str:
        """Return the record as a line of JSON, without the hinted turns."""
        return json.dumps(to_json(replace(self, hinted=())), default=str)


def generation_config_of(path: str) -> GenerationConfig:
    """Load the generation config that transformers would give to the model."""
    try:
        return GenerationConfig.from_pretrained(path)
    except OSError:  # a policy need not have one; its config may name the tokens that end a turn
        return GenerationConfig.from_model_config(AutoConfig.from_pretrained(path, trust_remote_code=False))


class Episodes:
    """The tasks and hints of one process that runs agent loops."""

    def __init__(self, plan: ArmPlan, renderer: ChatRenderer) -> None:
        """Open the tasks. Raises ConfigError, TaskError or SandboxError as `RunContext.open`."""
        self.plan, self.config, self.renderer = plan, plan.config, renderer
        self.folder = plan.folder / f"agents-{os.uname().nodename}-{os.getpid()}"
        self.context = RunContext.open(plan.config, RunDir.create(self.folder), Terminal())
        self.maker = self.context.signal_maker(plan.config, renderer, plan.context_window)
        self.threads = ThreadPoolExecutor(plan.config.rollout.env_workers, "rollout-env")
        """Tools, tests and grades."""
        self.stop_ids = stop_ids_of(generation_config_of(plan.config.model.path), renderer.tokenizer)
        """Tokens that end a turn: those that end one wherever else the policy samples."""

    def rollout(self, task_id: str, step: int, sibling: int, *, evaluation: bool) -> Rollout:
        """Return a rollout that has not begun. Its draws are those that the local trainer would make."""
        config, named = self.config.rollout, EVAL_STEP if evaluation else step
        env = self.context.coding.make(task_id)
        return Rollout(
            f"{named}/{task_id}/{sibling}",
            env,
            self.renderer,
            Budgets.of(config),
            seed=derive_seed(self.config.seed, named, task_id, sibling),
            context_tokens=min(config.context_tokens, self.plan.context_window),
        )

    def finish(self, trajectories: Sequence[Trajectory], *, step: int, evaluation: bool) -> GroupRecord:
        """Find the hints and penalties of a group, record them, and return the record."""
        first = trajectories[0]
        group = Group(group_id=first.trajectory_id.rpartition("/")[0], task_id=first.task_id, trajectories=tuple(trajectories))
        record = GroupRecord(step, evaluation, group) if evaluation else self._taught(step, group)
        append_line(self.folder / _file(step, evaluation), record.line(), durable=False)
        return record

    def _taught(self, step: int, group: Group) -> GroupRecord:
        trajectories, hint = group.trajectories, self.config.loss.hint
        penalties = penalties_of(trajectories, self.config, self.renderer.end_of_thinking)
        if hint.weight == 0:
            return GroupRecord(step, False, group, penalties=penalties)
        selected = self.maker.select_hints(step, trajectories)
        return GroupRecord(step, False, group, (*selected.hints, *selected.dropped), selected.hinted, penalties)

    def fault(self, error: BaseException) -> None:
        """Record the error that ends the run: verl itself would continue with fewer rollouts."""
        replace_file(self.plan.fault_path, f"{type(error).__name__}: {error}".encode())


def read_groups(plan: ArmPlan, step: int, *, evaluation: bool) -> list[GroupRecord]:
    """Return the groups recorded at a step, in the order of their tasks. Hinted turns are not kept."""
    paths = sorted(plan.folder.glob(f"{_FOLDERS}/{_file(step, evaluation)}"))
    found = [from_json(GroupRecord, {**line, "hinted": ()}) for path in paths for line in read_lines(path)]
    return sorted(found, key=lambda record: record.group.group_id)


def forget_groups(plan: ArmPlan) -> None:
    """Delete all recorded groups, before a run begins or continues."""
    for folder in plan.folder.glob(_FOLDERS):
        shutil.rmtree(folder)


def _file(step: int, evaluation: bool) -> str:
    return f"{'eval' if evaluation else 'step'}_{step:05d}.jsonl"
