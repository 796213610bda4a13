"""A scripted agent works on tasks in Java with the tools that agents have in every language; held-out calls as they are kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from java_builds import STUB, JavaBuild
from scripted import refuse_damaged, solve_with_shell

from composer_replication.languages.java.held_out import is_call

FUNCTIONS = {"maven": "Ledger.byName", "plain": "Words.count"}


@pytest.mark.parametrize("project", sorted(FUNCTIONS))
def test_an_agent_with_a_shell_solves_a_task(project: str, java_built: Callable[[str], JavaBuild]) -> None:
    task = java_built(project).tasks[FUNCTIONS[project]]
    path, test = task.spec.deleted[0].path, task.spec.fail_to_pass[0]
    gold = task.gold_files()[path].decode()
    assert STUB not in gold
    tests, then = "java -version && javac -version && run-tests", f"run-tests '{test}' && run-tests | grep ' 0 failed'"
    solve_with_shell(task, tests=tests, path=path, body=gold, then=then)


def test_held_out_calls_are_not_those_of_the_tests(java_built: Callable[[str], JavaBuild]) -> None:
    programs = java_built("plain").tasks["Words.count"].spec.hidden.programs
    asked = {json.loads(program.steps)[0][1]["given"][0]["v"] for program in programs}
    assert len(asked) >= 4
    assert not {"b a b", "One two TWO", "go Go gO", "tea, for two!", "12 34"} & asked


def test_a_damaged_held_out_call_is_an_error(java_built: Callable[[str], JavaBuild]) -> None:
    changes: list[dict[str, Any]] = [
        *({"owner": "a; b"}, {"owner": 3}, {"name": "x()"}, {"types": "String"}, {"types": ["a b"]}, {"kind": "field"}),
        *({"given": []}, {"given": 3}, {"given": [{"k": "int", "t": "Integer", "v": "1)"}]}, {"types": []}),
        *({"given": [{"k": "opaque"}]}, {"given": [{"k": "struct", "t": "a b", "e": []}]}),
    ]
    refuse_damaged(java_built("plain").tasks["Words.count"].spec.hidden.programs[0], is_call, changes)
