from __future__ import annotations

import dataclasses
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import TOOLS, bad, call, ok, renderer, trajectory

from composer_replication.config import RunConfig
from composer_replication.hints import (
    DEFAULT_GENERATORS,
    STANDARD,
    HintContext,
    detectors_named,
    find_hints,
    generators_named,
    insert_hint,
    insert_hints,
    leaks_gold,
    shuffle_hints,
)
from composer_replication.trainer.signals import HintSources, SignalMaker
from composer_replication.types import Hint

READ, EDIT, SUBMIT = call("read_file", path="a.py"), call("edit_file", path="a.py", old="x", new="y"), call("submit")
GOLD = '''def stowage(hold, crate):
    """The tret of hold and crate, written out at some length here."""
    return sub(hold, crate)
'''


def failing(task="t0", sibling=0):
    return trajectory(
        (READ, bad("path_not_found")),
        (EDIT, ok()),
        (call("run_tests"), bad("tests_failed", "E   NameError: name 'zz'")),
        (SUBMIT, ok()),
        task=task,
        sibling=sibling,
    )


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        ("Hint: tret means the difference.", False),
        ("use return sub(hold, crate)", True),
        ("The tret of hold and crate, written out at some length here.", False),
        ("return", False),
        ("E   assert 21 == 17", False),
    ],
)
def test_leak_guard(text, leaks):
    assert leaks_gold(text, [GOLD]) is leaks
    assert leaks_gold(text, ["return sub(hold, crate)"]) is leaks


def test_leak_of_a_fragment_longer_than_a_statement_part():
    gold = "total = sum(price * count for price, count in basket.lines if count)"
    assert leaks_gold("it is sum(price * count for price, count in something)", [gold])
    assert not leaks_gold("it sums price and count of the lines", [gold])


@pytest.mark.parametrize(
    ("gold", "text", "leaks"),
    [
        ("return sum(prices) * RATE", "The total is sum(prices) * RATE.", True),
        ("return sum(prices) * RATE", "Return sum(prices) * RATE.", True),
        ("return sum(prices) * RATE", "The total is the sum of prices, times RATE.", False),
        ("return round(total * (1 - discount), 2)", "compute total * (1 - discount) and round to 2", True),
        ("return round(total * (1 - discount), 2)", "Round it to 2 digits, after the discount.", False),
        ("return parse(text)", "Call parse(text) there.", True),
        ("return self.items", "See self.items of the basket.", False),
        ("if a > b:\n    return a\nreturn b", "it is a when a > b", False),
    ],
)
def test_leak_of_what_a_statement_is_about(gold, text, leaks):
    assert leaks_gold(f"Hint: {text}", [textwrap.indent(gold, "    ")]) is leaks


def test_first_error_is_hinted_and_every_finding_accounted_for():
    t = failing()
    report = find_hints([t], {"t0": HintContext(tools=TOOLS)})
    assert [(h.kind, h.turn, h.source, h.trajectory_id) for h in report.hints] == [("path_not_found", 0, "template", "0/t0/0")]
    assert report.dropped == {"after an earlier error": 1}
    both = find_hints([t], {}, max_per_trajectory=2)
    assert [h.source for h in both.hints] == ["template", "environment"]
    assert both.dropped == {}


def test_leaking_hint_is_dropped_and_counted():
    t = trajectory((EDIT, ok()), (call("run_tests"), bad("tests_failed", "E   return sub(hold, crate)")), (SUBMIT, ok()))
    assert len(find_hints([t], {}).hints) == 1
    report = find_hints([t], {}, gold={"t0": [GOLD]})
    assert report.hints == ()
    assert report.dropped == {"gives the deleted code away": 1}


def test_nothing_to_say_is_counted():
    t = trajectory((EDIT, ok()), (SUBMIT, ok()), reward=0.0)
    report = find_hints([t], {})
    assert (report.hints, report.dropped) == ((), {"nothing to say about tests_failed": 1})
    assert [(u.kind, u.turn, u.text, u.dropped) for u in report.dropped_hints] == [
        ("tests_failed", 0, "", "nothing to say about tests_failed")
    ]


def test_inserted_hint_moves_positions_and_nothing_else():
    t = failing()
    (hint,) = find_hints([t], {}).hints
    for turn in range(len(t.turns)):
        placed = Hint(trajectory_id=hint.trajectory_id, turn=turn, kind="k", text="Hint: \u00e9\U0001f600 <|im_end|>", source="s")
        aligned = insert_hint(t, placed, renderer())
        whole = t.context_ids(len(t.turns))
        action = t.turns[turn].action_ids
        assert whole[aligned.student_start : aligned.student_start + len(action)] == aligned.action_ids == action
        assert aligned.teacher_ids[aligned.teacher_start :] == action
        context = t.context_ids(turn)
        prompt = renderer().generation_prompt_ids
        assert aligned.teacher_ids[: len(context) - len(prompt)] == context[: -len(prompt)]
        assert aligned.teacher_ids[: aligned.teacher_start][-len(prompt) :] == prompt
        inserted = aligned.teacher_ids[len(context) - len(prompt) : aligned.teacher_start - len(prompt)]
        assert renderer().template.decode(inserted) == renderer().template.text([{"role": "user", "content": placed.text}])


