"""`composer rollout` of a model behind an endpoint: an HTTP server works on training tasks, and `composer sft` learns from what
passes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from in_process import composer_here
from teacher_server import Reply, TeacherServer
from test_sft import SFT, nll, of, sources, with_budgets
from test_teacher_engine import solution
from world import World, finish

import composer_replication
from composer_replication.envs import oracle_script
from composer_replication.envs.coding import opening
from composer_replication.loss.forward.models import load_to_sample
from composer_replication.observe import RunDir
from composer_replication.tasks import load_tasks
from composer_replication.tasks.store import Task
from composer_replication.tokens import ChatRenderer
from composer_replication.traces.own import trace_from_trajectory
from composer_replication.traces.store import write_traces
from composer_replication.trainer.journal import DATA
from composer_replication.types import Group, Trajectory, Unscored, from_json

NEEDED = ("teachers", "model", "out", "max-usd")


def task_of(body: dict[str, Any], tasks: Sequence[Task]) -> Task:
    """The task that a conversation begins with."""
    begun = [message["content"] for message in body["messages"][:2]]
    (task,) = [task for task in tasks if [message["content"] for message in opening(task)] == begun]
    return task


def expert(tasks: Sequence[Task], *, gives_up: Task | None = None) -> Callable[[dict[str, Any], int], Reply]:
    """Speaks the tasks' solutions, but submits one of them untouched."""

    def answer(body: dict[str, Any], _number: int) -> Reply:
        task = task_of(body, tasks)
        return Reply(content="", calls=[("submit", {})]) if task is gives_up else solution(body, task)

    return answer


def teachers_file(folder: Path, url: str, **more: object) -> Path:
    row = {"name": "one", "model": "large", "base_url": url, "api_key_env": "", "usd_per_million_input": 0.0, "max_retries": 0}
    path = folder / "teachers.toml"
    path.write_text(tomli_w.dumps({"teachers": [{**row, "usd_per_million_output": 0.0, **more}]}))
    return path


def call(world: World, teachers: Path, /, **changed: str | None) -> list[str]:
    """The words of the command, with some options changed, or left out where they are None."""
    known = {"policy": "teacher:one", "teachers": str(teachers), "model": str(world.policy), "max-usd": "0", "out": "teacher"}
    options = {"tasks": str(world.tasks), **known, **{name.replace("_", "-"): value for name, value in changed.items()}}
    return ["rollout", *(word for name, value in options.items() if value is not None for word in (f"--{name}", value))]


def written(folder: Path) -> list[Trajectory]:
    lines = (folder / "teacher" / "trajectories.jsonl").read_text().splitlines()
    return [from_json(Trajectory, json.loads(line)) for line in lines]


