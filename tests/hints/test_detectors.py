from __future__ import annotations

import dataclasses

import pytest
from trajectories import bad, call, ok, trajectory

from composer_replication.hints import STANDARD, detectors_named, find_hints, first_error
from composer_replication.hints import detect as detect_with
from composer_replication.types import StopReason, Unscored

READ, EDIT, RUN, SUBMIT = (
    call("read_file", path="a.py"),
    call("edit_file", path="a.py", old="x", new="y"),
    call("run_tests"),
    call("submit"),
)


def detect(t):
    return detect_with(t, detectors_named(STANDARD))


def found(t):
    return [(f.kind, f.turn) for f in detect(t)]


@pytest.mark.parametrize(
    "status", ["unknown_tool", "malformed_call", "invalid_arguments", "edit_not_applied", "path_not_found", "path_not_editable"]
)
def test_refused_call_is_its_own_turns_error(status):
    t = trajectory((READ, ok()), (EDIT, bad(status, "no", seen=3)), (SUBMIT, ok()), reward=1.0)
    (finding,) = detect(t)
    assert (finding.kind, finding.turn) == (status, 1)
    assert finding.evidence["seen"] == 3
    assert finding.evidence["arguments"] == {"path": "a.py", "old": "x", "new": "y"}


def test_call_that_cannot_be_parsed():
    t = trajectory(("<tool_call>{oops</tool_call>", bad("malformed_call")), (SUBMIT, ok()), reward=1.0)
    (finding,) = detect(t)
    assert finding.kind == "malformed_call"
    assert "bad JSON" in finding.evidence["error"]


def test_failing_tests_blame_the_last_change_before_them():
    t = trajectory(
        (EDIT, ok()), (EDIT.replace('"y"', '"z"'), ok()), (READ, ok()), (RUN, bad("tests_failed", "E boom")), (SUBMIT, ok())
    )
    (finding,) = detect(t)
    assert (finding.kind, finding.turn) == ("tests_failed", 1)
    assert finding.evidence["revealed_by"] == 3
    assert finding.evidence["observation"] == "E boom"


def test_edit_that_did_not_apply_is_not_a_change():
    t = trajectory((EDIT, ok()), (EDIT.replace('"y"', '"z"'), bad("edit_not_applied")), (RUN, bad("tests_failed")), reward=0.0)
    assert found(t) == [("tests_failed", 0), ("edit_not_applied", 1)]


def test_change_and_run_in_one_turn():
    t = trajectory((READ, ok()), (EDIT + RUN, ok(), bad("tests_failed")), (SUBMIT, ok()))
    assert found(t) == [("tests_failed", 1)]


def test_run_before_any_change_blames_nobody():
    assert found(trajectory((RUN, bad("tests_failed")), (READ, ok()), (SUBMIT, ok()))) == []


def test_two_failing_runs_of_one_change_are_one_finding():
    t = trajectory((EDIT, ok()), (RUN, bad("tests_failed")), (READ, ok()), (RUN, bad("tests_failed")), (SUBMIT, ok()))
    assert found(t) == [("tests_failed", 0)]


def test_each_failing_change_is_a_finding():
    t = trajectory((EDIT, ok()), (RUN, bad("tests_failed")), (EDIT, ok()), (RUN, bad("tests_failed")), (SUBMIT, ok()))
    assert found(t) == [("tests_failed", 0), ("tests_failed", 2)]


def test_zero_reward_without_a_test_run_blames_the_last_change():
    t = trajectory((EDIT, ok()), (call("write_file", path="b.py", content="1"), ok()), (READ, ok()), (SUBMIT, ok()), reward=0.0)
    assert found(t) == [("tests_failed", 1)]


def test_zero_reward_after_a_passing_run_blames_the_last_change():
    assert found(trajectory((EDIT, ok()), (RUN, ok()), (SUBMIT, ok()), reward=0.0)) == [("tests_failed", 0)]


@pytest.mark.parametrize("reward", [1.0, Unscored("box broke")])
def test_without_a_zero_nothing_is_blamed(reward):
    assert found(trajectory((EDIT, ok()), (SUBMIT, ok()), reward=reward)) == []


def test_zero_reward_without_a_change_blames_nobody():
    assert found(trajectory((READ, ok()), (SUBMIT, ok()), reward=0.0)) == []


