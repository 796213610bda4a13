"""The actor that samples: it holds an engine and weights of the requested version; environments and grader are other actors."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from composer_replication.config import RunConfig
from composer_replication.loss.forward.adapters import load_policy_weights
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import RunDir
from composer_replication.recipes.mesh.errors import ActorStalledError, in_time
from composer_replication.recipes.mesh.member import Member
from composer_replication.recipes.mesh.protocol import Handle, Port, WeightHandle
from composer_replication.rollouts.collect import StalledError, collect_groups
from composer_replication.rollouts.protocol import Budgets
from composer_replication.rollouts.serving import ServingEngine
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.engines.open_engine import PolicyEngine, ServedPolicy, open_engine
from composer_replication.types import GradeReport, Group, Message, ToolCall, ToolResult, ToolSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Groups that one generator samples together."""

    name: str
    """A name that is unique among the orders of an arm's attempts."""
    task_ids: tuple[str, ...]
    """Tasks to sample one group of, none twice."""
    siblings: int
    step: int
    """Step whose draws these are: together with task, sibling and turn it fixes every random number. -1 is an evaluation, -2 the
    frozen traces."""


class Generator(Member):
    """The actor that samples one order at a time."""

    role = "generator"

    def __init__(self, port: Port, config: RunConfig, arm: str, run: Path, number: int) -> None:
        if config.threads:
            torch.set_num_threads(config.threads)
        self.port = port
        self.config = config
        self.arm = arm
        model, tokenizer = load_policy(config.model)
        self.model = model
        self.renderer = ChatRenderer(tokenizer)
        self.version: int | None = None
        """Version of the loaded weights; None for those that the run starts from, before any were fetched."""
        self._folder, self._number = RunDir(run).ckpt_path / arm / f"serving-{number}", number
        self.engine = self._open_engine()

    async def roll_out(self, order: Order, ticket: WeightHandle, hosts: Sequence[Handle], rewarder: Handle) -> list[Group]:
        """Return the order's groups, in its order, sampled with the ticket's weights.

        Raises:
            ActorDiedError: a host or the rewarder died; nothing of the order counts.
            ActorStalledError: one of them, or with no name this generator, made no progress for `rollout.stall_s`; likewise.
            WeightsLostError: the ticket's weights are gone.
            ComposerError: as `collect_groups`.
        """
        rollout, loop, numbers = self.config.rollout, asyncio.get_running_loop(), count()
        await in_time(self._load(ticket), rollout.stall_s, f"a generator did not load version {ticket.version}", actor="")
        asked: dict[object, str] = {}

        def make_env(task_id: str) -> _RemoteEnv:
            n = next(numbers)
            host = hosts[zlib.crc32(task_id.encode()) % len(hosts)]  # siblings share the host's cache of test runs
            return _RemoteEnv(task_id, f"{order.name}:{n}", host, rewarder, loop, asked)

        def collect() -> list[Group]:
            return asyncio.run(
                collect_groups(
                    order.task_ids,
                    make_env=make_env,
                    engine=self.engine,
                    renderer=self.renderer,
                    budgets=Budgets.of(rollout),
                    group_size=order.siblings,
                    seed=self.config.seed,
                    step=order.step,
                    temperature=rollout.temperature,
                    policy_version=ticket.version,
                    cohorts=rollout.cohorts,
                    max_rollouts=rollout.open_at_most,
                    env_workers=rollout.env_workers,
                    max_requests=rollout.max_requests,
                    deadline_s=rollout.stall_s,
                    timeout_s=rollout.timeout_s,
                    arm=self.arm,
                )
            )

        # on a second event loop: when it fails it waits for its threads, and they for answers that come over this one
        try:
            return await asyncio.to_thread(collect)
        except StalledError as stalled:
            if isinstance(self.engine, ServingEngine):
                self.engine.end()  # else it might load its weights behind the new one
            self.engine = self._open_engine()  # the other may be busy, and has sessions open
            whom = next(iter(dict(asked).values()), "")
            raise ActorStalledError(f"{whom or 'a generator'} did not get on: {stalled.message}", actor=whom) from None

    def _open_engine(self) -> PolicyEngine:
        policy = ServedPolicy(self.model, self.renderer.tokenizer, lambda: self.version or 0)
        return open_engine(self.config, policy, self.arm, self._folder, generator=self._number)

    async def _load(self, ticket: WeightHandle) -> None:
        if ticket.version == self.version:
            return
        weights = await self.port.fetch(ticket)
        self.version = None
        await asyncio.to_thread(load_policy_weights, self.model, weights)
        self.version = ticket.version
        self.engine.reset()


@dataclass(slots=True)
class _RemoteEnv:
    """An `Env` whose episode runs in another actor. Its methods are called in threads other than that of `loop`."""

    task_id: str
    episode: str
    host: Handle
    rewarder: Handle
    loop: asyncio.AbstractEventLoop
    asked: dict[object, str]
    """Names of the actors whose answers are awaited, by call, oldest first."""
    tools: tuple[ToolSchema, ...] = ()
    done: bool = False

    def reset(self) -> tuple[Message, ...]:
        messages, self.tools = self._ask(self.host, "reset", self.episode, self.task_id)
        self.done = False
        return tuple(messages)

    def step(self, call: ToolCall) -> ToolResult:
        result, self.done = self._ask(self.host, "step", self.episode, call)
        assert isinstance(result, ToolResult)
        return result

    def grade(self) -> GradeReport:
        submission = self._ask(self.host, "end", self.episode)
        report = self._ask(self.rewarder, "grade", self.task_id, submission)
        assert isinstance(report, GradeReport)
        return report

    def _ask(self, whom: Handle, method: str, *args: Any) -> Any:
        work: Coroutine[Any, Any, Any] = whom.call(method, *args)
        call = object()
        self.asked[call] = whom.name
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop).result()
        finally:
            del self.asked[call]