@pytest.mark.slow
def test_the_student_learns_from_what_a_teacher_passes(run_file: Path, world: World) -> None:
    folder, tasks = run_file.parent, load_tasks(world.tasks)
    with TeacherServer(expert(tasks, gives_up=tasks[0])) as server:
        words = call(world, teachers_file(folder, server.base_url))
        done = composer_here(*words, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert "ledger.sqlite has $0.0000 in it" in done.stdout
        asked, first = len(server.requests), written(folder)
        said = [(one.trajectory_id, one.prompt_ids, one.turns) for one in first]
        assert {body["model"] for body in server.requests} == {"large"}
        assert {body["temperature"] for body in server.requests} == {1.0}, "it samples as other policies do"
        assert composer_here(*words, cwd=folder).returncode == 0
        assert len(server.requests) == asked, "its answers are in the ledger"
        assert [(one.trajectory_id, one.prompt_ids, one.turns) for one in written(folder)] == said
    assert {one.task_id: one.reward for one in first} == {task.spec.task_id: float(task is not tasks[0]) for task in tasks}
    start, tokenizer = load_to_sample(str(world.policy))
    renderer = ChatRenderer(tokenizer)
    assert [one.prompt_ids for one in first] == [renderer.prompt_ids(one.messages, one.tools) for one in first]

    passed = [one for one in first if one.passed]
    log = replace(trace_from_trajectory(passed[0]), trajectory_id="log", task_id="elsewhere", reward=None)
    write_traces(folder / "log.jsonl", [log])
    with_budgets(run_file)
    traces = '["teacher/trajectories.jsonl", "log.jsonl"]'
    finish("sft", str(run_file), *SFT, "--sft.oracle", "false", "--sft.batch", "4", "--sft.traces", traces, cwd=folder)
    run = RunDir(folder / "runs" / "run" / "sft")
    told, unknown = [event["message"] for event in run.read_events() if event["kind"] == DATA]
    assert told.startswith("4 demonstrations (")
    for part in ("1 trajectories.jsonl: failed", "3 trajectories.jsonl", "1 log.jsonl, of unknown outcome"):
        assert part in told
    assert unknown.startswith("demonstrations from logs that do not say how they ended: 1 of 4; they are learnt from as if")
    assert f"- {unknown}" in (run.ckpt_path / "main" / "README.md").read_text()

    learnt = run.read_trajectories("main", 1)
    ids = [one.context_ids(len(one.turns)) for one in learnt]
    assert sorted(ids) == sorted(one.context_ids(len(one.turns)) for one in [*passed, passed[0]])
    losses = [nll(start, one) for one in learnt]
    (step,) = [line.values for line in run.read_metrics() if line.step == 1]
    assert step["lm_ce/loss"] == pytest.approx(sum(loss for loss, _ in losses) / sum(tokens for _, tokens in losses), rel=1e-4)


@pytest.mark.slow
def test_a_cap_ends_it_and_a_higher_one_goes_on(run_file: Path, world: World) -> None:
    folder, tasks = run_file.parent, load_tasks(world.tasks)
    turns = sum(len(oracle_script(task)) for task in tasks)
    with TeacherServer(expert(tasks)) as server:
        teachers = teachers_file(folder, server.base_url, usd_per_million_output=1e6)
        done = composer_here(*call(world, teachers, max_usd="4096"), cwd=folder)
        assert done.returncode == 6
        assert "no call fits under the cap of $4096.0" in done.stderr
        assert 0 < len(server.requests) < turns
        done = composer_here(*call(world, teachers, max_usd="1e6"), cwd=folder)
        assert done.returncode == 0, done.stderr
        assert len(server.requests) == turns, "nothing was asked twice"
    assert all(one.passed for one in written(folder))


@pytest.mark.slow
def test_a_rollout_that_broke_off_is_asked_for_again_and_teaches_nothing(run_file: Path, world: World) -> None:
    folder, tasks = run_file.parent, load_tasks(world.tasks)
    refused = [True]

    def answer(body: dict[str, Any], number: int) -> Reply:
        begun = any(message["role"] == "assistant" for message in body["messages"])
        if refused[0] and begun and task_of(body, tasks) is tasks[0]:
            return Reply(status=400)
        return expert(tasks)(body, number)

    async def roll_out(*_: object) -> list[Group]:
        raise AssertionError("nothing is to be rolled out")

    with TeacherServer(answer) as server:
        words = call(world, teachers_file(folder, server.base_url))
        done = composer_here(*words, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert f"unscored on {tasks[0].spec.task_id}, for one: one did not answer: " in done.stdout
        (broken,) = [one for one in written(folder) if isinstance(one.reward, Unscored)]
        assert broken.num_sampled_tokens() > 0
        traces = f'["{folder / "teacher" / "trajectories.jsonl"}"]'
        from_file = sources(of(run_file, "--sft.oracle", "false", "--sft.traces", traces), world)
        from_file.check()
        found = asyncio.run(from_file.gather(roll_out, roll_out, folder / "kept"))
        assert found.counts == {"trajectories.jsonl: not graded": 1, "trajectories.jsonl": len(tasks) - 1}
        assert found.of_unknown_outcome == 0
        before, refused[0] = len(server.requests), False
        assert composer_here(*words, cwd=folder).returncode == 0
        assert len(server.requests) == before + len(oracle_script(tasks[0])) - 1, "the first turn is in the ledger"
    assert all(one.passed for one in written(folder))


@pytest.mark.slow
def test_the_same_from_python(tmp_path: Path, world: World) -> None:
    tasks = load_tasks(world.tasks)[:1]
    with TeacherServer(expert(tasks)) as server:
        asked = {"teachers": teachers_file(tmp_path, server.base_url), "ledger": tmp_path / "ledger.sqlite", "max_usd": 0.0}
        found = composer_replication.rollout(tasks, "teacher:one", model=str(world.policy), group_size=2, **asked)
    assert [one.reward for one in found] == [1.0, 1.0]
    assert len({one.trajectory_id for one in found}) == 2


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        *(({name: None}, "give all of --teachers FILE --model MODEL --out DIR --max-usd X") for name in NEEDED),
        ({"policy": "oracle"}, "oracle is no teacher and reads no --teachers"),
        ({"policy": "teacher:two"}, "no teacher 'two' in "),
        ({"engine": "vllm", "server-url": "http://a:1"}, "teacher:one is asked at its own endpoint"),
        ({"teachers": "nowhere.toml"}, "nowhere.toml: no such file"),
    ],
)
def test_a_teacher_that_cannot_be_asked_is_refused_before_tasks_are_read(
    tmp_path: Path, world: World, changed: dict[str, str | None], told: str
) -> None:
    words = call(world, teachers_file(tmp_path, "http://127.0.0.1:9"), tasks="nowhere", **changed)
    done = composer_here(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert not (tmp_path / "teacher").exists()


def test_a_teacher_without_a_price_is_refused_before_tasks_are_read(tmp_path: Path, world: World) -> None:
    row = {"name": "one", "model": "large", "base_url": "http://127.0.0.1:9", "api_key_env": ""}
    (tmp_path / "teachers.toml").write_text(tomli_w.dumps({"teachers": [row]}))
    done = composer_here(*call(world, tmp_path / "teachers.toml", tasks="nowhere"), cwd=tmp_path)
    assert done.returncode == 2
    assert "has no price, so the cap of $0.0 could not be kept" in done.stderr
