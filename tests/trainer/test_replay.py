"""Preference pairs: only what the sandbox confirms is kept, and what was kept is read round and round."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import composer_here
from teacher_server import Reply, TeacherServer
from transformers import GPT2Config, GPT2LMHeadModel
from world import World, finish, name_teachers

from composer_replication.config import RunConfig
from composer_replication.envs.coding import CodingEnv
from composer_replication.envs.oracle import call_turn as call
from composer_replication.loss.forward.models import save_policy
from composer_replication.observe import RunDir
from composer_replication.observe.curves import families
from composer_replication.observe.excerpt import excerpt
from composer_replication.quickstart.language import project_path
from composer_replication.quickstart.policy import tiny_tokenizer
from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.store import Task
from composer_replication.teachers import TeacherAnswer
from composer_replication.traces import states_from_trajectories
from composer_replication.trainer.pairs.held import pairs_of_step, turns_to_hold
from composer_replication.trainer.pairs.replay import verify_pair
from composer_replication.types import (
    GradeReport,
    Message,
    Pair,
    StopReason,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Unscored,
    to_json,
)
from composer_replication.types.errors import SandboxError

OLD, WRONG = "raise NotImplementedError", "return -12345"
SEARCH = call("search", pattern="NotImplementedError")


@pytest.fixture(scope="module")
def task(world: World) -> Task:
    return load_tasks(world.tasks)[0]


@pytest.fixture
def env(task: Task) -> CodingEnv:
    return CodingEnv(task, sandbox=open_sandbox(), python=Path(sys.executable))


def solution(task: Task) -> str:
    """The deleted function's own return statement."""
    deleted = task.spec.deleted[0]
    tree = ast.parse((project_path("harbour") / deleted.path).read_text())
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == deleted.qualname)
    return ast.unparse(function.body[-1])


def edit(task: Task, new: str, old: str = OLD) -> Message:
    return call("edit_file", path=task.spec.deleted[0].path, old=old, new=new)


def recorded(env: CodingEnv, *actions: Message) -> Trajectory:
    """What the student did, with the environment's real answers."""
    messages = env.reset()
    turns = []
    for index, action in enumerate(actions):
        function = action["tool_calls"][0]["function"]
        made = ToolCall(call_id=f"call_{index}_0", name=function["name"], arguments=function["arguments"])
        turns.append(
            Turn(action_ids=(1,), logprobs=(0.0,), text="", tool_calls=(made,), results=(env.step(made),), observation_ids=(2,))
        )
    return Trajectory(
        trajectory_id="t", task_id=env.task_id, policy_version=0, messages=messages, tools=env.tools, prompt_ids=(1,),
        turns=tuple(turns), stop_reason=StopReason.SUBMITTED, temperature=1.0, reward=0.0,
    )  # fmt: skip


def test_an_edit_is_confirmed_when_the_tests_pass(env: CodingEnv, task: Task) -> None:
    student = recorded(env, SEARCH, edit(task, WRONG))
    assert verify_pair(env, student, 1, edit(task, solution(task))) is None
    assert verify_pair(env, student, 1, edit(task, WRONG)) == "the tests do not pass after the chosen action"
    assert verify_pair(env, student, 1, edit(task, solution(task), old="not there")) == "the chosen action cannot be carried out"
    assert verify_pair(env, student, 1, Message(role="assistant", content="Done.")) == "the chosen action is no tool call"


def test_a_right_action_of_the_students_is_not_rejected(env: CodingEnv, task: Task) -> None:
    """Both bring the feature back; to prefer one would teach against the other."""
    student = recorded(env, SEARCH, edit(task, f"_ = 0\n    {solution(task)}"))
    assert verify_pair(env, student, 1, edit(task, solution(task))) == "the tests pass after the student's own action too"


def test_it_is_judged_where_the_student_stood(env: CodingEnv, task: Task) -> None:
    """After the student's wrong edit the old text is gone, so the right edit no longer applies there."""
    student = recorded(env, SEARCH, edit(task, WRONG), call("run_tests"))
    assert verify_pair(env, student, 2, edit(task, solution(task))) == "the chosen action cannot be carried out"
    assert verify_pair(env, student, 2, edit(task, solution(task), old=WRONG)) is None


