"""Scenes of states in our own tasks: the workspace where an agent stood, and a sandbox that carries two actions out there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from composer_replication.actions.agreement import Scene
from composer_replication.envs.coding import CodingEnv
from composer_replication.envs.effects import WorkspaceFiles, same_state
from composer_replication.sandbox import Sandbox
from composer_replication.tasks.store import Task
from composer_replication.teachers.mining.pair_mining import scene_of
from composer_replication.traces import TraceState
from composer_replication.types import ToolCall


def sandbox_scene(state: TraceState, env: Callable[[], CodingEnv], *, runs: bool = True) -> Scene:
    """Return the scene of a state in one of our tasks.

    Args:
        env: opens the environment as it stood there; called at first use.
        runs: carry actions out that change files.
    """
    run_both = (lambda one, other: same_state(env(), one, other)) if runs else None
    return Scene(files=WorkspaceFiles(lambda: env().workspace), complete=True, tools=state.get("tools", ()), run_both=run_both)


def scenes_of_tasks(tasks: Iterable[Task], sandbox: Sandbox, pythons: Mapping[str, Path]) -> Callable[[TraceState], Scene]:
    """Return a function from a state to its scene: with a sandbox where the state is of one of these tasks, and else what its
    messages tell. The calls in its messages are made again to get there.

    Args:
        pythons: by task id, the interpreter that runs the tests; a task without one is as none.
    """
    known = {task.spec.task_id: task for task in tasks if task.spec.task_id in pythons}

    def scene(state: TraceState) -> Scene:
        task = known.get(state.get("task_id", ""))
        if task is None:
            return scene_of(state)

        @cache
        def env() -> CodingEnv:
            named = {tool["function"]["name"] for tool in state.get("tools", ())}
            python = pythons[task.spec.task_id]
            found = CodingEnv(task, sandbox=sandbox, python=python, toolset="shell" if "bash" in named else "basic")
            found.reset()
            for call in _calls_in(state["messages"]):
                if not found.done:
                    found.step(call)
            return found

        return sandbox_scene(state, env)

    return scene


def _calls_in(messages: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    """Yield the calls of a conversation that could be carried out: those whose arguments are an object."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            given = call["function"]["arguments"]
            if isinstance(given, str):
                try:
                    given = json.loads(given)
                except ValueError:  # it changed nothing then, and changes nothing now
                    continue
            if isinstance(given, Mapping):
                yield ToolCall(call_id=str(call.get("id", "")), name=call["function"]["name"], arguments=given)
