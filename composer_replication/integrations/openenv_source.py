"""Any OpenEnv server as an environment to train on: a field said in words, MCP tools, or its action as one tool."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from composer_replication.integrations.seeds import (
    EpisodeReward,
    check_reward,
    encodable,
    episode_reward,
    graded,
    opening_messages,
    seed_tasks,
    unknown_tool,
)
from composer_replication.types import GradeReport, Message, ToolCall, ToolResult, ToolSchema, Unscored
from composer_replication.types.errors import ConfigError, MissingExtraError, SandboxError

try:
    from openenv.core import GenericEnvClient
    from websockets.exceptions import WebSocketException
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "env.use = 'openenv' needs openenv, which is not installed", fix="pip install 'composer-replication[openenv]'"
    ) from error

_ACT = "act"
_AGENTS_MISTAKE = ("(code: VALIDATION_ERROR)", "(code: EXECUTION_ERROR)")
_BESIDE = ("done", "reward", "metadata")
"""Fields of every observation, which the policy is not shown."""
_FULL = "(code: CAPACITY_REACHED)"
_MORE_SESSIONS = (
    "let the server take as many sessions as rollouts run at once: rollout.groups x rollout.group_size in training, "
    "env.options.held_out x eval.samples in evaluation"
)
_SEAT_S = 10.0
"""How long a full server is asked again: a session that ended a moment ago still holds its place."""


class OpenEnvSource:
    """An `EnvSource` whose tasks are the seeds of a running OpenEnv server: 0, 1, 2 ...

    How the policy acts follows from the server's `/schema`: an action that is one text is what the policy says; a server of MCP
    tools offers those; any other action is one tool, `act`, whose arguments are the action's fields.

    Args:
        url: of the server, `http://HOST:PORT`. It must allow as many sessions as rollouts run at once: in training
            `rollout.groups` x `rollout.group_size`, in evaluation `held_out` x `eval.samples`.
        instruction: the system message: the rules and how to answer.
        train: number of seeds to train on.
        held_out: number of further seeds for pass@1.
        say: the field of the action that takes the policy's words, where the action has other fields too, which keep their
            defaults.
        observe: the field of the observation that the policy is shown; without it, or where an observation lacks it, all of it as
            JSON.
        reward: `sum` of the episode's rewards, or the `last` one.
        reset: further arguments of the server's `reset`, e.g. `{ difficulty = "easy" }`.
        timeout_s: seconds that one answer of the server may take.

    Raises:
        ConfigError: no OpenEnv server answers at `url`, or it has no such field.
    """

    def __init__(
        self,
        url: str,
        *,
        instruction: str = "",
        train: int = 64,
        held_out: int = 0,
        say: str = "",
        observe: str = "",
        reward: EpisodeReward = "sum",
        reset: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        check_reward(reward)
        self.url, self._timeout_s = url.rstrip("/"), timeout_s
        self._instruction, self._observe, self._reward, self._reset = instruction, observe, reward, dict(reset or {})
        schemas = _schemas(self.url, timeout_s)
        fields = _fields(schemas, "action")
        if say and say not in fields:
            raise ConfigError(f"env.options.say = {say!r}: the action has {', '.join(fields)}", fix="name one of them")
        if observe and observe not in _fields(schemas, "observation"):
            known = ", ".join(_fields(schemas, "observation"))
            raise ConfigError(f"env.options.observe = {observe!r}: the observation has {known}", fix="name one of them")
        self._mcp = {"tool_name", "arguments"} <= fields.keys()
        texts = [name for name, field in fields.items() if field.get("type") == "string"]
        self._say = say or (texts[0] if len(texts) == len(fields) == 1 else "")
        self._tools = () if self._say else self._listed() if self._mcp else (_act_tool(schemas["action"], fields),)
        self.train, self.held_out = seed_tasks(train, held_out, instruction)

    def make(self, task_id: str) -> _ServerEpisode | _SpokenEpisode:
        """Create an episode; its session is opened when it is reset."""
        return (_SpokenEpisode if self._say else _ServerEpisode)(self, task_id)

    def _connect(self) -> Any:
        return _OneSession(base_url=self.url, message_timeout_s=self._timeout_s).sync()

    def _listed(self) -> tuple[ToolSchema, ...]:
        """Ask the server for its MCP tools."""
        client = self._connect()
        try:
            listed = _answer(self.url, lambda: client.step({"type": "list_tools"})).observation.get("tools") or []
        except SandboxError as error:
            raise ConfigError(f"env.options.url: {error.message}", fix="see the server's log") from error
        finally:
            client.close()
        if not listed:
            raise ConfigError(
                f"env.options.url: {self.url} takes tool calls and lists no tool", fix="start a server that has tools"
            )
        return tuple(
            _tool(tool["name"], tool.get("description", ""), tool.get("input_schema") or tool.get("inputSchema") or {})
            for tool in listed
        )


class _OneSession(GenericEnvClient):
    """A client that never opens a second session: a lost one ends the episode, which must not go on in a fresh environment."""

    _session: Any = None

    async def _connect_async(self) -> _OneSession:
        await super()._connect_async()
        self._session = self._session or self._ws
        if self._ws is not self._session:
            raise ConnectionError("the session was lost")
        return self


class _ServerEpisode:
    """One seed in one session of the server, acted on by tool calls."""

    def __init__(self, source: OpenEnvSource, task_id: str) -> None:
        self.task_id, self.done = task_id, False
        self.tools = source._tools
        self._source = source
        self._client: Any = None
        self._rewards: list[float] = []

    def reset(self) -> tuple[Message, ...]:
        self._close()
        self._rewards, self.done = [], False
        return opening_messages(self._source._instruction, self._shown(self._open().observation))

    def step(self, call: ToolCall) -> ToolResult:
        if call.name not in {tool["function"]["name"] for tool in self.tools}:
            return unknown_tool(call)
        arguments = encodable(call.arguments)
        action = {"type": "call_tool", "tool_name": call.name, "arguments": arguments} if self._source._mcp else arguments
        status, content = self._act(action)
        return ToolResult(call_id=call.call_id, name=call.name, content=content, status=status)

    def grade(self) -> GradeReport:
        self._close()
        if self.done and not self._rewards:
            return graded(Unscored(f"{self._source.url} ended the episode without a reward"))
        return graded(episode_reward(self._rewards, self._source._reward))

    def _act(self, action: dict[str, Any]) -> tuple[str, str]:
        """Carry out an action and return its status and the text for the policy.

        An action that the server refuses is the policy's mistake and is answered: an unscored rollout would be a way out of a bad
        reward.

        Raises:
            SandboxError: the server is gone, or has lost the session.
        """
        try:
            result = _answer(self._source.url, lambda: self._client.step(action))
        except SandboxError as error:
            if error.message.endswith(_AGENTS_MISTAKE):
                return "invalid_arguments", error.message
            self._close()
            raise
        if result.reward is not None:
            self._rewards.append(float(result.reward))
        self.done = bool(result.done)
        failed = self._source._mcp and result.observation.get("error")
        return ("command_failed" if failed else "ok"), self._shown(result.observation)

    def _open(self) -> Any:
        """Open a session and reset it, waiting a little for a place."""
        until = time.monotonic() + _SEAT_S
        while True:
            client = self._source._connect()
            try:
                opening = _answer(self._source.url, partial(client.reset, seed=int(self.task_id), **self._source._reset))
            except SandboxError as error:
                client.close()
                if not error.message.endswith(_FULL):
                    raise
                if time.monotonic() > until:
                    raise ConfigError(f"env.options.url: {error.message}", fix=_MORE_SESSIONS) from error
                time.sleep(0.2)
            else:
                self._client = client
                return opening

    def _shown(self, observation: Mapping[str, Any]) -> str:
        source = self._source
        if source._observe and source._observe in observation:
            value = observation[source._observe]
        else:
            result = observation.get("result") if source._mcp else None
            value = (
                _said(result) if result is not None else {key: part for key, part in observation.items() if key not in _BESIDE}
            )
        return value if isinstance(value, str) else json.dumps(value)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class _SpokenEpisode(_ServerEpisode):
    """One seed in one session, where what the policy says is the action."""

    def say(self, text: str) -> Message | None:
        _, content = self._act(encodable({self._source._say: text}))
        return None if self.done else Message(role="user", content=content)


def _answer(url: str, ask: Callable[[], Any]) -> Any:
    """Return what a server answers; a server that refuses, breaks or is gone raises SandboxError."""
    try:
        return ask()
    except (OSError, RuntimeError, TimeoutError, WebSocketException) as error:  # the client's RuntimeError is the server's error
        raise SandboxError(f"the OpenEnv server {url}: {error or type(error).__name__}", fix="see the server's log") from error


def _schemas(url: str, timeout_s: float) -> dict[str, Any]:
    fix = "start the server, and give the address that its /schema answers under"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"env.options.url = {url!r} is no address of a web server", fix=fix)
    try:
        with urlopen(f"{url}/schema", timeout=timeout_s) as answer:
            schemas: dict[str, Any] = json.load(answer)
        if not all(isinstance(schemas[name].get("properties"), dict) for name in ("action", "observation")):
            raise KeyError("properties")
    except (URLError, OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"env.options.url: no OpenEnv server answers at {url}: {error}", fix=fix) from error
    return schemas


def _fields(schemas: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields that the environment itself declares."""
    return {key: value for key, value in schemas[name]["properties"].items() if key != "metadata"}


def _act_tool(action: Mapping[str, Any], fields: Mapping[str, Any]) -> ToolSchema:
    parameters = {key: value for key, value in action.items() if key not in ("title", "description")}
    description = action.get("description", "") or "Take one step in the environment."
    return _tool(_ACT, description, {**parameters, "properties": dict(fields)})


def _tool(name: str, description: str, parameters: Mapping[str, Any]) -> ToolSchema:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(parameters)}}


def _said(result: Any) -> Any:
    """Return the text of an MCP tool's result, or the result itself where it has none."""
    parts = result.get("content") if isinstance(result, dict) else None
    texts = [part["text"] for part in parts or () if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts) if texts else result
