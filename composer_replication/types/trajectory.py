"""The record of one rollout, and of its siblings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from composer_replication.types.grade import GradeReport, Reward, Unscored
from composer_replication.types.messages import Message, ToolCall, ToolResult, ToolSchema
from composer_replication.types.routed_experts import RoutedExperts


class StopReason(StrEnum):
    """Why a trajectory ended. Each budget has its own name, and nothing is cut silently."""

    SUBMITTED = "submitted"
    """The agent called `submit`."""
    NO_TOOL_CALL = "no_tool_call"
    """The agent ended a turn without calling a tool."""
    MAX_TURNS = "max_turns"
    TURN_TOKENS = "turn_tokens"
    """One turn reached its token budget before its end-of-turn token."""
    TRAJECTORY_TOKENS = "trajectory_tokens"
    """The sampled tokens of all turns reached their budget."""
    CONTEXT_TOKENS = "context_tokens"
    """Prompt, turns and observations together no longer fit the context budget."""
    INFRASTRUCTURE = "infrastructure"
    """The environment broke or the rollout took too long; the trajectory is `Unscored`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call and the environment's reply.

    The policy's context before this turn is `prompt_ids` plus `action_ids + observation_ids` of every earlier turn.
    """

    action_ids: tuple[int, ...]
    """Exactly what the policy sampled, end-of-turn token included when it was sampled. Never re-encoded."""
    logprobs: tuple[float, ...]
    """Log-prob of each sampled id under the distribution it was drawn from (after temperature), same length as `action_ids`."""
    text: str
    """`action_ids` decoded, for reading only."""
    tool_calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    observation_ids: tuple[int, ...] = ()
    """The rendered reply up to and including the next generation prompt; empty after the last turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one rollout."""

    trajectory_id: str
    """`step/task/sibling`, unique among those of one arm and step. Step -1 is any evaluation, -2 the frozen traces."""
    task_id: str
    policy_version: int
    """Number of optimizer steps behind the weights that sampled it."""
    messages: tuple[Message, ...]
    """The opening messages (system, user)."""
    tools: tuple[ToolSchema, ...]
    prompt_ids: tuple[int, ...]
    """`messages` and `tools` rendered, generation prompt included."""
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    temperature: float
    reward: Reward
    grade: GradeReport | None = None
    arm: str = ""
    experts: RoutedExperts | None = None
    """The experts that the tokens of the whole sequence went through, from the first one on, where `model.router_replay` has a
    mixture's recorded. The last sampled token was not read any more."""

    def context_ids(self, turn: int) -> tuple[int, ...]:
        """Return the exact token ids the policy had seen when it sampled turn `turn` (0-based); `len(turns)` gives everything."""
        ids = list(self.prompt_ids)
        for earlier in self.turns[:turn]:
            ids.extend(earlier.action_ids)
            ids.extend(earlier.observation_ids)
        return tuple(ids)

    def action_start(self, turn: int) -> int:
        """Return the position of the first sampled token of turn `turn` in the whole sequence."""
        return len(self.prompt_ids) + sum(len(t.action_ids) + len(t.observation_ids) for t in self.turns[:turn])

    @property
    def passed(self) -> bool:
        """True when it was graded and its reward is 1 or more, as pass@1 counts."""
        return not isinstance(self.reward, Unscored) and self.reward >= 1.0

    def num_sampled_tokens(self) -> int:
        """Return tokens the policy sampled, all turns together."""
        return sum(len(t.action_ids) for t in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Siblings: several trajectories of one task from one policy version. The unit of a GRPO baseline."""

    group_id: str
    task_id: str
    trajectories: tuple[Trajectory, ...]
