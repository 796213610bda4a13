"""Trajectories of which only the task and the reward matter."""

from __future__ import annotations

from composer_replication.types import Group, Reward, StopReason, Trajectory


def scored(task: str, number: int, reward: Reward) -> Trajectory:
    """Make a trajectory without turns."""
    return Trajectory(
        trajectory_id=f"0/{task}/{number}",
        task_id=task,
        policy_version=0,
        messages=(),
        tools=(),
        prompt_ids=(),
        turns=(),
        stop_reason=StopReason.SUBMITTED,
        temperature=1.0,
        reward=reward,
    )


def scored_group(task: str, *rewards: Reward) -> Group:
    """Make a group of such trajectories."""
    trajectories = tuple(scored(task, number, reward) for number, reward in enumerate(rewards))
    return Group(group_id=f"0/{task}", task_id=task, trajectories=trajectories)
