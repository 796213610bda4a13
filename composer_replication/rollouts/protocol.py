"""The two things a rollout needs: an environment to act in and an engine to sample from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, Self, runtime_checkable

from composer_replication.config import RolloutConfig
from composer_replication.types import GradeReport, Message, ToolCall, ToolResult, ToolSchema
from composer_replication.types.routed_experts import RawExperts


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The three token budgets of a rollout, and its turns."""

    turn_tokens: int = 1024
    """Sampled tokens in one turn."""
    trajectory_tokens: int = 8192
    """Sampled tokens of all turns together."""
    context_tokens: int = 16384
    """Prompt, sampled tokens and observations together; never above the model's own window."""
    max_turns: int = 32

    @classmethod
    def of(cls, rollout: RolloutConfig) -> Self:
        """Return the budgets that a run file names."""
        return cls(**{name.name: getattr(rollout, name.name) for name in fields(cls)})


class Env(Protocol):
    """One episode of one task. Not thread-safe; each rollout has its own."""

    @property
    def task_id(self) -> str: ...

    @property
    def tools(self) -> tuple[ToolSchema, ...]: ...

    @property
    def done(self) -> bool:
        """True once the agent has submitted."""
        ...

    def reset(self) -> tuple[Message, ...]:
        """Start over and return the opening messages."""
        ...

    def step(self, call: ToolCall) -> ToolResult:
        """Carry out one tool call. An agent's mistake is a `ToolResult` with a status; a broken sandbox raises SandboxError."""
        ...

    def grade(self) -> GradeReport:
        """Grade the workspace as it stands, in a fresh tree. Never raises for infrastructure faults: they are `Unscored`."""
        ...


@runtime_checkable
class TextEnv(Protocol):
    """An `Env` that also answers turns without a tool call, such as a game played in words."""

    def say(self, text: str) -> Message | None:
        """Take what the agent said and return the reply, or None when the episode is over."""
        ...


@runtime_checkable
class TurnEnv(Protocol):
    """An `Env` whose tool calls another program carries out: it takes whole turns, and `step` is not called."""

    def take(self, text: str, calls: tuple[ToolCall, ...], *, finished: bool) -> tuple[Message, ...]:
        """Take a turn and return the messages that answer it; none when the episode is over.

        Args:
            text: what the agent said beside its calls.
            calls: the calls that could be parsed.
            finished: False for a turn that a token budget cut off; it is not answered.

        Raises:
            SandboxError: the program broke.
        """
        ...


class NoSampleError(Exception):
    """An engine has no turn for one session, and may have some for others. Its rollout ends without a reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """Continue one session by one turn."""

    session: str
    """Sessions keep their KV cache between requests; an unknown name opens one."""
    new_ids: tuple[int, ...]
    """Tokens appended to the session since its last sampled token: the prompt at first, the observation later."""
    max_new_tokens: int
    seed: int
    """Seeds this turn's draws, so a sample does not depend on what else is in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sampled turn."""

    ids: tuple[int, ...]
    """Sampled ids, the end-of-turn token included when it was drawn."""
    logprobs: tuple[float, ...]
    finished: bool
    """True when the end-of-turn token was drawn, False when `max_new_tokens` ran out."""
    experts: RawExperts | None = None
    """The experts of every token of the session that was read, in an engine that records them."""


class Engine(Protocol):
    """Samples turns. Calls are serialised by the caller; a batch is one call."""

    @property
    def context_window(self) -> int:
        """Most positions the model can attend to."""
        ...

    def sample(self, requests: Sequence[SampleRequest], *, temperature: float) -> list[Sample]:
        """Sample one turn for every request, in order. `temperature` 0 is greedy; log-probs are then the untempered policy's."""
        ...

    def close(self, sessions: Sequence[str]) -> None:
        """Forget sessions and free their caches; unknown names are ignored."""
        ...


@runtime_checkable
class AsyncEngine(Protocol):
    """Samples turns of many rollouts at once, each requested separately. Calls come from one event loop at a time."""

    @property
    def context_window(self) -> int:
        """Most positions the model can attend to."""
        ...

    async def prepare(self) -> None:
        """Do what is due before a turn, such as loading the policy's weights; at once when nothing is. Safe to call together."""
        ...

    async def sample_one(self, request: SampleRequest, *, temperature: float) -> Sample:
        """Sample one turn; `temperature` is as in `Engine.sample`. Cancelling the call gives the turn up."""
        ...

    def close(self, sessions: Sequence[str]) -> None:
        """Forget sessions, without blocking; unknown names are ignored."""
        ...


@runtime_checkable
class ClosableEnv(Protocol):
    """An `Env` that holds programs or connections."""

    def close(self) -> None:
        """End the episode and free what it holds, at once and from any thread; a call in progress returns or raises
        SandboxError."""
        ...