def test_what_the_shell_changes_is_judged_by_the_tests(task: Task) -> None:
    env = CodingEnv(task, sandbox=open_sandbox(), python=Path(sys.executable), toolset="shell")
    path, failed = task.spec.deleted[0].path, recorded(env, call("search"))
    patch = f"*** Begin Patch\n*** Update File: {path}\n@@\n-    {OLD}\n+    {{}}\n*** End Patch"
    for worse in (call("bash", command=f"echo broken > {path}"), call("apply_patch", patch=patch.format(WRONG))):
        assert verify_pair(env, failed, 0, worse) == "the tests do not pass after the chosen action"
    assert verify_pair(env, failed, 0, call("apply_patch", patch=patch.format(solution(task)))) is None
    assert verify_pair(env, failed, 0, call("bash", command="ls")) is None
    solved = recorded(env, call("bash", command=f"sed -i 's/{OLD}/{solution(task)}/' {path}"))
    assert verify_pair(env, solved, 0, edit(task, solution(task))) == "the tests pass after the student's own action too"


def test_a_submission_is_judged_by_the_tests(env: CodingEnv, task: Task) -> None:
    """Also where the student's own action failed: doing nothing and submitting is no better."""
    refused = "the tests do not pass after the chosen action"
    assert verify_pair(env, recorded(env, call("search")), 0, call("submit")) == refused
    student = recorded(env, edit(task, solution(task)), call("search"))
    assert verify_pair(env, student, 1, call("submit")) is None


def test_nothing_can_follow_a_submission(env: CodingEnv) -> None:
    both = call("submit")
    both["tool_calls"] = [*both["tool_calls"], *call("list_files")["tool_calls"]]
    assert verify_pair(env, recorded(env, SEARCH), 0, both) == "the chosen action goes on after it has submitted"


def test_what_the_student_did_not_get_to_is_not_carried_out(env: CodingEnv, task: Task) -> None:
    """A call behind its submission was parsed and never made."""
    student = recorded(env, SEARCH, edit(task, WRONG), call("submit"))
    last = student.turns[-1]
    beyond = replace(last, tool_calls=(*last.tool_calls, ToolCall(call_id="x", name="list_files", arguments={})))
    student = replace(student, turns=(*student.turns[:-1], beyond))
    assert verify_pair(env, student, 2, edit(task, solution(task), old=WRONG)) is None


