"""Our own trajectories as traces: nothing is lost, token ids and log-probs least of all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_traces import write_jsonl

from composer_replication.observe import RunDir
from composer_replication.traces import (
    atif_from_trace,
    import_traces,
    read_traces,
    states_from_traces,
    states_from_trajectories,
    trace_from_trajectory,
    write_traces,
)
from composer_replication.types import Message, StopReason, ToolCall, ToolResult, Trajectory, Turn, Unscored, to_json

CALL = ToolCall(call_id="call_0_0", name="read_file", arguments={"path": "a.py"})
TRAJECTORY = Trajectory(
    trajectory_id="3/shop/0",
    task_id="shop",
    policy_version=3,
    messages=(Message(role="system", content="s"), Message(role="user", content="u")),
    tools=({"type": "function", "function": {"name": "read_file", "description": "", "parameters": {"type": "object"}}},),
    prompt_ids=(1, 2, 3),
    turns=(
        Turn(
            action_ids=(4, 5),
            logprobs=(-0.25, -0.5),
            text='Look.<tool_call>{"name": "read_file", "arguments": {"path": "a.py"}}</tool_call>',
            tool_calls=(CALL,),
            results=(ToolResult(call_id="call_0_0", name="read_file", content="x = 1", details={"lines": 1}),),
            observation_ids=(6,),
        ),
        Turn(action_ids=(7,), logprobs=(-1.0,), text="Done."),
    ),
    stop_reason=StopReason.NO_TOOL_CALL,
    temperature=1.0,
    reward=1.0,
    arm="full",
)


def test_states_are_those_of_the_trajectory():
    assert states_from_traces([trace_from_trajectory(TRAJECTORY)]) == states_from_trajectories([TRAJECTORY])


def test_our_own_contexts_are_exact_also_where_a_call_has_no_result():
    asked = replace(TRAJECTORY.turns[0], results=())
    assert len(states_from_trajectories([replace(TRAJECTORY, turns=(asked, TRAJECTORY.turns[1]))])) == 2


def test_a_run_directory_is_read_whole(tmp_path):
    run = RunDir.create(tmp_path / "run")
    run.write_trajectories(
        "full", 3, [TRAJECTORY, replace(TRAJECTORY, trajectory_id="3/shop/1", reward=Unscored("the box broke"))]
    )
    run.write_evaluation("full", 3, [TRAJECTORY])
    run.write_reattempts("full", 3, [TRAJECTORY])  # its policy had read a hint, and its context has none: no trace
    run.write_traces("full", [TRAJECTORY])
    done = import_traces(tmp_path / "run", tmp_path / "out")
    assert (done.problems, done.traces, done.turns) == ([], {"composer": 4}, {"composer": 8})
    traces = {t.trajectory_id: t for t in read_traces(tmp_path / "out" / "traces.jsonl")}
    assert set(traces) == {
        "full/eval_00003/3/shop/0",
        "full/step_00003/3/shop/0",
        "full/step_00003/3/shop/1",
        "full/traces/3/shop/0",
    }
    assert traces["full/step_00003/3/shop/1"].reward == Unscored("the box broke")
    trace = traces["full/step_00003/3/shop/0"]
    assert trace.turns[0].details["token_ids"] == [4, 5]
    assert trace.turns[0].text == "Look."
    assert trace.details["prompt_ids"] == [1, 2, 3]
    step = atif_from_trace(trace)["steps"][2]
    assert step["metrics"] == {"completion_token_ids": [4, 5], "logprobs": [-0.25, -0.5]}


@pytest.mark.parametrize("kind", ["trajectories", "traces"])
def test_files_of_lines(tmp_path, kind):
    path = tmp_path / "t.jsonl"
    if kind == "traces":
        write_traces(path, [trace_from_trajectory(TRAJECTORY)])
    else:
        write_jsonl(path, [to_json(TRAJECTORY)])
    import_traces(path, tmp_path / "out")
    assert list(read_traces(tmp_path / "out" / "traces.jsonl")) == [trace_from_trajectory(TRAJECTORY)]


def test_a_turn_in_which_nothing_was_sampled_is_no_state():
    empty = Turn(action_ids=(), logprobs=(), text="")
    assert len(states_from_trajectories([replace(TRAJECTORY, turns=(*TRAJECTORY.turns, empty))])) == 2
