"""Labels from outcomes, votes and files."""

from __future__ import annotations

import json

import pytest
from prm_world import trajectory

from composer_replication.prm import outcome_labels, read_labels, vote_labels
from composer_replication.prm.labels import canonical_turn
from composer_replication.teachers import TeacherAnswer, Vote
from composer_replication.types import Message, ToolCall, Turn, Unscored, to_json
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Trace, TraceTurn

SIBLINGS = [
    trajectory("0/t/0", "t", ["a", "a"], reward=1.0),
    trajectory("0/t/1", "t", ["./a", "b"], reward=0.0),
    trajectory("0/t/2", "t", ["a", "b"], reward=Unscored("the box broke")),
    trajectory("0/t/3", "t", ["b", "a"], reward=0.0),
    trajectory("0/other/0", "other", ["a", "b"], reward=1.0),
]


def test_a_step_is_worth_what_became_of_its_siblings():
    """Those that begin with the same canonical actions; other tasks and broken rollouts say nothing."""
    assert outcome_labels(SIBLINGS) == {
        "0/t/0": {0: 0.5, 1: 1.0},
        "0/t/1": {0: 0.5, 1: 0.0},
        "0/t/2": {0: 0.5, 1: 0.0},
        "0/t/3": {0: 0.0, 1: 0.0},
        "0/other/0": {0: 1.0, 1: 1.0},
    }


def test_transcripts_that_name_no_task_are_no_siblings():
    found = [trajectory("x", "", ["a"], reward=1.0), trajectory("y", "", ["a"], reward=0.0)]
    assert outcome_labels(found) == {"x": {0: 1.0}, "y": {0: 0.0}}


def test_a_partial_reward_is_no_success():
    assert outcome_labels([trajectory("0/t/0", "t", ["a"], reward=0.9)]) == {"0/t/0": {0: 0.0}}


def test_a_call_that_cannot_be_parsed_is_its_text():
    broken = ToolCall(call_id="c", name="", arguments={}, error="bad JSON")
    turns = [Turn(action_ids=(1,), logprobs=(0.0,), text=t, tool_calls=(broken,)) for t in ("<tool_call>{", "<tool_call>{ ", "x")]
    one, same, other = map(canonical_turn, turns)
    assert one == same != other


def vote(teacher, path, family=""):
    action = json.dumps({"name": "Read", "arguments": {"path": path}})
    return Vote(teacher=teacher, family=family or teacher, action=action)


def test_votes_for_the_students_action_are_its_label():
    votes = {("0/t/0", 0): [vote("x", "a"), vote("y", "b"), vote("z", "b")], ("0/t/0", 1): []}
    assert vote_labels(SIBLINGS, votes) == {"0/t/0": {0: pytest.approx(1 / 3)}}
    assert vote_labels(SIBLINGS, votes, weights={"x": 2.0}) == {"0/t/0": {0: 0.5}}
    with pytest.raises(ConfigError, match="turn 7 of '0/t/0'"):
        vote_labels(SIBLINGS, {("0/t/0", 7): [vote("x", "a")]})


def call(name, **arguments):
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("seen", [True, False])
def test_where_the_context_shows_the_file_an_edit_written_otherwise_is_the_students(seen):
    """Two teachers make the student's edit in other words, a third makes another."""
    own = {"path": "shop.py", "old": "return 0", "new": "return sum(prices)"}
    read = Message(role="assistant", content="", tool_calls=[call("read_file", path="shop.py")])
    shown = Message(role="tool", tool_call_id="c", content="def total(prices):\n    return 0\n")
    task = Message(role="user", content="Repair it.")
    turn = TraceTurn(
        context=(task, read, shown) if seen else (task,),
        text="",
        tool_calls=(ToolCall(call_id="d", name="edit_file", arguments=own),),
    )
    trace = Trace(trajectory_id="t", format="test", turns=(turn,), messages=(task,))
    edits = [
        own | {"old": "0", "new": "(sum(prices))"},
        own | {"old": "0", "new": "sum(prices)  # all"},
        own | {"new": "return 1"},
    ]
    votes = [
        Vote(teacher=name, family=name, action=json.dumps({"name": "edit_file", "arguments": made}))
        for name, made in zip("xyz", edits, strict=True)
    ]
    assert vote_labels([trace], {("t", 0): votes}) == {"t": {0: pytest.approx(2 / 3 if seen else 0.0)}}


def write(tmp_path, *lines):
    path = tmp_path / "labels.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def answer(state, teacher, path, **fields):
    call = ToolCall(call_id="c", name="Read", arguments={"path": path})
    family = fields.pop("family", teacher)
    return to_json(TeacherAnswer(question_id=state, teacher=teacher, family=family, tool_calls=(call,), **fields))


def test_a_file_holds_labels_and_teachers_answers(tmp_path):
    path = write(
        tmp_path,
        {"trajectory_id": "0/t/0", "turn": 0, "label": 1},
        answer("0/t/1#1", "x", "./b"),
        answer("0/t/1#1", "y", "c"),
        answer("0/t/1#1", "z", "b", error="HTTP 500"),
        answer("0/t/0#1", "x", "b", family="f"),
        answer("0/t/0#1", "y", "b", family="f"),
        answer("0/t/3#0", "x", "b", error="HTTP 500"),
    )
    assert read_labels(path, SIBLINGS) == {"0/t/0": {0: 1.0, 1: 0.0}, "0/t/1": {1: 0.5}}


GOOD = {"trajectory_id": "0/t/0", "turn": 0, "label": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"trajectory_id": "0/t/0", "turn": 0}, "no label"),
        ({"trajectory_id": "0/t/0", "turn": "0", "label": 1}, "no label"),
        ({"trajectory_id": "0/t/0", "turn": True, "label": 1}, "no label"),
        ({"trajectory_id": "0/t/0", "turn": 1, "label": "good"}, "no label"),
        ({"question_id": "0/t/0#1", "teacher": "x"}, "no label"),
        (answer("0/t/0#0", "x", "a"), "'0/t/0#0' is labelled already"),
        ("[]", "no label"),
        ({"trajectory_id": "nobody", "turn": 0, "label": 1}, "no trace has the state 'nobody#0'"),
        (GOOD, "'0/t/0#0' is labelled already"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, said):
    with pytest.raises(ConfigError, match=f"line 2: {said}"):
        read_labels(write(tmp_path, GOOD, line), SIBLINGS)


@pytest.mark.parametrize(
    ("lines", "why"), [((), "it is empty"), ((answer("0/t/0#0", "x", "a", error="HTTP 500"),), "none of its 1 lines is a vote")]
)
def test_a_file_without_a_label_is_named(tmp_path, lines, why):
    with pytest.raises(ConfigError, match=rf"labels\.jsonl labels no step: {why}"):
        read_labels(write(tmp_path, *lines), SIBLINGS)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        read_labels(tmp_path / "none.jsonl", SIBLINGS)
