"""Sessions of Claude Code as trees: branches, repeated lines, side chains, a torn beginning."""

from __future__ import annotations

from made_traces import write_jsonl

from composer_replication.traces import Dropped, reader_for, states_from_traces
from composer_replication.traces.readers.claude_code import NOTICE, SHARED, SIDE_CHAIN, TWICE, UNANSWERED
from composer_replication.types.transcript import Trace


def user(uuid, parent, text, **more):
    message = {"role": "user", "content": text}
    return {"type": "user", "sessionId": "s", "uuid": uuid, "parentUuid": parent, "message": message, **more}


def agent(uuid, parent, text, message_id, **more):
    message = {"role": "assistant", "id": message_id, "model": "m", "content": [{"type": "text", "text": text}]}
    return {"type": "assistant", "sessionId": "s", "uuid": uuid, "parentUuid": parent, "message": message, **more}


def read(tmp_path, *lines):
    items = list(reader_for("claude-code").read(write_jsonl(tmp_path / "s.jsonl", lines)))
    return [i for i in items if isinstance(i, Trace)], {i.reason: i.count for i in items if isinstance(i, Dropped)}


def contents(turn):
    return [message["content"] for message in turn.context]


def test_an_edited_question_is_a_branch_of_its_own(tmp_path):
    """The youngest answer is the main line; the other branch begins with what both share, as context."""
    traces, dropped = read(
        tmp_path,
        user("u1", None, "first"),
        agent("a1", "u1", "one", "m1"),
        user("u2", "a1", "old question"),
        agent("a2", "u2", "old answer", "m2"),
        user("u3", "a1", "new question"),
        agent("a3", "u3", "new answer", "m3"),
    )
    main, branch = traces
    assert (main.trajectory_id, branch.trajectory_id) == ("s", "s/branch-1")
    assert [turn.text for turn in main.turns] == ["one", "new answer"]
    assert contents(main.turns[1]) == ["first", "one", "new question"]
    assert [turn.text for turn in branch.turns] == ["old answer"]
    assert contents(branch.turns[0]) == ["first", "one", "old question"]
    assert dropped == {SHARED: 1}


def test_what_is_left_out_is_counted(tmp_path):
    (trace,), dropped = read(
        tmp_path,
        user("u1", None, "first"),
        agent("x1", "u1", "of a helper", "m9", isSidechain=True),
        agent("e1", "u1", "API Error: 529", "m8", isApiErrorMessage=True),
        user("u2", "u1", "never answered"),
        agent("a1", "u1", "one", "m1"),
        user("u1", None, "first"),
    )
    assert [turn.text for turn in trace.turns] == ["one"]
    assert contents(trace.turns[0]) == ["first"]
    assert dropped == {SIDE_CHAIN: 1, NOTICE: 1, UNANSWERED: 1, TWICE: 1}


def test_a_log_without_its_beginning_has_no_states(tmp_path):
    (trace,), _ = read(tmp_path, user("u9", "gone", "go on"), agent("a9", "u9", "yes", "m9"))
    assert trace.turns[0].details["incomplete"] == "what came before the first line"
    assert states_from_traces([trace]) == []


def test_an_image_makes_what_follows_incomplete(tmp_path):
    picture = [{"type": "text", "text": "look"}, {"type": "image", "source": {"type": "base64", "data": "aGk="}}]
    (trace,), _ = read(
        tmp_path,
        user("u1", None, "first"),
        agent("a1", "u1", "one", "m1"),
        user("u2", "a1", picture),
        agent("a2", "u2", "two", "m2"),
    )
    assert "incomplete" not in trace.turns[0].details
    assert trace.turns[1].details["incomplete"] == "a part of a message: image"
    assert contents(trace.turns[1])[-1] == "look\n[image]"
