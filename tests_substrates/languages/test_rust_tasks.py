"""Tasks of Rust crates: proven, graded, worked on by an agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rust_projects import PYTHON
from scripted import refuse_damaged, solve_with_shell
from test_rust_forgeries import OTHER_WAYS, graded, with_body

from composer_replication.languages.rust.held_out import is_call, wrong_calls
from composer_replication.languages.rust.runner import RustRunner
from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.protocol import Tree
from composer_replication.tasks import BuildOptions, Task, build_tasks, load_tasks
from composer_replication.types import Outcome
from composer_replication.types.errors import ConfigError

STRONG = {"digits", "parse", "Shelf.put", "Loud.loud", "sorted", "Ledger.add", "Ledger.by_name", "checked_share"}


def test_tests_are_run_by_id(ledger: Path, rust_runner: RustRunner) -> None:
    run = rust_runner.run(Tree(base=ledger), ())
    assert run.collect_errors == ()
    assert {name: outcome for name, outcome in run.outcomes.items() if outcome is not Outcome.PASSED} == {
        "src/lib.rs::tests::is_not_run": Outcome.SKIPPED
    }
    assert {
        "src/shelf.rs::made::takes_five",
        "src/lib.rs::tests::nobody_gets_a_share",
        "tests/whole.rs::adds",
    } <= run.outcomes.keys()
    some = ["tests/whole.rs::adds", "src/lib.rs::tests::gone"]
    assert rust_runner.run(Tree(base=ledger), some).outcomes == {some[0]: Outcome.PASSED, some[1]: Outcome.MISSING}


def test_failures_are_told_by_id(ledger: Path, rust_runner: RustRunner) -> None:
    text = (ledger / "src/lib.rs").read_text()
    work = text.replace("total.div_euclid(people)", "total / people").replace(
        'assert!(people > 0, "nobody is there: {}", people);', ""
    )
    run = rust_runner.run(Tree(base=ledger, changes={"src/lib.rs": work.encode()}), ())
    failed = {name.rpartition("::")[2]: run.failures.get(name) for name, one in run.outcomes.items() if one is Outcome.FAILED}
    assert failed.keys() == {"nobody_gets_a_share", "shares_are_whole"}
    assert "attempt to divide by zero" in str(failed["nobody_gets_a_share"])
    assert "assertion" in str(failed["shares_are_whole"])


def test_a_crate_that_does_not_compile_fails_its_tests(ledger: Path, rust_runner: RustRunner) -> None:
    broken = (ledger / "src/words.rs").read_text().replace("found.dedup();", "found.dedup()")
    run = rust_runner.run(Tree(base=ledger, changes={"src/words.rs": broken.encode()}), ["tests/whole.rs::adds"])
    assert run.outcomes == {"tests/whole.rs::adds": Outcome.MISSING}
    assert any("src/words.rs" in error and "expected" in error for error in run.collect_errors), run.collect_errors


def test_every_covered_function_is_a_task(rust_tasks: dict[str, Task]) -> None:
    assert {name for name, task in rust_tasks.items() if not task.spec.forgeable} >= STRONG
    spec = rust_tasks["digits"].spec
    assert (spec.language, spec.tests_in_sources) == ("rust", True)
    assert {"src/lib.rs::tests::reads_digits", "tests/whole.rs::adds"} <= set(spec.fail_to_pass)
    assert "src/lib.rs::tests::shares_are_whole" in spec.pass_to_pass
    assert spec.instruction == "Implement `digits` in src/lib.rs: its body was removed. Make its tests pass."
    assert (rust_tasks["digits"].repo / "src/lib.rs").read_text().count("unimplemented!()") == 1


@pytest.mark.parametrize("name", sorted(STRONG))
def test_the_solution_is_rewarded_and_nothing_is_not(name: str, rust_tasks: dict[str, Task], sandbox: Sandbox) -> None:
    report = graded(rust_tasks[name], rust_tasks[name].gold_files(), sandbox)
    assert (report.reward, report.alarms) == (1.0, ()), report.reasons
    assert graded(rust_tasks[name], {}, sandbox).reward == 0.0


def test_held_out_calls_are_not_those_of_the_tests(rust_tasks: dict[str, Task], rust_runner: RustRunner) -> None:
    task = rust_tasks["digits"]
    programs = task.spec.hidden.programs
    asked = [json.loads(program.steps)[0][1]["given"][0]["v"] for program in programs]
    assert len(asked) >= 4
    assert not {"1", "22", "100", "65", "", "4x"} & set(asked)
    gold = Tree(base=task.repo, changes=task.gold_files())
    assert wrong_calls(rust_runner, gold, programs)[0] == []
    assert wrong_calls(rust_runner, Tree(base=task.repo), programs)[0] == list(range(len(programs)))


def test_a_workspace_gives_tasks(house: Path, sandbox: Sandbox, tmp_path: Path) -> None:
    build_tasks(str(house), tmp_path, BuildOptions(trivial=True, python=PYTHON, timeout_s=300, forgeable=True))
    tasks = {task.spec.deleted[0].qualname: task for task in load_tasks(tmp_path)}
    assert tasks.keys() == {"area", "say"}
    assert "door/src/main.rs::tests::says_it" in tasks["area"].spec.fail_to_pass
    assert not tasks["area"].spec.forgeable, tasks["area"].spec.hidden.weakness
    for task in tasks.values():
        assert graded(task, task.gold_files(), sandbox).reward == 1.0
        assert graded(task, {}, sandbox).reward == 0.0


def test_an_agent_with_a_shell_solves_it(rust_tasks: dict[str, Task]) -> None:
    task, test = rust_tasks["Loud.loud"], "cargo test --offline --test whole shouts"
    body = (with_body(task, OTHER_WAYS["Loud.loud"][0])["src/words.rs"] or b"").decode()
    solve_with_shell(task, tests=f"rustc --version && {test}", path="src/words.rs", body=body, then=test)


def test_a_damaged_held_out_call_is_an_error(rust_tasks: dict[str, Task]) -> None:
    changes: list[dict[str, Any]] = [
        *({"name": "x(); panic"}, {"name": 3}, {"root": "../../x.rs"}, {"root": 3}, {"modules": ["a b"]}, {"owner": "X{}"}),
        *({"given": [{"k": "call", "v": "x"}]}, {"given": []}, {"given": 3}, {"types": ["x; y!{}"]}, {"passed": []}),
        *({"given": [{"k": "int"}]}, {"given": [{}]}, {"given": [{"k": ["int"], "v": "1"}]}),
        *({"passed": [["&{}; panic!()", ""]]}, {"format": "{0} {1}"}),
    ]
    refuse_damaged(rust_tasks["digits"].spec.hidden.programs[0], is_call, changes)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"mutants": 3}, "with mutants"), ({"impossible": 0.5}, "with impossible"), ({"mode": "delete"}, "mode")],
)
def test_what_rust_does_not_have_is_refused(options: dict[str, object], said: str, ledger: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        build_tasks(str(ledger), tmp_path, BuildOptions(trivial=True, python=PYTHON, **options))  # type: ignore[arg-type]
