"""Prompts and a plain Python function as reward: the smallest environment there is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from composer_replication.envs.source import EnvTask
from composer_replication.integrations.seeds import opening_messages, unknown_tool
from composer_replication.integrations.sources import load_object
from composer_replication.types import GradeReport, Message, ToolCall, ToolResult, ToolSchema
from composer_replication.types.errors import ConfigError

ScoreFunction: TypeAlias = Callable[..., float]
"""Called as `score(answer, **row)` with what the policy said and the prompt's row without `prompt`; returns the reward."""


class FunctionSource:
    """An `EnvSource` of single-turn prompts that a function scores.

    Args:
        prompts: rows with `prompt` (a text or chat messages), perhaps `id` and `system`, and whatever the function wants; or a
            file with one such JSON object a line.
        reward: the function, or its import path `package.module:name`.
        held_out_share: share of the prompts, the last ones, kept for pass@1.

    Raises:
        ConfigError: there are no prompts, one has no text, two have one id, or the function cannot be imported.
    """

    def __init__(
        self,
        prompts: Sequence[Mapping[str, Any]] | str | Path,
        reward: ScoreFunction | str,
        *,
        held_out_share: float = 0.0,
    ) -> None:
        rows = _read(Path(prompts)) if isinstance(prompts, str | Path) else list(prompts)
        self._score = load_object(reward, "env.options.reward") if isinstance(reward, str) else reward
        self._rows = {str(row.get("id", number)): row for number, row in enumerate(rows)}
        if not 0.0 <= held_out_share < 1.0:
            raise ConfigError(f"env.options.held_out_share = {held_out_share} is not in [0, 1)", fix="correct it")
        if not rows or len(self._rows) < len(rows):
            raise ConfigError(
                "env.options.prompts has two rows with one id" if rows else "env.options.prompts has no rows",
                fix="give every prompt a row with an `id` of its own",
            )
        tasks = [EnvTask(name, instruction=_messages(name, row)[-1]["content"]) for name, row in self._rows.items()]
        kept = len(tasks) - int(held_out_share * len(tasks))
        self.train, self.held_out = tuple(tasks[:kept]), tuple(tasks[kept:])

    def make(self, task_id: str) -> _PromptEnv:
        """Create a fresh episode: one prompt, one answer."""
        return _PromptEnv(task_id, self._rows[task_id], self._score)


@dataclass(slots=True)
class _PromptEnv:
    """One prompt. What the policy says first is its answer."""

    task_id: str
    row: Mapping[str, Any]
    score: ScoreFunction
    answer: str = ""
    done: bool = False
    tools: tuple[ToolSchema, ...] = ()

    def reset(self) -> tuple[Message, ...]:
        self.answer, self.done = "", False
        return _messages(self.task_id, self.row)

    def step(self, call: ToolCall) -> ToolResult:
        return unknown_tool(call)

    def say(self, text: str) -> Message | None:
        self.answer, self.done = text, True
        return None

    def grade(self) -> GradeReport:
        extra = {key: value for key, value in self.row.items() if key not in ("prompt", "system", "id")}
        return GradeReport(reward=float(self.score(self.answer, **extra)), outcomes={})


def _messages(name: str, row: Mapping[str, Any]) -> tuple[Message, ...]:
    prompt = row.get("prompt")
    system = str(row.get("system") or "")
    if isinstance(prompt, str) and prompt:
        return opening_messages(system, prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in prompt):
        opening = (Message(role="system", content=system),) if system else ()
        return (*opening, *(Message(role=m["role"], content=m["content"]) for m in prompt))
    raise ConfigError(f"prompt {name} of env.options.prompts is neither a text nor chat messages", fix="correct its `prompt`")


def _read(path: Path) -> list[Mapping[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(
            f"env.options.prompts: {path} cannot be read: {error.strerror}", fix="name a JSON Lines file"
        ) from error
    except ValueError as error:
        raise ConfigError(f"env.options.prompts: {path}: {error}", fix="write one JSON object a line") from error
