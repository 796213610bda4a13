"""OpenEnv: a server with one session per websocket, and its typed client.

`composer serve openenv --tasks DIR` starts the server. Needs the extra `openenv` (openenv 0.10; the older distribution
openenv-core installs a package of the same name over it).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any, ClassVar

from composer_replication.envs.coding import CodingEnv
from composer_replication.envs.suite import TaskSuite
from composer_replication.types import ToolCall, Unscored
from composer_replication.types.errors import MissingExtraError

try:
    from openenv.core import Action, EnvClient, Environment, Observation, State, create_app
    from openenv.core.client_types import StepResult
    from openenv.core.env_server.types import ConcurrencyConfig
    from pydantic import Field, field_validator
    from starlette.responses import PlainTextResponse
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "the OpenEnv face needs openenv, which is not installed", fix="pip install 'composer-replication[openenv]'"
    ) from error


class CodingAction(Action):
    """One tool call."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)

    @field_validator("tool", mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        """Replace half surrogate pairs, which a model may write and pydantic can neither accept nor serialize."""
        return value.encode(errors="replace").decode() if isinstance(value, str) else value


class CodingObservation(Observation):
    """The result of one call. `reward` is set when `done` is, and stays None when the sandbox failed; `unscored` then says why.

    Nothing in it is a secret of the task's before it is done; which task it is, `CodingState` says.
    """

    content: str = ""
    status: str = "ok"
    """`ok` or the kind of error, as in `ToolResult.status`."""
    messages: list[dict[str, Any]] = Field(default_factory=list)
    """The system and user messages for the policy, after a reset."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """After a reset: the declared tools, in the OpenAI form."""
    reasons: list[str] = Field(default_factory=list)
    """After the last step: why the reward is not 1."""
    unscored: str | None = None
    alarms: list[str] = Field(default_factory=list)
    """After the last step: why a person should read the work; alarms never change the reward."""


class CodingState(State):
    """The state of a session."""

    task_id: str | None = None
    """Not for the agent: it names what was deleted."""
    changed: list[str] = Field(default_factory=list)
    """Paths the agent has changed so far."""


class CodingSession(Environment[CodingAction, CodingObservation, CodingState]):
    """One websocket's environment. Nothing outlives the session: every command runs in a fresh sandbox.

    Args:
        turns: numbers shared by all sessions of a server, so that those that ask for no task get one after the other.
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(self, suite: TaskSuite, turns: Iterator[int]) -> None:
        super().__init__()
        self._suite = suite
        self._turns = turns
        self._env: CodingEnv | None = None
        self._episode: str | None = None
        self._steps = 0
        self._closed = False

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task_id: str | None = None, **_: Any
    ) -> CodingObservation:
        """Begin an episode on `task_id`, on task `seed` modulo their number, or on the server's next.

        Raises ConfigError for an unknown task, ValueError when the session is over.
        """
        if self._closed:
            raise ValueError("the session was closed after a long silence; connect again")
        if task_id is None:
            number = next(self._turns) if seed is None else seed
            task = self._suite.tasks[number % len(self._suite.tasks)]
        else:
            task = self._suite.task(task_id)
        self._env, self._episode, self._steps = self._suite.env(task), episode_id, 0
        return CodingObservation(
            messages=[{**message} for message in self._env.reset()],
            tools=list(self._env.tools),
        )

    def step(self, action: CodingAction, timeout_s: float | None = None, **_: Any) -> CodingObservation:
        """Carry out one tool call; `submit` is graded. Tests have the task's own time limit, whatever `timeout_s`.

        Raises ValueError before a reset and after `submit`, SandboxError when the sandbox broke.
        """
        del timeout_s
        if self._env is None:
            raise ValueError("reset the environment first")
        result = self._env.step(ToolCall(call_id="step", name=action.tool, arguments=action.arguments))
        self._steps += 1
        about = {"details": dict(result.details)}
        if not self._env.done:
            return CodingObservation(content=result.content, status=result.status, metadata=about)
        report = self._env.grade()
        unscored = report.reward.reason if isinstance(report.reward, Unscored) else None
        return CodingObservation(
            content=result.content,
            status=result.status,
            done=True,
            reward=None if isinstance(report.reward, Unscored) else report.reward,
            reasons=list(report.reasons),
            unscored=unscored,
            alarms=list(report.alarms),
            metadata=about,
        )

    @property
    def state(self) -> CodingState:
        """Task, steps and changed paths of the running episode."""
        task_id = None if self._env is None else self._env.task_id
        changed = [] if self._env is None else sorted(self._env.workspace.changes)
        return CodingState(episode_id=self._episode, step_count=self._steps, task_id=task_id, changed=changed)

    def close(self) -> None:
        """End the session, also for a client that was silent too long and comes back: its slot is taken."""
        self._env, self._closed = None, True


class _OriginGuard:
    """ASGI middleware: refuses what a web page sends, which a browser says where from, and a client of OpenEnv does not.

    Any page that a user of this machine looks at could otherwise drive a server on the loopback interface.
    """

    def __init__(self, app: Any, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        origins = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"origin"]
        foreign = [origin for origin in origins if origin not in self._allowed]
        refusal = PlainTextResponse(f"refused for web pages; --allow-origin {foreign[0]} allows it", 403) if foreign else None
        await (refusal or self._app)(scope, receive, send)


def coding_app(
    suite: TaskSuite, *, max_sessions: int, session_timeout_s: float | None = None, allowed_origins: Collection[str] = ()
) -> Any:
    """Build the ASGI application: `/ws` for sessions, `/health`, `/schema`.

    Args:
        max_sessions: a client beyond that many is refused with `CAPACITY_REACHED`.
        session_timeout_s: a session that says nothing for so long is closed and its place given away.
        allowed_origins: of web pages that may use it, as their browser writes them (`https://example.org`).
    """
    turns = itertools.count()
    application = create_app(
        lambda: CodingSession(suite, turns),
        CodingAction,
        CodingObservation,
        env_name="composer-coding",
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=session_timeout_s),
        state_cls=CodingState,
    )
    application.add_middleware(_OriginGuard, allowed=allowed_origins)
    return application


class CodingClient(EnvClient[CodingAction, CodingObservation, CodingState]):
    """`async with CodingClient(base_url=URL) as env: await env.reset(task_id=...)`; `.sync()` gives the same without await."""

    def _step_payload(self, action: CodingAction) -> dict[str, Any]:
        payload: dict[str, Any] = action.model_dump()
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[CodingObservation]:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = CodingObservation(**{**payload["observation"], "reward": reward, "done": done})
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> CodingState:
        return CodingState(**payload)
