"""Steps of tests in every language: an agent that follows a script, and held-out calls that somebody has damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from composer_replication.envs.suite import TaskSuite
from composer_replication.languages.calls.book import read_program
from composer_replication.languages.calls.call import FunctionCall
from composer_replication.tasks import Task
from composer_replication.types import ToolCall
from composer_replication.types.errors import TaskError
from composer_replication.types.held_out_checks import HeldOutProgram


def solve_with_shell(task: Task, *, tests: str, path: str, body: str, then: str = "") -> None:
    """Work on a task with the tools of an agent with a shell: its tests fail at first, and pass with `body` in the file `path`.

    Args:
        tests: the command that runs tests of the task.
        then: the command that does so after the work; the same one by default.
    """
    suite = TaskSuite(task.root.parent, toolset="shell", forgeable=True)
    env = suite.env(suite.task(task.spec.task_id))
    env.reset()

    def call(name: str, **arguments: str) -> tuple[str, str]:
        result = env.step(ToolCall(call_id="1", name=name, arguments=arguments))
        return result.status, result.content

    status, content = call("bash", command=tests)
    assert status == "command_failed", content
    assert "not implemented" in content
    assert "not graded" not in content
    assert call("run_tests")[0] == "tests_failed"
    status, content = call("bash", command=f"cat > {path} <<'EOF'\n{body}\nEOF\n{then or tests}")
    assert status == "ok", content
    assert call("run_tests")[0] == "ok"
    report = env.grade()
    assert report.reward == 1.0, report.reasons


def refuse_damaged(
    program: HeldOutProgram, is_call: Callable[[FunctionCall], bool], changes: Sequence[Mapping[str, Any]]
) -> None:
    """Check that a held-out call is read, and is an error with each of these changes of its step and with other answers."""
    step = json.loads(program.steps)[0][1]
    assert read_program(program, is_call)[0].key == step["key"]
    odd = [replace(program, steps=json.dumps([[0, {**step, **change}]])) for change in changes]
    odd += [replace(program, expected=text) for text in ("[]", "x", "[3]", '[{"r": 3, "a": []}]', '[{"r": [3], "a": []}]')]
    for one in odd:
        with pytest.raises(TaskError, match="held-out call"):
            read_program(one, is_call)
