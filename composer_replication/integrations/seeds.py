"""Tasks that are seeds, the messages that open an episode, and its reward: shared by the environments of other frameworks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from composer_replication.envs.source import EnvTask
from composer_replication.types import GradeReport, Message, ToolCall, ToolResult, Unscored
from composer_replication.types.errors import ConfigError

EpisodeReward: TypeAlias = Literal["sum", "last"]


def check_reward(kind: str) -> None:
    """Raise ConfigError unless `kind` is an `EpisodeReward`."""
    if kind not in ("sum", "last"):
        raise ConfigError(f"env.options.reward = {kind!r} is neither 'sum' nor 'last'", fix="write one of them")


def seed_tasks(train: int, held_out: int, instruction: str) -> tuple[tuple[EnvTask, ...], tuple[EnvTask, ...]]:
    """Return tasks named 0, 1, 2 ...: those to train on, and the held-out ones after them."""
    tasks = tuple(EnvTask(str(seed), instruction=instruction) for seed in range(train + held_out))
    return tasks[:train], tasks[train:]


def opening_messages(instruction: str, observation: str) -> tuple[Message, ...]:
    """Return the first observation as a user message, after a system message where there is an instruction."""
    system = (Message(role="system", content=instruction),) if instruction else ()
    return (*system, Message(role="user", content=observation))


def episode_reward(rewards: Sequence[float], kind: EpisodeReward) -> float:
    """Return the sum of an episode's rewards or the last one; 0 for an episode without any."""
    return sum(rewards) if kind == "sum" else [0.0, *rewards][-1]


def graded(reward: float | Unscored) -> GradeReport:
    """Return the report of an episode; a reward that is not finite is no reward."""
    if not isinstance(reward, Unscored) and not math.isfinite(reward):
        reward = Unscored(f"the environment's reward is {reward}")
    return GradeReport(reward=reward, outcomes={})


def unknown_tool(call: ToolCall) -> ToolResult:
    """Answer a call of a tool that the environment does not offer."""
    return ToolResult(call_id=call.call_id, name=call.name, content=f"there is no tool {call.name}", status="unknown_tool")


def encodable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Replace half surrogate pairs, which a model may write in JSON and servers cannot encode."""
    text = json.dumps(dict(arguments), ensure_ascii=False)
    cleaned: dict[str, Any] = json.loads(text.encode(errors="replace"))
    return cleaned
