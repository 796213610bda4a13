"""A scripted agent works on tasks in JavaScript with the tools that agents have in every language."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from javascript_builds import STUB, Built

from composer_replication.envs.suite import TaskSuite
from composer_replication.languages.javascript.settings import MODULES
from composer_replication.types import ToolCall

TESTS = {"vitest": "npx vitest run", "jest": "npx jest", "mocha": "npx mocha", "node": "node --test"}
FUNCTIONS = {"vitest": "Ledger.total", "jest": "top", "mocha": "api.merge", "node": "evaluate"}


@pytest.mark.parametrize("project", sorted(TESTS))
def test_an_agent_with_a_shell_solves_a_task(project: str, built: Callable[[str], Built]) -> None:
    task = built(project).tasks[FUNCTIONS[project]]
    suite = TaskSuite(task.root.parent, toolset="shell", forgeable=True)
    env = suite.env(suite.task(task.spec.task_id))
    env.reset()

    def call(name: str, **arguments: str) -> tuple[str, str]:
        result = env.step(ToolCall(call_id="1", name=name, arguments=arguments))
        return result.status, result.content

    status, content = call("bash", command=TESTS[project])
    assert status == "command_failed"
    assert "not implemented" in content
    assert call("run_tests")[0] == "tests_failed"
    path = task.spec.deleted[0].path
    gold = task.gold_files()[path].decode()
    assert STUB not in gold
    status, content = call("bash", command=f"cat > {path} <<'EOF'\n{gold}\nEOF\n{TESTS[project]}")
    assert status == "ok", content
    assert call("run_tests")[0] == "ok"
    report = env.grade()
    assert report.reward == 1.0, report.reasons


def test_packages_for_formatting_are_not_installed(built: Callable[[str], Built]) -> None:
    (modules,) = (built("vitest").python.parent.parent / MODULES).glob("*/node_modules")
    assert (modules / "vitest").is_dir()
    assert not (modules / "eslint").exists()
