"""Which token a step is judged at, and what of a trace a model reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prm_world import RENDERER, corpus, trajectory

from composer_replication.prm import IGNORED, encode, fit, held_out_tasks, read_transcripts
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer, parse_tool_calls
from composer_replication.traces.store import trace_to_json
from composer_replication.types import Message, StopReason, Trajectory, Turn, to_json
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Trace, TraceTurn

OPENING = (Message(role="user", content="do it"),)
PROMPT = RENDERER.prompt_ids(OPENING)
IDS = st.lists(st.integers(0, 260), max_size=6).map(tuple)


def raw(turns):
    return Trajectory(
        trajectory_id="r",
        task_id="t",
        policy_version=0,
        messages=OPENING,
        tools=(),
        prompt_ids=PROMPT,
        turns=tuple(Turn(action_ids=a, logprobs=(0.0,) * len(a), text="", observation_ids=o) for a, o in turns),
        stop_reason=StopReason.MAX_TURNS,
        temperature=1.0,
        reward=0.0,
    )


@given(st.lists(st.tuples(IDS, IDS, st.one_of(st.none(), st.floats(0, 1))), max_size=6))
def test_labels_stand_at_the_last_sampled_token_of_their_turn_and_nowhere_else(turns):
    """Whatever was sampled: ids that no text encodes to, cut turns, empty ones."""
    whole = raw([(a, o) for a, o, _ in turns])
    labels = {i: label for i, (a, _, label) in enumerate(turns) if a and label is not None}
    examples = encode(whole, RENDERER, labels)
    sampled = [i for i, (a, _, _) in enumerate(turns) if a]
    if not sampled:
        assert examples == []
        return
    (example,) = examples
    assert [step.turn for step in example.steps] == sampled
    expected = [IGNORED] * len(example.input_ids)
    for step in example.steps:
        before = whole.context_ids(step.turn) + whole.turns[step.turn].action_ids
        assert example.input_ids[: step.end + 1] == before
        if step.turn in labels:
            expected[len(before) - 1] = labels[step.turn]
    assert example.labels() == expected
    assert len(example.input_ids) == example.steps[-1].end + 1


def test_a_foreign_trace_is_written_as_the_policy_would_have_been_read():
    ours = trajectory("0/t/0", "t", ["a.py", "b.py"])
    messages, turns = [*ours.messages], []
    for i, turn in enumerate(ours.turns):
        _, calls = parse_tool_calls(turn.text, turn=i)
        turns.append(TraceTurn(context=tuple(messages), text="", tool_calls=calls))
        wire = [
            {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in calls
        ]
        messages.append(Message(role="assistant", content="", tool_calls=wire))
        messages.append(Message(role="tool", content=calls[0].arguments["path"][0]))
    trace = Trace(trajectory_id="0/t/0", format="test", turns=tuple(turns), task_id="t")
    assert encode(trace, RENDERER, {1: 0.0}) == encode(ours, RENDERER, {1: 0.0})


def test_a_context_that_was_rewritten_begins_an_example_of_its_own():
    def turn(*context):
        return TraceTurn(context=tuple(context), text="yes", tool_calls=())

    user, answer = Message(role="user", content="go"), Message(role="assistant", content="yes")
    more, summary = Message(role="user", content="more"), Message(role="user", content="so far: went")
    trace = Trace(trajectory_id="x", format="test", turns=(turn(user), turn(user, answer, more), turn(summary)))
    first, second = encode(trace, RENDERER, {2: 1.0})
    assert [s.turn for s in first.steps] == [0, 1]
    assert first.labels() == [IGNORED] * len(first.input_ids)
    assert [(s.turn, s.label) for s in second.steps] == [(2, 1.0)]
    assert second.input_ids == RENDERER.prompt_ids([summary]) + RENDERER.assistant_ids(answer)


def test_a_transcript_that_names_no_task_is_a_task_of_its_own():
    found = [*encode(trajectory("x", "", ["a"]), RENDERER), *encode(trajectory("y", "", ["a"]), RENDERER)]
    assert [e.task_id for e in found] == ["x", "y"]
    assert len(held_out_tasks([e.task_id for e in found], 0.5)) == 1


def test_ids_of_another_tokenizer_are_refused():
    other = ChatRenderer(byte_level_tokenizer(["read the file " * 20], vocab_size=270))
    with pytest.raises(ConfigError, match="0/t/0: its token ids are those of another tokenizer"):
        encode(trajectory("0/t/0", "read the file", ["a"]), other)


@pytest.mark.parametrize(("labels", "said"), [({2: 1.0}, "turn 2"), ({-1: 1.0}, "turn -1"), ({0: 1.5}, "turn 0 is 1.5")])
def test_labels_that_mean_nothing_are_refused(labels, said):
    with pytest.raises(ConfigError, match=said):
        encode(trajectory("0/t/0", "t", ["a", "b"]), RENDERER, labels)


def test_a_turn_that_sampled_nothing_has_no_label():
    with pytest.raises(ConfigError, match="turn 0"):
        encode(raw([((), (7,)), ((8,), ())]), RENDERER, {0: 1.0})


def test_what_is_too_long_is_cut_after_a_step_and_counted():
    (example,) = encode(trajectory("0/t/0", "t", ["a", "b", "a"]), RENDERER, {0: 1.0, 2: 0.0})
    second = example.steps[1].end
    ((cut,), dropped) = fit([example], second + 1)
    assert dropped == 1
    assert cut.input_ids == example.input_ids[: second + 1]
    assert cut.steps == example.steps[:2]
    assert fit([example], example.steps[0].end) == ([], 3)


@given(st.lists(st.text(max_size=3), min_size=2, unique=True, max_size=30), st.floats(0.01, 0.99), st.integers(0, 9))
def test_a_share_of_the_tasks_is_held_out(tasks, share, seed):
    held_out = held_out_tasks(tasks, share, seed=seed)
    assert held_out < set(tasks)
    assert len(held_out) == min(len(tasks) - 1, max(1, round(share * len(tasks))))
    assert held_out == held_out_tasks([*reversed(tasks), *tasks], share, seed=seed)


@pytest.mark.parametrize(("tasks", "share"), [([], 0.2), (["a", "a"], 0.2), (["a", "b"], 0.0), (["a", "b"], 1.0)])
def test_no_split_is_an_error(tasks, share):
    with pytest.raises(ConfigError):
        held_out_tasks(tasks, share)


def test_trajectories_are_read_back(tmp_path):
    found, _ = corpus(tasks=2)
    path = tmp_path / "t.jsonl"
    trace = Trace(trajectory_id="x", format="test", turns=(TraceTurn(context=OPENING, text="yes"),), messages=OPENING)
    path.write_text("".join(json.dumps(line) + "\n" for line in (*map(to_json, found), trace_to_json(trace))))
    assert read_transcripts(path) == [*found, trace]


def test_bad_files_are_named(tmp_path):
    path = tmp_path / "t.jsonl"
    with pytest.raises(ConfigError, match="there is no file"):
        read_transcripts(path)
    path.write_text("")
    with pytest.raises(ConfigError, match="holds no trajectory"):
        read_transcripts(path)
    line = json.dumps(to_json(trajectory("0/t/0", "t", ["a"]))) + "\n"
    path.write_text(line + line)
    with pytest.raises(ConfigError, match="line 2: '0/t/0' is there already"):
        read_transcripts(path)
    for broken in ("{}", "3", '{"turns": [1]}'):
        path.write_text(line + broken + "\n")
        with pytest.raises(ConfigError, match="line 2: no trajectory or trace"):
            read_transcripts(path)
