"""What a run on verl has sampled is counted as the local loop counts it."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from composer_replication.config import ModelConfig, RunConfig, SubstrateConfig, TasksConfig
from composer_replication.observe import RunDir, Terminal
from composer_replication.recipes.verl.episodes import GroupRecord
from composer_replication.recipes.verl.import_metrics import VerlMetrics
from composer_replication.recipes.verl.plan import ArmPlan
from composer_replication.trainer.journal import ArmJournal, RolloutMeter
from composer_replication.types import Group, StopReason, Trajectory, Turn

TOKENS = 3
"""Sampled in a trajectory."""


def trajectory(name: str) -> Trajectory:
    return Trajectory(
        trajectory_id=name,
        task_id="t",
        policy_version=0,
        messages=(),
        tools=(),
        prompt_ids=(1, 2),
        turns=(Turn(action_ids=(5, 6, 7), logprobs=(-1.0,) * TOKENS, text=""),),
        stop_reason=StopReason.SUBMITTED,
        temperature=1.0,
        reward=float(name.endswith("0")),
    )


def sampled(plan: ArmPlan, step: int, count: int, *, evaluation: bool) -> None:
    """What agent loops write of a group."""
    group = Group(group_id=f"{step}/t", task_id="t", trajectories=tuple(trajectory(f"{step}/t/{i}") for i in range(count)))
    path = plan.folder / "agents-here-1" / f"{'eval' if evaluation else 'step'}_{step:05d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(GroupRecord(step, evaluation, group).line() + "\n")


def test_traces_are_counted_from_the_first_step_on(tmp_path: Path) -> None:
    """The local loop evaluates, then records traces, then takes its first step."""
    config = RunConfig(
        model=ModelConfig(path="policy"), tasks=TasksConfig(train=tmp_path), substrate=SubstrateConfig(type="verl"), steps=2
    )
    plan = ArmPlan("main", config, 512, tmp_path / "arm")
    sampled(plan, 0, 2, evaluation=True)
    for step in (1, 2):
        sampled(plan, step, 4, evaluation=False)
    lines = [{"step": step, "data": {"actor/rlvr/loss": 0.1} if step else {}} for step in range(3)]
    plan.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_dir = RunDir.create(tmp_path / "run")
    traces = [trajectory(f"-2/t/{i}") for i in range(5)]
    journal = ArmJournal(run_dir, Terminal(Console(file=io.StringIO())), "main", config.steps, RolloutMeter())
    imported = VerlMetrics(plan, journal, 0, traces)
    assert list(imported.steps()) == [0, 1, 2]
    found = [(line.values["rollout/total"], line.values["rollout/tokens_total"]) for line in run_dir.read_metrics()]
    assert found == [(n, n * TOKENS) for n in (2, 2 + 5 + 4, 2 + 5 + 4 + 4)]
    assert (journal.meter.rollouts, journal.meter.tokens) == found[-1]
