"""The comparison at the end of `make trl-own-tests`, on outcomes made up here; the runs themselves need TRL and its checkout."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tests_substrates" / "trl_own"))
from outcomes import Outcome, Refusal, compare, figures, read_outcomes, table

PASSED = Outcome("passed")
SKIPPED = Outcome("skipped", "test requires vllm")
FAILED = Outcome("failed", "AssertionError: the loss is 3")
REFUSED = Outcome("failed", "ConfigError: no such thing here\nfix: leave it out")
REFUSAL = Refusal(tests="t.py::test_option[a*]", error="ConfigError: no such thing here", reason="hints stand in them")


def test_the_same_outcomes_pass() -> None:
    found = compare({"a": PASSED, "b": SKIPPED, "c": FAILED}, {"a": PASSED, "b": SKIPPED, "c": FAILED})
    assert found.passed
    assert found.same == ["a"]
    assert set(found.neither) == {"b", "c"}
    assert figures(found)["neither"] == {"skipped: test requires vllm": 1, "failed: AssertionError: the loss is 3": 1}


@pytest.mark.parametrize("ours", [FAILED, SKIPPED, Outcome("xfailed", "later"), None])
def test_what_passes_with_theirs_and_not_with_ours_is_named(ours: Outcome | None) -> None:
    found = compare({"a": PASSED, "b": PASSED}, {"a": PASSED} | ({"b": ours} if ours else {}))
    assert not found.passed
    assert list(found.lost) == ["b"]
    assert f"b\n    theirs passed\n    ours   {ours or 'missing: the other run had'}" in table(found)


def test_what_passes_with_ours_alone_is_shown_and_no_fault() -> None:
    found = compare({"a": PASSED, "b": FAILED}, {"a": PASSED, "b": PASSED})
    assert found.passed
    assert list(found.gained) == ["b"]
    assert "b\n    theirs failed: AssertionError: the loss is 3\n    ours   passed" in table(found)


def test_no_test_that_passes_is_no_pass() -> None:
    assert not compare({}, {}).passed
    assert not compare({"a": SKIPPED}, {"a": SKIPPED}).passed


def test_a_refusal_excuses_the_tests_that_fail_with_its_error() -> None:
    test = "t.py::test_option[a-1]"
    found = compare({"a": PASSED, test: PASSED}, {"a": PASSED, test: REFUSED}, [REFUSAL])
    assert found.passed
    assert found.refused == {test: REFUSAL}
    assert figures(found)["refused"] == {test: "hints stand in them"}
    assert f"refused on purpose: {test}\n    hints stand in them" in table(found)


@pytest.mark.parametrize("ours", [FAILED, PASSED, SKIPPED])
def test_a_refusal_whose_error_no_test_meets_is_a_fault(ours: Outcome) -> None:
    test = "t.py::test_option[a-1]"
    found = compare({"a": PASSED, test: PASSED}, {"a": PASSED, test: ours}, [REFUSAL])
    assert not found.passed
    assert found.stale == [REFUSAL]
    assert "no test fails with the error of this refusal: t.py::test_option[a*]" in table(found)


def test_a_refusal_covers_the_tests_of_its_pattern_alone() -> None:
    found = compare({"a": PASSED, "b": PASSED}, {"a": PASSED, "b": REFUSED}, [REFUSAL])
    assert list(found.lost) == ["b"]


def test_the_first_phase_of_a_test_that_did_not_pass_counts(tmp_path: Path) -> None:
    rows = [("a", "passed", ""), ("a", "failed", "in teardown"), ("b", "failed", "in the call"), ("b", "failed", "in teardown")]
    path = tmp_path / "outcomes.jsonl"
    path.write_text("".join(json.dumps({"test": t, "outcome": o, "why": w}) + "\n" for t, o, w in rows), "utf-8")
    assert read_outcomes(path) == {"a": Outcome("failed", "in teardown"), "b": Outcome("failed", "in the call")}
