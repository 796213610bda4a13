"""A scripted agent works on tasks in Java with the tools that agents have in every language; held-out calls as they are kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from java_builds import STUB, JavaBuild

from composer_replication.envs.suite import TaskSuite
from composer_replication.languages.calls.book import read_program
from composer_replication.languages.java.held_out import is_call
from composer_replication.types import ToolCall
from composer_replication.types.errors import TaskError

FUNCTIONS = {"maven": "Ledger.byName", "plain": "Words.count"}


@pytest.mark.parametrize("project", sorted(FUNCTIONS))
def test_an_agent_with_a_shell_solves_a_task(project: str, java_built: Callable[[str], JavaBuild]) -> None:
    task = java_built(project).tasks[FUNCTIONS[project]]
    suite = TaskSuite(task.root.parent, toolset="shell", forgeable=True)
    env = suite.env(suite.task(task.spec.task_id))
    env.reset()

    def call(name: str, **arguments: str) -> tuple[str, str]:
        result = env.step(ToolCall(call_id="1", name=name, arguments=arguments))
        return result.status, result.content

    status, content = call("bash", command="java -version && javac -version && run-tests")
    assert status == "command_failed"
    assert "not implemented" in content
    assert call("run_tests")[0] == "tests_failed"
    path = task.spec.deleted[0].path
    gold = task.gold_files()[path].decode()
    assert STUB not in gold
    test = task.spec.fail_to_pass[0]
    status, content = call("bash", command=f"cat > {path} <<'EOF'\n{gold}\nEOF\nrun-tests '{test}' && run-tests")
    assert status == "ok", content
    assert "0 failed" in content
    assert call("run_tests")[0] == "ok"
    report = env.grade()
    assert report.reward == 1.0, report.reasons


def test_held_out_calls_are_not_those_of_the_tests(java_built: Callable[[str], JavaBuild]) -> None:
    programs = java_built("plain").tasks["Words.count"].spec.hidden.programs
    asked = {json.loads(program.steps)[0][1]["given"][0]["v"] for program in programs}
    assert len(asked) >= 4
    assert not {"b a b", "One two TWO", "go Go gO", "tea, for two!", "12 34"} & asked


def test_a_damaged_held_out_call_is_an_error(java_built: Callable[[str], JavaBuild]) -> None:
    program = java_built("plain").tasks["Words.count"].spec.hidden.programs[0]
    step = json.loads(program.steps)[0][1]
    changes: list[Any] = [
        *({"owner": "a; b"}, {"owner": 3}, {"name": "x()"}, {"types": "String"}, {"types": ["a b"]}, {"kind": "field"}),
        *({"given": []}, {"given": 3}, {"given": [{"k": "int", "t": "Integer", "v": "1)"}]}, {"types": []}),
        *({"given": [{"k": "opaque"}]}, {"given": [{"k": "struct", "t": "a b", "e": []}]}),
    ]
    odd = [replace(program, steps=json.dumps([[0, {**step, **change}]])) for change in changes]
    for one in odd:
        with pytest.raises(TaskError, match="held-out call"):
            read_program(one, is_call)
