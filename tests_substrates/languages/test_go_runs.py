"""Outcomes of Go tests by id, whatever the tests print and however their process ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from go_project import write

from composer_replication.languages.go.language import GO
from composer_replication.languages.go.runner import GoRunner
from composer_replication.sandbox.protocol import Tree
from composer_replication.types import Outcome

ALL = {
    *(
        f"ledger_test.go::{name}"
        for name in ("TestAdd", "TestAddMore", "TestLargest", "TestParse", "TestParseRefuses", "TestNames")
    ),
    "shout/shout_test.go::TestLoud",
}


def test_every_test_has_an_id_and_passes(runner: GoRunner, module: Path) -> None:
    run = runner.run(Tree(base=module), ())
    assert run.outcomes == dict.fromkeys(ALL, Outcome.PASSED)
    assert run.collect_errors == ()


def test_only_what_is_asked_for_runs(runner: GoRunner, module: Path) -> None:
    wanted = ("ledger_test.go::TestNames", "ledger_test.go::TestGone")
    assert runner.run(Tree(base=module), wanted).outcomes == {wanted[0]: Outcome.PASSED, wanted[1]: Outcome.MISSING}
    found = runner.run(Tree(base=module), (), ("shout",)).outcomes
    assert set(found) == {"shout/shout_test.go::TestLoud"}


ODD = """package odd

import (
	"fmt"
	"os"
	"testing"
)

func TestFirst(t *testing.T)  {}
func TestFails(t *testing.T)  { t.Error("it is", 3) }
func TestSkips(t *testing.T)  { t.Skip() }
func TestPanics(t *testing.T) { var nothing []int; _ = nothing[3] }
func TestSubtest(t *testing.T) {
	t.Run("good", func(t *testing.T) {})
	t.Run("bad", func(t *testing.T) { t.Parallel(); t.Fail() })
}
func TestEnds(t *testing.T) {
	fmt.Println("--- PASS: TestEnds (0.00s)")
	os.Exit(0)
}
func TestSays(t *testing.T) {
	fmt.Println("=== RUN   TestLast\\n--- PASS: TestLast (0.00s)\\nPASS")
	t.FailNow()
}
func TestFromElsewhere(t *testing.T) {
	done := make(chan bool)
	go func() { defer close(done); panic("in another goroutine") }()
	<-done
}
func TestLast(t *testing.T) {}
func TestmainIsNone() {}
func helper(t *testing.T) {}
"""


def test_each_way_to_end_is_told_apart(runner: GoRunner, tmp_path: Path) -> None:
    tree = Tree(base=write(tmp_path, {"go.mod": "module odd\n\ngo 1.21\n", "odd.go": "package odd\n", "odd_test.go": ODD}))
    run = runner.run(tree, ())
    found = {test_id.partition("::")[2]: outcome for test_id, outcome in run.outcomes.items()}
    failing = ("TestFails", "TestPanics", "TestSubtest", "TestEnds", "TestSays", "TestFromElsewhere")
    assert found == {
        **dict.fromkeys(("TestFirst", "TestLast"), Outcome.PASSED),
        **dict.fromkeys(failing, Outcome.FAILED),
        "TestSkips": Outcome.SKIPPED,
    }
    assert run.failures["odd_test.go::TestFails"] == "odd_test.go:10: it is 3"
    assert "index out of range" in run.failures["odd_test.go::TestPanics"]
    first, second = runner.run_twice(tree, ["odd_test.go::TestFirst", "odd_test.go::TestEnds"])
    assert (
        first.outcomes == second.outcomes == {"odd_test.go::TestFirst": Outcome.PASSED, "odd_test.go::TestEnds": Outcome.FAILED}
    )


def test_the_first_failure_ends_a_run_that_asks_for_it(runner: GoRunner, tmp_path: Path) -> None:
    tree = Tree(base=write(tmp_path, {"go.mod": "module odd\n\ngo 1.21\n", "odd.go": "package odd\n", "odd_test.go": ODD}))
    run = runner.run(tree, ("odd_test.go::TestFirst", "odd_test.go::TestFails", "odd_test.go::TestLast"), ("-x",))
    assert run.outcomes["odd_test.go::TestLast"] is Outcome.MISSING
    assert not run.passed


def test_a_package_that_does_not_compile_is_said(runner: GoRunner, module: Path) -> None:
    run = runner.run(Tree(base=module, changes={"ledger.go": b"package ledger\n\nfunc Add() {\n"}), ("ledger_test.go::TestAdd",))
    assert run.outcomes == {"ledger_test.go::TestAdd": Outcome.MISSING}
    assert run.collect_errors
    assert run.collect_errors[0].startswith("ledger_test.go: ledger.go:")


def test_a_project_has_its_own_main_of_tests(runner: GoRunner, module: Path) -> None:
    main = b'package ledger\n\nimport (\n\t"os"\n\t"testing"\n)\n\nfunc TestMain(m *testing.M) { os.Exit(m.Run()) }\n'
    tree = Tree(base=module, changes={"main_test.go": main})
    assert runner.run(tree, ("ledger_test.go::TestAdd",)).passed


def test_coverage_is_per_test(runner: GoRunner, module: Path) -> None:
    run, coverage = runner.run_with_coverage(Tree(base=module), (".",))
    assert run.outcomes.keys() == ALL
    lines = (module / "ledger.go").read_text().splitlines()
    sum_line = next(n for n, line in enumerate(lines, 1) if "number*10" in line)
    assert coverage["ledger.go"][sum_line] == {"ledger_test.go::TestParse", "ledger_test.go::TestParseRefuses"}
    assert any("shout/shout_test.go::TestLoud" in tests for tests in coverage["shout/shout.go"].values())
    assert not any("shout/shout_test.go::TestLoud" in tests for tests in coverage["ledger.go"].values())


@pytest.mark.parametrize("kind", ["namespaces", "landlock"])
def test_every_kind_of_box_can_compile(kind: str, runner: GoRunner, module: Path) -> None:
    from composer_replication.sandbox import open_sandbox

    boxed = replace(runner, sandbox=open_sandbox(kind))
    assert boxed.run(Tree(base=module), ("shout/shout_test.go::TestLoud",)).passed


ORDINARY = {
    "go.mod": "module ordinary\n\ngo 1.21\n",
    "go.work": "go 1.21\n\nuse ./elsewhere\n",
    "a.go": "package ordinary\n\nfunc One() int { return 1 }\n",
    "zgen.go": "//go:build ignore\n\npackage main\n\nfunc main() {}\n",
    "a_test.go": 'package ordinary\n\nimport tt "testing"\n\n/*\nfunc TestOld(t *tt.T) {\n}\n*/\n\n'
    "func TestOne(t *tt.T) {\n\tif One() != 1 {\n\t\tt.Fail()\n\t}\n}\n",
}


def test_ordinary_modules_run(runner: GoRunner, tmp_path: Path) -> None:
    """With a workspace file, a generator beside the package, a test in a comment, and another name for testing."""
    root = write(tmp_path, ORDINARY)
    assert runner.run(Tree(base=root), ()).outcomes == {"a_test.go::TestOne": Outcome.PASSED}
    assert GO.layout(root, (), ()).sources == ("a.go",)
