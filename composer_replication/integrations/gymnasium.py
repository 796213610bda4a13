"""Gymnasium: text in, text out; `gymnasium.make("composer_replication.integrations.gymnasium:CodingTasks-v0", folder=...)`."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any, ClassVar

from composer_replication.envs.coding import CodingEnv
from composer_replication.envs.suite import shared_suite
from composer_replication.envs.tools import Toolset
from composer_replication.sandbox import SandboxKind
from composer_replication.tokens.tool_calls import load_json
from composer_replication.types import ToolCall, Unscored
from composer_replication.types.errors import MissingExtraError, SandboxError

try:
    import gymnasium
    from gymnasium import spaces
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "the Gymnasium face needs gymnasium, which is not installed", fix="pip install 'composer-replication[gymnasium]'"
    ) from error

_NAME_CHARS = 64
_TEXT_CHARS = 1 << 20


class UnicodeText(spaces.Text):
    """Any string of at most `max_length` characters; samples are printable ASCII. `Text` itself lists its alphabet."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class CodingTasksEnv(gymnasium.Env[dict[str, str], dict[str, str]]):
    """Each episode is one task; an action is one tool call, and the reward comes with `submit`.

    Actions are `{"tool": name, "arguments": JSON object}`, observations `{"status": ..., "content": ...}`. `info` has `task_id`
    always, `system` and `tools` (the declared schemas) after a reset, the tool's `details` after a step, and after the last the
    grader's `reasons` and `alarms` (why a person should read the work). It is not for the agent: ids name what was deleted.

    Args:
        folder: tasks, as `composer tasks build` writes them.
        python: runs the tests; the interpreter the tasks were built with when None.
        toolset: what agents are offered (`tools.TOOLSETS`).
        forgeable: take also tasks whose reward can be forged.

    Raises:
        ConfigError, TaskError, SandboxError: as `TaskSuite`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        folder: str | Path,
        *,
        sandbox: SandboxKind = "auto",
        python: str | Path | None = None,
        toolset: Toolset = "basic",
        forgeable: bool = False,
    ) -> None:
        interpreter = None if python is None else Path(python)
        self._suite = shared_suite(Path(folder), sandbox, interpreter, toolset, forgeable=forgeable)
        self._env: CodingEnv | None = None
        self.action_space = spaces.Dict({"tool": UnicodeText(_NAME_CHARS), "arguments": UnicodeText(_TEXT_CHARS)})
        self.observation_space = spaces.Dict({"status": UnicodeText(_NAME_CHARS), "content": UnicodeText(_TEXT_CHARS)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, str], dict[str, Any]]:
        """Begin an episode: on the task `options["task_id"]`, or on one drawn with `seed`.

        Raises ConfigError for an unknown task.
        """
        super().reset(seed=seed)
        drawn = self._suite.tasks[int(self.np_random.integers(len(self._suite.tasks)))]
        wanted = (options or {}).get("task_id")
        self._env = self._suite.env(drawn if wanted is None else self._suite.task(wanted))
        system, user = self._env.reset()
        info = {"task_id": self._env.task_id, "system": system["content"], "tools": list(self._env.tools)}
        return {"status": "ok", "content": user["content"]}, info

    def step(self, action: dict[str, str]) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        """Carry out one tool call. Raises ValueError before `reset` and after `submit`, SandboxError when the sandbox broke."""
        if self._env is None:
            raise ValueError("reset the environment first")
        result = self._env.step(_call(action))
        info: dict[str, Any] = {"task_id": self._env.task_id, "details": dict(result.details)}
        reward = 0.0
        if self._env.done:
            report = self._env.grade()
            if isinstance(report.reward, Unscored):
                raise SandboxError(report.reward.reason)
            reward = report.reward
            info |= {"reasons": list(report.reasons), "alarms": list(report.alarms)}
        return {"status": result.status, "content": result.content}, reward, self._env.done, False, info


def _call(action: dict[str, str]) -> ToolCall:
    try:
        arguments = load_json(action["arguments"])
    except ValueError as error:
        return ToolCall(call_id="step", name="", arguments={}, error=f"arguments: {error}")
    if not isinstance(arguments, dict):
        return ToolCall(call_id="step", name="", arguments={}, error="arguments are not a JSON object")
    return ToolCall(call_id="step", name=action["tool"], arguments=arguments)


gymnasium.register(id="CodingTasks-v0", entry_point=CodingTasksEnv)
