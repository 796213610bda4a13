"""TRL's `environment_factory`: pooled instances, one per rollout, whose public methods are the coding tools.

TRL finds tools by looking at a class's methods, their signatures and their docstrings. Here those are made from the declared
schemas, so a tool's name, arguments and descriptions stand in one place. Nothing of TRL is imported: the contract is the
methods (https://huggingface.co/docs/trl/main/en/grpo_trainer, `environment_factory`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from composer_replication.envs.coding import CodingEnv
from composer_replication.envs.suite import TaskSuite, shared_suite
from composer_replication.envs.tools import TOOLSETS, Toolset
from composer_replication.sandbox import SandboxKind
from composer_replication.types import GradeReport, ToolCall, ToolResult, ToolSchema, Unscored
from composer_replication.types.errors import SandboxError

_Method: TypeAlias = Callable[..., Awaitable[str]]

_HINTS = {"string": str, "integer": int}
_NOT_SAID_BY_HINTS = ("minimum", "minLength")


def _tool(schema: ToolSchema) -> _Method:
    """Make a method with the name, signature and docstring of a declared tool."""
    function = schema["function"]
    name, parameters = function["name"], function["parameters"]

    async def call(self: CodingEnvironment, **arguments: Any) -> str:
        return await self._call(name, arguments)

    required = parameters.get("required", ())
    hints = {argument: _HINTS[about["type"]] for argument, about in parameters["properties"].items()}
    call.__name__ = call.__qualname__ = name
    call.__doc__ = _docstring(function["description"], parameters["properties"])
    call.__annotations__ = {**hints, "return": str}
    signature = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for argument, hint in hints.items():
        default = inspect.Parameter.empty if argument in required else None
        signature.append(inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint))
    call.__signature__ = inspect.Signature(signature, return_annotation=str)  # type: ignore[attr-defined]
    return call


def _docstring(description: str, properties: Mapping[str, Mapping[str, Any]]) -> str:
    """Write a Google-style docstring, which transformers parses; every argument gets a meaningful line."""
    lines = [description]
    if properties:
        lines += ["", "Args:"]
    for argument, about in properties.items():
        limits = ", ".join(f"{key} {about[key]}" for key in _NOT_SAID_BY_HINTS if key in about)
        lines.append(f"    {argument}: {'; '.join(part for part in (about.get('description'), limits) if part) or argument}")
    return "\n".join(lines)


class CodingEnvironment:
    """One rollout at a time over one task; TRL pools instances and resets each before a rollout.

    Beside `reset` and `get_reward` its public methods are the coding tools, asynchronous, so that a trainer that runs rollouts
    in one event loop is not held up by a test run. Calls of one rollout take effect in the order they were made.
    """

    def __init__(self, suite: TaskSuite) -> None:
        self._suite = suite
        self._env: CodingEnv | None = None
        self._order = asyncio.Lock()
        self._fault: str | None = None
        self.report: GradeReport | None = None
        """The grader's, of the workspace as it is; None before `get_reward`, and when the sandbox failed."""
        self.history: list[tuple[ToolCall, ToolResult]] = []
        """The calls carried out in the current rollout, in order, each with its result."""

    @property
    def task_id(self) -> str:
        """Task of the current rollout; empty before the first."""
        return "" if self._env is None else self._env.task_id

    def reset(self, task_id: str, **_row: Any) -> None:
        """Begin a rollout on the task a dataset row names. Raises ConfigError for an unknown one."""
        self._env = self._suite.env(self._suite.task(task_id))
        self._order = asyncio.Lock()
        self._fault = self.report = None
        self.history = []

    async def get_reward(self) -> float | None:
        """Return the grader's verdict; None, which TRL leaves out of the group, when the sandbox failed."""
        report = await self._graded()
        return None if report is None or isinstance(report.reward, Unscored) else report.reward

    async def _graded(self) -> GradeReport | None:
        """Return the report on the current workspace, made once; None when the sandbox failed before."""
        if self._env is None or self._fault is not None:
            return None
        async with self._order:
            if self.report is None:
                self.report = await asyncio.to_thread(self._env.grade)
        return self.report

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        env = self._env
        if env is None:
            raise RuntimeError("reset the environment first")
        given = {argument: value for argument, value in arguments.items() if value is not None}
        async with self._order:
            if env.done:
                return "the work was submitted"
            self.report = None
            made = ToolCall(call_id=name, name=name, arguments=given)
            try:
                result = await asyncio.to_thread(env.step, made)
            except SandboxError as error:
                self._fault = error.message  # TRL shows a tool's error to the policy and continues
                raise
            self.history.append((made, result))
        return result.content


class ShellEnvironment(CodingEnvironment):
    """Offers commands and patches too."""


_CLASSES: Mapping[Toolset, type[CodingEnvironment]] = {"basic": CodingEnvironment, "shell": ShellEnvironment}

for _toolset, _class in _CLASSES.items():
    for _schema in TOOLSETS[_toolset]:
        setattr(_class, _schema["function"]["name"], _tool(_schema))


async def cheat_alarms(
    *, environments: Sequence[CodingEnvironment], log_metric: Callable[[str, float], None], **_: Any
) -> list[None]:
    """Log, as `cheat/alarms`, the share of rollouts with an alarm. For `reward_funcs`; it rewards nothing."""
    reports = [await environment._graded() for environment in environments]
    log_metric("cheat/alarms", sum(report is not None and bool(report.alarms) for report in reports) / len(reports))
    return [None] * len(environments)


@dataclass(frozen=True, slots=True)
class CodingEnvironmentFactory:
    """`GRPOTrainer(environment_factory=CodingEnvironmentFactory(folder))`: picklable, and every instance shares one suite."""

    folder: Path
    """Tasks, as `composer tasks build` writes them."""
    sandbox: SandboxKind = "auto"
    python: Path | None = None
    """Runs the tests; the interpreter the tasks were built with when None."""
    toolset: Toolset = "basic"
    """Tools offered to agents (`tools.TOOLSETS`). TRL names the reward after the class: `ShellEnvironment` with `shell`."""
    forgeable: bool = False
    """Take also tasks whose reward can be forged."""

    def __call__(self) -> CodingEnvironment:
        """Return a pooled instance. Raises as `TaskSuite` does."""
        suite = self.suite  # first: it knows what toolsets there are
        return _CLASSES[self.toolset](suite)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of a dataset, one per task: `prompt` (system and user message) and `task_id`, which `reset` reads."""
        suite = self.suite
        return [{"prompt": list(suite.env(task).reset()), "task_id": task.spec.task_id} for task in suite.tasks]

    @property
    def suite(self) -> TaskSuite:
        """The tasks, opened once per process. Raises as `TaskSuite` does."""
        return shared_suite(Path(self.folder), self.sandbox, self.python, self.toolset, forgeable=self.forgeable)
