"""Convert every class of this package to plain JSON data and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from composer_replication.types.grade import GradeReport, Outcome, Reward, Unscored
from composer_replication.types.held_out_checks import held_out_checks_from_json
from composer_replication.types.messages import ToolCall, ToolResult
from composer_replication.types.task import Deletion, TaskSpec
from composer_replication.types.trajectory import Group, StopReason, Trajectory, Turn


def to_json(value: Any) -> Any:
    """Return plain JSON data of any class of this module; `Unscored` becomes `{"unscored": reason}`."""
    if isinstance(value, Unscored):
        return {"unscored": value.reason}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, StrEnum):
        return value.value
    return value


def reward_from_json(value: Any) -> Reward:
    """Invert `to_json` for a reward."""
    return Unscored(value["unscored"]) if isinstance(value, dict) else float(value)


def task_spec_from_json(data: Mapping[str, Any]) -> TaskSpec:
    """Invert `to_json` for a `TaskSpec`. Raises KeyError or TypeError on a record of another shape."""
    tuples = {k: tuple(data[k]) for k in ("fail_to_pass", "pass_to_pass", "editable", "python_path")}
    deleted = tuple(Deletion(**d) for d in data["deleted"])
    return TaskSpec(**{**data, **tuples, "deleted": deleted, "hidden": held_out_checks_from_json(data["hidden"])})


def grade_from_json(data: Mapping[str, Any]) -> GradeReport:
    """Invert `to_json` for a `GradeReport`."""
    return GradeReport(
        **{
            **data,
            "reward": reward_from_json(data["reward"]),
            "outcomes": {k: Outcome(v) for k, v in data["outcomes"].items()},
            "reasons": tuple(data["reasons"]),
            "rejected": tuple(data["rejected"]),
            "hidden_broken": tuple(data.get("hidden_broken", ())),
        }
    )


def group_from_json(data: Mapping[str, Any]) -> Group:
    """Invert `to_json` for a `Group`."""
    return Group(**{**data, "trajectories": tuple(map(trajectory_from_json, data["trajectories"]))})


def trajectory_from_json(data: Mapping[str, Any]) -> Trajectory:
    """Invert `to_json` for a `Trajectory`."""
    turns = tuple(
        Turn(
            action_ids=tuple(t["action_ids"]),
            logprobs=tuple(t["logprobs"]),
            text=t["text"],
            tool_calls=tuple(ToolCall(**c) for c in t["tool_calls"]),
            results=tuple(ToolResult(**r) for r in t["results"]),
            observation_ids=tuple(t["observation_ids"]),
        )
        for t in data["turns"]
    )
    return Trajectory(
        **{
            **data,
            "messages": tuple(data["messages"]),
            "tools": tuple(data["tools"]),
            "prompt_ids": tuple(data["prompt_ids"]),
            "turns": turns,
            "stop_reason": StopReason(data["stop_reason"]),
            "reward": reward_from_json(data["reward"]),
            "grade": None if data["grade"] is None else grade_from_json(data["grade"]),
        }
    )