def test_a_verdict_that_cannot_be_had_is_no_verdict(env: CodingEnv, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    student = recorded(env, SEARCH, edit(task, WRONG))
    report = GradeReport(reward=Unscored("the box broke"), outcomes={}, reasons=("the box broke",), isolation="")
    monkeypatch.setattr(env, "grade", lambda: report)
    with pytest.raises(SandboxError, match="a pair could not be verified: the box broke"):
        verify_pair(env, student, 1, edit(task, solution(task)))


def test_looking_is_confirmed_only_where_the_student_failed(env: CodingEnv, task: Task) -> None:
    failed = recorded(env, call("search"))
    assert failed.turns[0].results[0].status == "invalid_arguments"
    assert verify_pair(env, failed, 0, SEARCH) is None
    assert verify_pair(env, recorded(env, SEARCH), 0, call("list_files")) == "nothing shows that the chosen action is better"


def test_every_step_takes_the_next_pairs() -> None:
    pairs = [Pair(pair_id=str(i), prompt_ids=(1,), chosen_ids=(2,), rejected_ids=(3,)) for i in range(5)]
    taken = [[p.pair_id for p in pairs_of_step(pairs, step, 2)] for step in (1, 2, 3)]
    assert taken == [["0", "1"], ["2", "3"], ["4", "0"]]
    assert len(pairs_of_step(pairs, 7, 9)) == 5
    assert pairs_of_step([], 1, 4) == []


def test_every_step_takes_turns_to_hold_in_proportion() -> None:
    answers = [Pair(pair_id=str(i), prompt_ids=(1,), chosen_ids=(2,), rejected_ids=(3,)) for i in range(4)]
    held = [Pair(pair_id=f"h{i}", prompt_ids=(1,), chosen_ids=(2,), rejected_ids=()) for i in range(6)]
    taken = [[p.pair_id for p in pairs_of_step([*answers, *held], step, 2)] for step in (1, 2, 3)]
    assert taken == [["0", "1", "h0", "h1", "h2"], ["2", "3", "h3", "h4", "h5"], ["0", "1", "h0", "h1", "h2"]]
    few = [[p.pair_id for p in pairs_of_step([*answers, *held[:2]], step, 1)] for step in (1, 2, 3, 4, 5)]
    assert few == [["0"], ["1", "h0"], ["2"], ["3", "h1"], ["0"]], "half a turn to each pair"


def _refused(turn: Turn) -> tuple[ToolResult, ...]:
    return tuple(replace(result, status="path_not_found") for result in turn.results)


@pytest.mark.parametrize(("options", "count"), [({}, 2), ({"held_turns": 0}, 0), ({"held_turns": 2}, 3), ({"variant": "dpo"}, 0)])
def test_turns_to_hold_are_the_other_turns_of_traces_with_pairs(env: CodingEnv, options: dict[str, Any], count: int) -> None:
    config = RunConfig.model_validate(
        {"name": "r", "steps": 1, "model": {"path": "m"}, "tasks": {"train": "t"}, "loss": {"replay": options}}
    )
    trace = recorded(env, SEARCH, SEARCH, SEARCH, SEARCH, SEARCH)
    trace = replace(trace, turns=tuple(replace(turn, action_ids=(i + 3,)) for i, turn in enumerate(trace.turns)))
    pairs = [
        Pair(
            pair_id=f"t#{i}",
            prompt_ids=trace.context_ids(i),
            chosen_ids=(9,),
            rejected_ids=trace.turns[i].action_ids,
            confidence=confidence,
        )
        for i, confidence in ((1, 0.5), (3, 1.0))
    ]
    held = list(turns_to_hold(pairs, [trace, replace(trace, trajectory_id="without pairs")], config))
    numbers = [int(pair.pair_id.removeprefix("t#")) for pair in held]
    assert len(numbers) == len(set(numbers)) == count
    assert set(numbers) <= {0, 2, 4}
    wrong = replace(
        trace, turns=tuple(replace(turn, results=_refused(turn)) if i == 0 else turn for i, turn in enumerate(trace.turns))
    )
    some = [pair.pair_id for pair in turns_to_hold(pairs, [wrong], config, {"t#2"})]
    assert set(some) <= {"t#4"}, "the policy is not held to what failed, or to what teachers would not have done"
    for number, pair in zip(numbers, held, strict=True):
        assert (pair.prompt_ids, pair.chosen_ids) == (trace.context_ids(number), trace.turns[number].action_ids)
        assert (pair.rejected_ids, pair.confidence) == ((), 0.75)


@pytest.mark.slow
def test_frozen_traces_and_evaluations_are_kept_and_shown(run_file: Path) -> None:
    """The report's pairs stand at turns of the traces they were made of; going on writes nothing anew."""
    with TeacherServer(lambda _body, _number: Reply(calls=[("list_files", {})])) as server:
        name_teachers(run_file, server.base_url)
        finish("train", str(run_file), "--steps", "1", cwd=run_file.parent)
    run = RunDir(run_file.parent / "runs" / "run")
    traces = run.read_traces("main")
    turns = {(t.trajectory_id, i) for t in traces for i in range(len(t.turns))}
    pairs = run.read_pairs("main")
    assert {t.trajectory_id.split("/")[0] for t in traces} == {"-2"}
    assert len({t.trajectory_id for t in traces}) == len(traces)
    assert pairs
    assert {(p["trajectory_id"], p["turn"]) for p in pairs} <= turns
    assert run.evaluations("main") == (0, 1)
    assert {t.policy_version for t in run.read_evaluation("main", 1)} == {1}
    (arm,) = excerpt(run)["arms"]
    assert arm["traces"]["recorded"] == len(arm["traces"]["trajectories"]) == len(traces)
    assert [(part["step"], part["recorded"]) for part in arm["evaluations"]] == [(0, 4), (1, 4)]
    files = {p: p.read_bytes() for p in run.traces_path("main").parent.iterdir()}
    finish("train", str(run_file), "--steps", "1", "--resume", cwd=run_file.parent)
    assert {p: p.read_bytes() for p in run.traces_path("main").parent.iterdir()} == files


@pytest.mark.slow
def test_pairs_longer_than_the_context_window_are_left_out(run_file: Path, tmp_path: Path) -> None:
    """A model with learned positions has none beyond it; a teacher writes as much as it likes."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=700, n_embd=32, n_layer=1, n_head=2, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    save_policy(GPT2LMHeadModel(config), tokenizer, tmp_path / "gpt2")

    asked: dict[str, str] = {}

    def answer(body: dict[str, Any], _number: int) -> Reply:
        state = str(body["messages"][1:])
        return Reply(calls=[("search", {"pattern": "wide " * 800 if asked.setdefault("first", state) == state else "narrow"})])

    with TeacherServer(answer) as server:
        name_teachers(run_file, server.base_url)
        output = finish("train", str(run_file), "--steps", "1", "--model.path", str(tmp_path / "gpt2"), cwd=tmp_path)
    assert "1 longer than the context window" in output
    assert {"wide" in p["chosen"] for p in RunDir(tmp_path / "runs" / "run").read_pairs("main")} == {False}


@pytest.mark.slow
@pytest.mark.long
def test_what_teachers_cost_is_in_note_metrics_terminal_and_report(run_file: Path) -> None:
    """Also when every answer was bought by an earlier attempt."""
    with TeacherServer(
        lambda body, _number: Reply(calls=[("list_files", {})], cost=0.01 if body["model"] == "one" else 0.02)
    ) as server:
        name_teachers(run_file, server.base_url, usd_per_million_output=20.0, max_total_usd=50.0)
        finish("train", str(run_file), "--steps", "1", cwd=run_file.parent)
        run = RunDir(run_file.parent / "runs" / "run")
        shutil.rmtree(run.ckpt_path / "main" / "step_00001")
        shutil.rmtree(run.ckpt_path / "main" / "step_00000")
        asked = len(server.requests)
        output = finish("train", str(run_file), "--steps", "1", "--resume", cwd=run_file.parent)
        assert len(server.requests) == asked
    one = 0.01 * sum(body["model"] == "one" for body in server.requests)
    last = run.read_metrics()[-1].values
    spent = {name: last[name] for name in last if name.startswith("cost/usd")}
    assert spent == {
        "cost/usd": pytest.approx(3 * one),
        "cost/usd/one": pytest.approx(one),
        "cost/usd/other": pytest.approx(2 * one),
    }
    assert f"teachers have cost ${3 * one:.4f} so far (one ${one:.4f}, other ${2 * one:.4f})" in output
    assert f"  ${3 * one:.2f}" in next(line for line in output.splitlines() if line.startswith("main 1/1"))
    (cost,) = [family for family in families(run.read_metrics(), run.arms()) if family["title"] == "Cost"]
    assert {p["title"]: p["unit"] for p in cost["panels"] if "usd" in p["title"]} == dict.fromkeys(spent, "US dollars")


def test_extract_carries_edits_out_where_the_student_stood(env: CodingEnv, task: Task, world: World, tmp_path: Path) -> None:
    """Two edits that leave the same file, written differently, against one that fails the tests: no text tells."""
    student = recorded(env, SEARCH, edit(task, WRONG))
    state = states_from_trajectories([student])[1]
    assert state["task_id"] == task.spec.task_id
    right = edit(task, solution(task)), edit(task, f"    {solution(task)}", old=f"    {OLD}")
    answers = [
        TeacherAnswer(
            question_id=state["state_id"],
            teacher=name,
            family=name,
            tool_calls=(ToolCall(call_id="1", name="edit_file", arguments=one["tool_calls"][0]["function"]["arguments"]),),
        )
        for name, one in zip("ab", right, strict=True)
    ]
    broken = {"id": "b", "type": "function", "function": {"name": "edit_file", "arguments": '{"path": '}}
    state["messages"] = [*state["messages"], {"role": "assistant", "content": "", "tool_calls": [broken]}]  # of a foreign log
    (tmp_path / "states.jsonl").write_text(json.dumps(to_json(state)) + "\n")
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(to_json(answer)) + "\n" for answer in answers))
    words = ["pairs", "extract", tmp_path / "states.jsonl", tmp_path / "answers.jsonl", "--out", tmp_path / "pairs.jsonl"]
    alone = composer_here(*words)
    assert alone.returncode == 9, alone.stdout
    found = composer_here(*words, "--tasks", world.tasks)
    assert found.returncode == 0, found.stdout + found.stderr
    (pair,) = map(json.loads, (tmp_path / "pairs.jsonl").read_text().splitlines())
    assert solution(task) in pair["chosen"]
    assert WRONG in pair["rejected"]
    elsewhere = composer_here(*words, "--tasks", world.held_out)
    assert elsewhere.returncode == 9
    assert "1 of 1 states are of no task in" in elsewhere.stderr
