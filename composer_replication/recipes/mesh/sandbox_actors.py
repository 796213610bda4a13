"""The actors that run untrusted code: environments and the grader. They need no torch, and are replaced in about a second.

Generators share them: an environment actor runs the tools and tests of several generators' episodes, with one cache of test runs,
and the rewarder gives all verdicts, with one cache of verdicts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from composer_replication.envs.coding import CodingEnv, TestCache
from composer_replication.envs.tools import Toolset
from composer_replication.recipes.mesh.member import Member
from composer_replication.recipes.mesh.protocol import Port
from composer_replication.sandbox import Limits, open_sandbox
from composer_replication.sandbox.grading.grade import GradeCache, grade
from composer_replication.tasks.store import Task
from composer_replication.types import GradeReport, Message, ToolCall, ToolResult, ToolSchema

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPool:
    """The tasks that run in sandboxes, and the settings of the sandboxes."""

    tasks: Mapping[str, Task]
    """By task id, as `pythons` and `limits` are."""
    pythons: Mapping[str, Path]
    limits: Mapping[str, Limits]
    sandbox: str
    """The kind."""
    toolset: Toolset
    workers: int
    """Tools, tests or grades at a time, in one actor."""


class _SandboxMember(Member):
    """An actor with a sandbox."""

    def __init__(self, pool: SandboxPool) -> None:
        self.pool = pool
        self.sandbox = open_sandbox(pool.sandbox)
        self._threads = ThreadPoolExecutor(pool.workers, "box")

    async def cpu_s(self) -> float:
        """Return the CPU-seconds of this process and of the programs in its sandbox."""
        return await Member.cpu_s(self) + self.sandbox.cpu_s

    async def _in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class EnvHost(_SandboxMember):
    """Episodes of coding tasks. Each episode takes one call at a time; episodes may overlap."""

    role = "env"

    def __init__(self, port: Port, pool: SandboxPool) -> None:  # noqa: ARG002  every actor is given one
        super().__init__(pool)
        self._runs = TestCache()
        self._episodes: dict[str, CodingEnv] = {}

    async def reset(self, episode: str, task_id: str) -> tuple[tuple[Message, ...], tuple[ToolSchema, ...]]:
        """Begin an episode; return its opening messages and tools."""
        env = CodingEnv(
            self.pool.tasks[task_id],
            sandbox=self.sandbox,
            python=self.pool.pythons[task_id],
            limits=self.pool.limits[task_id],
            test_cache=self._runs,
            toolset=self.pool.toolset,
        )
        self._episodes[episode] = env
        return await self._in_thread(env.reset), env.tools

    async def step(self, episode: str, call: ToolCall) -> tuple[ToolResult, bool]:
        """Return the result of a tool call, and whether the agent has submitted. Raises SandboxError when the sandbox broke."""
        env = self._episodes[episode]
        return await self._in_thread(partial(env.step, call)), env.done

    async def end(self, episode: str) -> dict[str, bytes | None]:
        """End an episode; return what there is to grade, as `sandbox.grading.grade` takes it."""
        return self._episodes.pop(episode).submission

    async def forget(self, order: str) -> None:
        """End every episode of an order that was given up."""
        for episode in [name for name in self._episodes if name.startswith(f"{order}:")]:
            del self._episodes[episode]


class Rewarder(_SandboxMember):
    """The grader. An infrastructure fault is `Unscored`, never a zero."""

    role = "rewarder"

    def __init__(self, port: Port, pool: SandboxPool, verdicts: Path) -> None:  # noqa: ARG002  every actor is given one
        super().__init__(pool)
        self._verdicts = GradeCache(verdicts)

    async def grade(self, task_id: str, submission: Mapping[str, bytes | None]) -> GradeReport:
        """Grade what an episode left behind, in a fresh tree. Raises TaskError or StorageError, as `sandbox.grading.grade`."""
        task = self.pool.tasks[task_id]
        arguments: dict[str, Any] = {"sandbox": self.sandbox, "python": self.pool.pythons[task_id]}
        arguments |= {"limits": self.pool.limits[task_id], "cache": self._verdicts}
        return await self._in_thread(partial(grade, task.spec, task.repo, submission, **arguments))