@pytest.mark.parametrize("status", ["timeout", "out_of_memory"])
def test_code_without_end_blames_the_change_else_the_call(status):
    assert found(trajectory((EDIT, ok()), (RUN, bad(status)), (SUBMIT, ok()))) == [(status, 0)]
    assert found(trajectory((READ, ok()), (RUN, bad(status)), (SUBMIT, ok()))) == [(status, 1)]


def test_repeated_action_is_compared_in_canonical_form():
    t = trajectory(
        (READ, ok()), (call("read_file", path="./a.py"), ok()), (call("read_file", path="a.py"), ok()), (SUBMIT, ok()), reward=1.0
    )
    assert found(t) == [("repeated_action", 1), ("repeated_action", 2)]


def test_same_call_with_a_change_between_is_no_repeat():
    t = trajectory((RUN, ok()), (EDIT, ok()), (RUN, ok()), (SUBMIT, ok()), reward=1.0)
    assert found(t) == []


def test_first_error_keeps_the_earliest_turns():
    t = trajectory((READ, bad("path_not_found")), (READ, bad("path_not_found")), (EDIT, bad("edit_not_applied")), reward=1.0)
    findings = detect(t)
    assert [(f.kind, f.turn) for f in findings] == [
        ("path_not_found", 0),
        ("path_not_found", 1),
        ("repeated_action", 1),
        ("edit_not_applied", 2),
    ]
    assert [f.turn for f in first_error(list(reversed(findings)))] == [0]
    assert [(f.kind, f.turn) for f in first_error(findings, limit=2)] == [("path_not_found", 0), ("path_not_found", 1)]


def test_search_that_times_out_does_not_blame_the_change():
    t = trajectory((EDIT, ok()), (call("search", pattern="x"), bad("timeout")), (RUN, ok()), (SUBMIT, ok()), reward=1.0)
    assert found(t) == [("timeout", 1)]


def test_change_after_the_last_failing_run_is_blamed_for_a_zero_too():
    t = trajectory((EDIT, ok()), (RUN, bad("tests_failed")), (EDIT, ok()), (SUBMIT, ok()), reward=0.0)
    assert found(t) == [("tests_failed", 0), ("tests_failed", 2)]
    searched = trajectory((EDIT, ok()), (call("search", pattern="x"), bad("timeout")), (SUBMIT, ok()), reward=0.0)
    assert found(searched) == [("tests_failed", 0), ("timeout", 1)]


def test_a_turn_that_a_budget_ended_before_it_called_a_tool_was_cut_off_and_one_that_ended_by_itself_called_none():
    prose = trajectory((READ, ok()), ("First I will think about",))
    mute = trajectory((READ, ok()), ("",))

    def found(one, stop):
        ended = dataclasses.replace(one, stop_reason=stop)
        kinds = ("cut_off", "no_tool_call")
        return [(f.kind, f.turn) for f in detect_with(ended, detectors_named(kinds))]

    for stop in (StopReason.TURN_TOKENS, StopReason.TRAJECTORY_TOKENS, StopReason.CONTEXT_TOKENS):
        assert found(prose, stop) == [("cut_off", 1)]
    assert found(prose, StopReason.NO_TOOL_CALL) == [("no_tool_call", 1)]
    assert found(mute, StopReason.NO_TOOL_CALL) == [("no_tool_call", 1)]
    assert found(mute, StopReason.MAX_TURNS) == [], "a log may leave thoughts out"
    assert found(trajectory((READ, ok())), StopReason.TURN_TOKENS) == [], "its call was complete"


def test_a_call_that_a_budget_cut_off_is_found_and_one_that_was_refused_is_not():
    whole = trajectory((READ, ok()), ("<tool_call>{oops", bad("malformed_call")))
    assert [
        (f.turn, f.kind) for f in detect_with(whole, detectors_named(STANDARD)) if f.kind in ("cut_off", "malformed_call")
    ] == [(1, "malformed_call")]
    cut = dataclasses.replace(whole, turns=(whole.turns[0], dataclasses.replace(whole.turns[1], results=())))
    found = [(f.turn, f.kind) for f in detect_with(cut, detectors_named(STANDARD))]
    assert (1, "cut_off") in found
    assert (1, "malformed_call") not in found
    (hint,) = find_hints([cut], {}).hints
    assert "token limit" in hint.text
