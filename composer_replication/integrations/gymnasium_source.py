"""Any Gymnasium environment as one to train on: observations become messages, and what the policy says becomes the action."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from composer_replication.integrations.seeds import (
    EpisodeReward,
    check_reward,
    episode_reward,
    graded,
    opening_messages,
    seed_tasks,
    unknown_tool,
)
from composer_replication.types import GradeReport, Message, ToolCall, ToolResult, ToolSchema
from composer_replication.types.errors import ConfigError, MissingExtraError

try:
    import gymnasium
    from gymnasium import spaces
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "env.use = 'gymnasium' needs gymnasium, which is not installed", fix="pip install 'composer-replication[gymnasium]'"
    ) from error


class GymnasiumSource:
    """An `EnvSource` whose tasks are the seeds of one environment: 0, 1, 2 ...

    Args:
        id: as `gymnasium.make` takes it, `module:Name-v0` included.
        instruction: the system message: the rules of the game and how to answer.
        train: number of seeds to train on.
        held_out: number of further seeds for pass@1.
        actions: names of the actions of a `Discrete` space, in order; without them the policy answers with the number.
        observe: `observation` shows what `step` returns; `render` shows `env.render()`, which needs a text `render_mode`.
        reward: `sum` of the episode's rewards, or the `last` one.
        max_steps: most actions of an episode; None for the environment's own limit.
        make: further arguments of `gymnasium.make`, e.g. `{ render_mode = "ansi" }`.

    Raises:
        ConfigError: there is no such environment, or its actions cannot be written as text.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - Gymnasium's own word
        *,
        instruction: str = "",
        train: int = 64,
        held_out: int = 0,
        actions: Sequence[str] = (),
        observe: Literal["observation", "render"] = "observation",
        reward: EpisodeReward = "sum",
        max_steps: int | None = None,
        make: dict[str, Any] | None = None,
    ) -> None:
        check_reward(reward)
        if observe not in ("observation", "render"):
            raise ConfigError(f"env.options.observe = {observe!r} is neither 'observation' nor 'render'", fix="write one of them")
        self._id, self._make, self._max_steps = id, dict(make or {}), max_steps
        self._instruction, self._actions, self._observe, self._reward = instruction, tuple(actions), observe, reward
        env = self._open()
        space = env.action_space
        if not isinstance(space, spaces.Discrete | spaces.Text):
            raise ConfigError(
                f"{id} takes actions of {space}, which cannot be said in a word", fix="wrap it in a Text or Discrete space"
            )
        if actions and (not isinstance(space, spaces.Discrete) or len(actions) != int(space.n)):
            raise ConfigError(f"env.options.actions has {len(actions)} names, and {id} takes {space}", fix="name each action")
        env.close()
        self.train, self.held_out = seed_tasks(train, held_out, instruction or f"Play {id}.")

    def make(self, task_id: str) -> _Episode:
        """Create an episode; the environment itself is made when it is reset."""
        return _Episode(self, task_id)

    def _open(self) -> Any:
        try:
            return gymnasium.make(self._id, max_episode_steps=self._max_steps, **self._make)
        except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
            raise ConfigError(
                f"env.options.id = {self._id!r}: {error}", fix="name an environment as gymnasium.make does"
            ) from error


class _Episode:
    """One seed, played in words."""

    tools: tuple[ToolSchema, ...] = ()

    def __init__(self, source: GymnasiumSource, task_id: str) -> None:
        self.task_id, self.done = task_id, False
        self._source = source
        self._env: Any = None
        self._rewards: list[float] = []

    def reset(self) -> tuple[Message, ...]:
        self._close()
        self._env, self._rewards, self.done = self._source._open(), [], False
        observation, _ = self._env.reset(seed=int(self.task_id))
        return opening_messages(self._source._instruction, self._shown(observation))

    def step(self, call: ToolCall) -> ToolResult:
        return unknown_tool(call)

    def say(self, text: str) -> Message | None:
        """Play the action that the policy named; what is no action is answered with those that are."""
        action = self._action(text)
        if action is None:
            return Message(role="user", content=f"That is no action. Answer with one of: {', '.join(self._names())}.")
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self._rewards.append(float(reward))
        self.done = bool(terminated or truncated)
        if self.done:
            self._close()
            return None
        return Message(role="user", content=self._shown(observation))

    def grade(self) -> GradeReport:
        self._close()
        return graded(episode_reward(self._rewards, self._source._reward))

    def _action(self, text: str) -> Any:
        space = self._env.action_space
        if isinstance(space, spaces.Text):
            return text if space.contains(text) else None
        word = text.strip().rstrip(".").lower()
        names = self._names()
        return int(space.start) + names.index(word) if word in names else None

    def _names(self) -> list[str]:
        space = self._env.action_space
        if self._source._actions:
            return [name.lower() for name in self._source._actions]
        return [str(int(space.start) + i) for i in range(int(space.n))] if isinstance(space, spaces.Discrete) else ["a text"]

    def _shown(self, observation: Any) -> str:
        if self._source._observe == "render":
            return str(self._env.render())
        return observation if isinstance(observation, str) else json.dumps(observation, default=_plain)

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None


def _plain(value: Any) -> Any:
    """Turn an array or a scalar of numpy into plain JSON."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
