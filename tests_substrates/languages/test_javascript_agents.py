"""A scripted agent works on tasks in JavaScript with the tools that agents have in every language."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from javascript_builds import STUB, Built
from scripted import solve_with_shell

from composer_replication.languages.javascript.settings import MODULES

TESTS = {"vitest": "npx vitest run", "jest": "npx jest", "mocha": "npx mocha", "node": "node --test"}
FUNCTIONS = {"vitest": "Ledger.total", "jest": "top", "mocha": "api.merge", "node": "evaluate"}


@pytest.mark.parametrize("project", sorted(TESTS))
def test_an_agent_with_a_shell_solves_a_task(project: str, built: Callable[[str], Built]) -> None:
    task = built(project).tasks[FUNCTIONS[project]]
    path = task.spec.deleted[0].path
    gold = task.gold_files()[path].decode()
    assert STUB not in gold
    solve_with_shell(task, tests=TESTS[project], path=path, body=gold)


def test_packages_for_formatting_are_not_installed(built: Callable[[str], Built]) -> None:
    (modules,) = (built("vitest").python.parent.parent / MODULES).glob("*/node_modules")
    assert (modules / "vitest").is_dir()
    assert not (modules / "eslint").exists()
