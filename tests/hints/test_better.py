"""Hints from a better action or a judge, and what keeps them from giving the answer away."""

from __future__ import annotations

import pytest
from trajectories import bad, call, ok, trajectory

from composer_replication.actions.calls import Call
from composer_replication.config import LossConfig
from composer_replication.hints import (
    STANDARD,
    BetterActionHint,
    HintContext,
    JudgeHint,
    better_actions,
    detect,
    find_hints,
    generators_named,
    leaks_action,
)
from composer_replication.hints.generators import BUILTIN_GENERATORS, DEFAULT_GENERATORS
from composer_replication.types.errors import ConfigError

READ, RUN, SUBMIT = call("read_file", path="a.py"), call("run_tests"), call("submit")
NEW = "return max(price * count, 0) + fee"


def edit(new):
    return call("edit_file", path="a.py", old="x", new=new)


LOST = trajectory((READ, ok("x")), (edit("return 0"), ok()), (RUN, bad("tests_failed", "E assert 1 == 2")), (SUBMIT, ok()))
WON = trajectory((READ, ok("x")), (edit(NEW), ok()), (RUN, ok()), (SUBMIT, ok()), sibling=1, reward=1.0)


def test_a_sibling_in_the_same_place_is_found():
    context = HintContext(siblings=(WON,))
    (better,) = better_actions(LOST, 1, context)
    assert (better.source, better.calls[0].arguments["new"]) == ("sibling", NEW)
    assert list(better_actions(LOST, 0, context)) == []  # it did the same there
    assert list(better_actions(LOST, 2, context)) == []  # it was somewhere else then
    assert list(better_actions(WON, 1, HintContext(siblings=(WON,)))) == []
    elsewhere = trajectory((RUN, ok()), (edit(NEW), ok()), sibling=2, reward=1.0)
    assert list(better_actions(LOST, 1, HintContext(siblings=(elsewhere,)))) == []


def test_canonically_equal_prefixes_are_equal():
    dotted = trajectory((call("read_file", path="./a.py"), ok("x")), (edit(NEW), ok()), sibling=2, reward=1.0)
    assert len(list(better_actions(LOST, 1, HintContext(siblings=(dotted,))))) == 1


def test_it_names_the_place_and_shows_the_action_only_on_demand():
    sibling = generators_named(["sibling"])
    (hint,) = find_hints([LOST, WON], {}, generators=sibling).hints
    assert (hint.turn, hint.source) == (1, "sibling")
    assert hint.text == "Hint: an attempt at this task that passed its tests called edit_file on a.py here."
    (shown,) = find_hints([LOST, WON], {}, generators=sibling, demo=True).hints
    assert NEW in shown.text


def test_the_deleted_code_stays_out_of_a_demonstration():
    report = find_hints([LOST, WON], {}, generators=generators_named(["sibling"]), demo=True, gold={"t0": [NEW]})
    assert report.dropped == {"gives the deleted code away": 1}
    assert report.dropped_hints[0].text == ""


def test_what_teachers_chose():
    context = HintContext(consensus={f"{LOST.trajectory_id}#1": '{"name": "run_tests", "arguments": {}}'})
    (finding,) = [f for f in detect(LOST) if f.kind == "tests_failed"]
    assert BetterActionHint("consensus").generate(finding, LOST, context) == (
        "Hint: other agents, asked what to do here, called run_tests here."
    )
    same = HintContext(consensus={f"{LOST.trajectory_id}#0": '{"name": "read_file", "arguments": {"path": "a.py"}}'})
    assert list(better_actions(LOST, 0, same)) == []


def test_a_judge_is_asked_about_the_turn_and_cut_to_two_sentences():
    asked = []

    def ask(question):
        asked.append(question)
        return "Look at the fee, e.g. in b.py. Then add it!  A third sentence."

    (hint,) = find_hints([LOST], {}, generators=generators_named(["judge"], {"judge": ask})).hints
    assert hint.text == "Hint: Look at the fee, e.g. in b.py. Then add it!"
    assert (hint.source, len(asked)) == ("judge", 1)
    for part in ("Write the body of stowage.", "return 0", "tests_failed", "E assert 1 == 2"):
        assert part in asked[0]
    for silent in (None, "", "None."):
        assert find_hints([LOST], {}, generators=[JudgeHint(lambda _, said=silent: said)]).hints == ()


SUITE = "pytest -q tests/test_basket.py -k total --maxfail 1"


def test_a_judge_that_gives_the_better_action_away_is_not_heard():
    report = find_hints([LOST, WON], {}, generators=generators_named(["judge"], {"judge": lambda _: f"Write {NEW}"}))
    assert report.dropped == {"gives the better action away": 1}
    assert report.dropped_hints[0].text == f"Hint: Write {NEW}"
    assert leaks_action(f"Write {NEW}", [Call("edit_file", {"new": NEW})])
    assert leaks_action(
        f"Write {NEW}", [Call("MultiEdit", {"file_path": "a.py", "edits": [{"old_string": "", "new_string": NEW}]})]
    )
    assert leaks_action(f"Write {NEW}", [Call("apply_patch", {"patch": f"*** Update File: a.py\n@@\n-    pass\n+    {NEW}\n"})])
    for command in (["bash", "-lc", SUITE], SUITE.split(), f"/usr/bin/{SUITE}"):
        assert leaks_action(f"Run {SUITE}", [Call("shell", {"command": command})])
    assert not leaks_action("Edit src/deep/down/a.py", [Call("edit_file", {"path": "src/deep/down/a.py", "new": "1"})])


def test_generators_are_named():
    assert [one.source for one in generators_named(DEFAULT_GENERATORS)] == list(DEFAULT_GENERATORS)
    for name in ("judge", "policy"):
        with pytest.raises(ConfigError, match=f"'{name}' has nobody to ask"):
            generators_named([name])
    (introspection,) = generators_named(["policy"], {"policy": lambda _: "Read the docstring."})
    (hint,) = find_hints([LOST], {}, generators=[introspection]).hints
    assert (hint.text, hint.source) == ("Hint: Read the docstring.", "policy")
    with pytest.raises(ConfigError, match="no hint generator 'oracle'"):
        generators_named(["oracle"])
    assert list(BUILTIN_GENERATORS)[:3] == list(DEFAULT_GENERATORS)


def test_a_run_file_names_the_same_by_default():
    assert LossConfig().hint.detectors == STANDARD
    assert LossConfig().hint.generators == DEFAULT_GENERATORS