def test_impossible_insertions_are_counted():
    t = failing()
    hint = Hint(trajectory_id=t.trajectory_id, turn=1, kind="k", text="Hint.", source="s")
    cut = dataclasses.replace(t.turns[0], observation_ids=t.turns[0].observation_ids[:-1])
    torn = dataclasses.replace(t, turns=(cut, *t.turns[1:]))
    silent = dataclasses.replace(t, turns=(t.turns[0], dataclasses.replace(t.turns[1], action_ids=(), logprobs=())))
    assert insert_hints([torn], [hint], renderer()).dropped == {"the context does not end with the generation prompt": 1}
    assert insert_hints([silent], [hint], renderer()).dropped == {"the turn sampled no tokens": 1}
    assert insert_hints([t], [hint], renderer(), context_window=10).dropped == {"longer than the context window": 1}
    good = insert_hints([t], [hint], renderer(), context_window=10_000)
    assert (len(good.hinted), good.dropped) == (1, {})
    with pytest.raises(ValueError, match="offered"):
        insert_hint(failing(task="other"), hint, renderer())


def test_feedback_on_a_whole_trajectory_stands_after_its_prompt():
    t = failing()
    hints = [Hint(trajectory_id=t.trajectory_id, turn=turn, kind="k", text=text, source="s") for turn, text in enumerate("ABA")]
    made = insert_hints([t], hints[: len(t.turns)], renderer(), span="trajectory")
    assert made.hints == tuple(hints[: len(t.turns)])
    assert [one.turn for one in made.hinted] == list(range(len(t.turns)))
    before = renderer().strip_generation_prompt(t.prompt_ids)
    message = renderer().hint_ids("A\n\nB")
    for one in made.hinted:
        own = (*t.context_ids(one.turn), *t.turns[one.turn].action_ids)
        assert one.teacher_ids == (*before, *message, *own[len(before) :]), "said once, before everything that was sampled"
        assert one.teacher_start - one.student_start == len(message)
        assert own[one.student_start :] == one.action_ids == one.teacher_ids[one.teacher_start :]


def test_no_turn_is_held_beside_feedback():
    """Not even one that does not fit with the feedback in front of it: it may be the one that went wrong."""
    t = failing()
    config = RunConfig.model_validate(
        {"model": {"path": "m"}, "tasks": {"train": "t"}, "loss": {"hint": {"span": "trajectory", "per_trajectory": 4}}}
    )
    sources = HintSources(
        contexts={}, gold={}, detectors=detectors_named(STANDARD), generators=generators_named(DEFAULT_GENERATORS)
    )
    longest = len(t.context_ids(len(t.turns)))
    made = SignalMaker(config=config, sources=sources, renderer=renderer(), context_window=longest + 2).select_hints(1, [t])
    assert made.hinted
    assert len(made.hinted) < len(t.turns), "the last turn does not fit"
    assert not any(one.held for one in made.hinted)
    with pytest.raises(ValueError, match="held_turns = 2 is not read with span = trajectory"):
        RunConfig.model_validate(
            {"model": {"path": "m"}, "tasks": {"train": "t"}, "loss": {"hint": {"span": "trajectory", "held_turns": 2}}}
        )


def test_turns_beyond_the_window_get_no_feedback():
    t = failing()
    hint = Hint(trajectory_id=t.trajectory_id, turn=0, kind="k", text="Hint.", source="s")
    whole = insert_hints([t], [hint], renderer(), span="trajectory").hinted
    cut = insert_hints([t], [hint], renderer(), span="trajectory", context_window=len(whole[-1].teacher_ids) - 1)
    assert (cut.hinted, cut.hints) == (whole[:-1], (hint,))
    none = insert_hints([t], [hint], renderer(), span="trajectory", context_window=10)
    assert (none.hinted, none.hints, none.dropped) == ((), (), {"longer than the context window": 1})
    torn = dataclasses.replace(t, prompt_ids=t.prompt_ids[:-1])
    assert insert_hints([torn], [hint], renderer(), span="trajectory").dropped == {
        "the context does not end with the generation prompt": 1
    }


@given(faults=st.lists(st.integers(0, 2), min_size=2, max_size=6), siblings=st.integers(1, 3), seed=st.integers(0, 1000))
def test_a_shuffled_hint_is_another_tasks_and_another(faults, siblings, seed):
    """Also where tasks share a fault, and so the text of its hint."""
    trajectories = [failing(f"t{i}", s) for i in range(len(faults)) for s in range(siblings)]
    fault_of = {f"t{i}": f"fault {fault}" for i, fault in enumerate(faults)}
    hints = [Hint(trajectory_id=t.trajectory_id, turn=1, kind="k", text=fault_of[t.task_id], source="s") for t in trajectories]
    shuffled = shuffle_hints(hints, trajectories, seed)
    if len(set(faults)) == 1:
        assert shuffled == ()
        return
    assert [(h.trajectory_id, h.turn) for h in shuffled] == [(h.trajectory_id, h.turn) for h in hints]
    assert all(a.text != b.text for a, b in zip(shuffled, hints, strict=True))
    assert {h.text for h in shuffled} <= {h.text for h in hints}
    assert shuffled == shuffle_hints(hints, trajectories, seed)


def test_one_task_alone_cannot_be_shuffled():
    t = failing()
    hints = find_hints([t], {}).hints
    assert shuffle_hints(hints, [t], 0) == ()
