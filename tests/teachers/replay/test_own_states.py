from __future__ import annotations

import dataclasses

import pytest
from trajectories import TOOLS, bad, call, ok, renderer, trajectory

from composer_replication.teacher_replay import DPOPair, pairs_to_token_pairs
from composer_replication.traces import states_from_trajectories
from composer_replication.types.errors import ConfigError

READ = '{"name": "read_file", "arguments": {"path": "a.py"}}'


def sample():
    return trajectory(
        ("Let me look.\n" + call("read_file", path="a.py"), ok("x = 1\n")),
        ("<tool_call>{oops</tool_call>", bad("malformed_call", "no JSON")),
        (call("run_tests") + call("submit"), ok("passed"), ok("bye")),
        ("All done.",),
    )


def test_states_hold_the_exact_prefix():
    t = sample()
    states = states_from_trajectories([t])
    assert [s["state_id"] for s in states] == [f"0/t0/0#{i}" for i in range(4)]
    assert [s["student_action"] for s in states] == [
        READ,
        "<tool_call>{oops</tool_call>",
        '{"name": "run_tests", "arguments": {}}\n{"name": "submit", "arguments": {}}',
        "All done.",
    ]
    opening = [dict(m) for m in t.messages]
    first = {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [{"id": "call_0_0", "type": "function", "function": {"name": "read_file", "arguments": {"path": "a.py"}}}],
    }
    result = {"role": "tool", "content": "x = 1\n", "tool_call_id": "call_0_0", "name": "read_file"}
    assert states[0]["messages"] == opening
    assert states[1]["messages"] == [*opening, first, result]
    assert states[2]["messages"][-2] == {"role": "assistant", "content": "<tool_call>{oops</tool_call>"}
    assert [m["role"] for m in states[3]["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "tool",
    ]
    assert "student_tool_calls" not in states[1]
    assert states[0]["student_tool_calls"] == first["tool_calls"]
    assert states[0]["tools"] == list(TOOLS)
    assert (states[2]["task_id"], states[2]["trajectory_id"], states[2]["turn"]) == ("t0", "0/t0/0", 2)


def test_states_of_well_formed_turns_render_to_what_the_policy_saw():
    t = trajectory(("Look.\n" + call("read_file", path="a.py"), ok("x = 1\n")), (call("submit"), ok("bye")))
    for index, state in enumerate(states_from_trajectories([t])):
        rendered = renderer().template.decode(renderer().prompt_ids(state["messages"], TOOLS))
        seen = renderer().template.decode(t.context_ids(index))
        assert rendered.replace("\n", "") == seen.replace("\n", "")


def test_turn_without_tokens_is_no_state():
    t = sample()
    silent = dataclasses.replace(t, turns=(*t.turns[:-1], dataclasses.replace(t.turns[-1], action_ids=(), logprobs=(), text="")))
    assert len(states_from_trajectories([silent])) == 3


def pair(state_id, chosen):
    return DPOPair(state_id=state_id, state_messages=[], chosen=chosen, rejected="whatever", n_teachers_agreeing=2)


def test_token_pairs_keep_the_policys_own_ids():
    t = sample()
    (made,) = pairs_to_token_pairs([pair("0/t0/0#2", READ)], [t], renderer())
    assert made.prompt_ids == t.context_ids(2)
    assert made.rejected_ids == t.turns[2].action_ids
    assert made.chosen_ids[-1] == renderer().end_of_turn_id
    assert renderer().decode(made.chosen_ids).strip() == renderer().template.decode(
        renderer().template.encode(call("read_file", path="a.py"))
    )
    (said,) = pairs_to_token_pairs([pair("0/t0/0#0", "Stop here.")], [t], renderer())
    assert renderer().decode(said.chosen_ids) == "Stop here."


def test_pair_of_another_trace_is_refused():
    with pytest.raises(ConfigError, match="not a turn of these trajectories"):
        pairs_to_token_pairs([pair("elsewhere#0", READ)], [sample()], renderer())
