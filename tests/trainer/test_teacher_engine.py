"""`composer eval` of a model behind an endpoint: a real HTTP server that speaks the solutions, or does not answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from harbor_tasks import foreign
from in_process import composer_here
from teacher_server import Reply, TeacherServer
from world import World, name_teachers

from composer_replication.envs import oracle_script
from composer_replication.tasks import load_tasks
from composer_replication.tasks.store import Task
from composer_replication.tokens import byte_level_tokenizer, parse_tool_calls
from composer_replication.trainer.engines.teacher_engine import RememberingRenderer, TeacherTalk
from composer_replication.types import Message, ToolCall

pytestmark = pytest.mark.slow


def asked_about(body: Mapping[str, Any], tasks: Sequence[Task]) -> Task:
    text = json.dumps([message for message in body["messages"] if message["role"] != "assistant"])
    (task,) = [task for task in tasks if all(deleted.qualname in text for deleted in task.spec.deleted)]
    return task


def solution(body: Mapping[str, Any], task: Task) -> Reply:
    """The next turn of the task's solution."""
    said = sum(message["role"] == "assistant" for message in body["messages"])
    turn = oracle_script(task)[said]
    calls = [(call["function"]["name"], dict(call["function"]["arguments"])) for call in turn.get("tool_calls", ())]
    return Reply(content=turn["content"], calls=calls)


def expert(tasks: Sequence[Task]) -> Callable[[dict[str, Any], int], Reply]:
    return lambda body, number: solution(body, asked_about(body, tasks))


def evaluated(run_file: Path, *words: str) -> tuple[int, str, list[dict[str, Any]]]:
    command = ["eval", str(run_file), "--eval.samples", "2", "--policy", "best=teacher:one", "--json", *words]
    done = composer_here(*command, cwd=run_file.parent)
    return done.returncode, done.stderr, json.loads(done.stdout) if done.stdout else []


def test_a_teacher_that_knows_the_solutions_passes_and_is_asked_once(run_file: Path, world: World) -> None:
    tasks = load_tasks(world.held_out)
    with TeacherServer(expert(tasks)) as server:
        name_teachers(run_file, server.base_url)
        code, said, (found,) = evaluated(run_file)
        assert code == 0, said
        assert set(found["pass_rates"]) == {task.spec.task_id for task in tasks}
        assert (found["rollouts"], found["unscored"], found["path"]) == (2 * len(tasks), 0, "teacher:one")
        assert [one["mean"] for one in found["pass_at"]] == [1.0, 1.0]
        assert "the ledger of these evaluations has $0.0000 in it" in said
        turns = 2 * sum(len(oracle_script(task)) for task in tasks)
        assert len(server.requests) == turns
        first = server.requests[0]
        assert first["temperature"] == 1.0, "as the run's policies sample"
        assert {tool["function"]["name"] for tool in first["tools"]} >= {"read_file", "submit"}
        last = max(server.requests, key=lambda body: len(body["messages"]))
        roles = [message["role"] for message in last["messages"]]
        assert roles[-2:] == ["assistant", "tool"]
        calls = [message["tool_calls"][0]["id"] for message in last["messages"] if message.get("tool_calls")]
        answers = [message["tool_call_id"] for message in last["messages"] if message["role"] == "tool"]
        assert calls == answers
        for part in (run_file.parent / "runs" / "run" / "eval" / "rollouts").glob("*/part_*.jsonl"):
            part.unlink()  # as if it had been killed before it was written
        assert evaluated(run_file)[2] == [found]
        assert len(server.requests) == turns, "the answers are in the ledger"


def test_what_the_endpoint_refuses_is_unscored_and_the_others_go_on(run_file: Path, world: World) -> None:
    tasks = load_tasks(world.held_out)
    refused = tasks[0].spec.task_id

    def answer(body: dict[str, Any], _number: int) -> Reply:
        task = asked_about(body, tasks)
        return Reply(status=400) if task.spec.task_id == refused else solution(body, task)

    with TeacherServer(answer) as server:
        name_teachers(run_file, server.base_url)
        code, said, (found,) = evaluated(run_file)
    assert code == 0, said
    assert (found["unscored"], found["tasks"]) == (2, len(tasks) - 1)
    assert refused not in found["pass_rates"]
    told = "".join(path.read_text() for path in (run_file.parent / "runs" / "run" / "eval" / "trajectories").rglob("*.jsonl"))
    assert "one did not answer: " in told


def test_a_cap_ends_it_and_a_higher_one_goes_on(run_file: Path, world: World) -> None:
    tasks = load_tasks(world.held_out)
    with TeacherServer(expert(tasks)) as server:
        name_teachers(run_file, server.base_url, usd_per_million_output=1e6, max_total_usd=4096.0)
        data = run_file.read_text()
        code, said, found = evaluated(run_file)
        assert code != 0
        assert "no call fits under the cap of $4096.0" in said
        assert found == []
        before = len(server.requests)
        assert 0 < before < 2 * sum(len(oracle_script(task)) for task in tasks)
        run_file.write_text(data.replace("max_total_usd = 4096.0", "max_total_usd = 1e6"))
        code, said, (score,) = evaluated(run_file)
        assert code == 0, said
        assert score["pass_at"][0]["mean"] == 1.0
        assert len(server.requests) == 2 * sum(len(oracle_script(task)) for task in tasks), "nothing was asked twice"


def one_turn(run_file: Path, first: Reply) -> tuple[dict[str, Any], dict[str, Any]]:
    """The score, and a rollout whose first answer is this one; then it submits."""

    def answer(body: dict[str, Any], _number: int) -> Reply:
        begun = any(message["role"] == "assistant" for message in body["messages"])
        return Reply(content="", calls=[("submit", {})]) if begun else first

    with TeacherServer(answer) as server:
        name_teachers(run_file, server.base_url)
        budgets = ["--rollout.turn_tokens", "512", "--rollout.trajectory_tokens", "1024", "--rollout.context_tokens", "4096"]
        code, said, (found,) = evaluated(run_file, *budgets)
    assert code == 0, said
    parts = sorted((run_file.parent / "runs" / "run" / "eval" / "rollouts").glob("*/part_*.jsonl"))
    return found, json.loads(parts[0].read_text().splitlines()[0]) if parts else {}


def test_a_call_that_cannot_be_read_is_answered_as_a_policys_is(run_file: Path) -> None:
    found, rollout = one_turn(run_file, Reply(content="", calls=[("submit", '{"path": ')]))
    (call,) = rollout["turns"][0]["tool_calls"]
    assert call["error"]
    assert rollout["turns"][0]["results"][0]["status"] == "malformed_call"
    assert len(rollout["turns"]) > 1
    assert found["unscored"] == 0


def test_an_answer_that_was_cut_off_is_no_finished_turn(run_file: Path) -> None:
    found, rollout = one_turn(run_file, Reply(content="I think, and th", finish_reason="length"))
    assert rollout["stop_reason"] == "turn_tokens"
    assert len(rollout["turns"]) == 1
    assert found["pass_at"][0]["mean"] == 0.0


def test_an_answer_that_was_kept_back_is_unscored_and_asked_for_again(run_file: Path, world: World) -> None:
    tasks = load_tasks(world.held_out)
    kept_back = [True]

    def answer(body: dict[str, Any], _number: int) -> Reply:
        task = asked_about(body, tasks)
        if kept_back[0] and task.spec.task_id == tasks[0].spec.task_id:
            return Reply(status=400)
        return solution(body, task)

    with TeacherServer(answer) as server:
        name_teachers(run_file, server.base_url)
        assert evaluated(run_file)[2][0]["unscored"] == 2
        before, kept_back[0] = len(server.requests), False
        assert evaluated(run_file)[2][0]["unscored"] == 0
        assert len(server.requests) == before + 2 * len(oracle_script(tasks[0])), "the other task's answers are in the ledger"


def test_an_evaluation_whose_answers_are_all_kept_back_says_so(run_file: Path) -> None:
    with TeacherServer(lambda _body, _number: Reply(content="", finish_reason="content_filter")) as server:
        name_teachers(run_file, server.base_url)
        code, said, found = evaluated(run_file)
    assert code != 0
    assert "content_filter" in said
    assert found == []


def test_another_seed_is_another_draw(run_file: Path, world: World) -> None:
    tasks = load_tasks(world.held_out)
    with TeacherServer(expert(tasks)) as server:
        name_teachers(run_file, server.base_url)
        assert evaluated(run_file)[0] == 0
        once = len(server.requests)
        assert evaluated(run_file, "--seed", "1")[0] == 0
        assert len(server.requests) == 2 * once


def test_prompts_without_room_for_a_turn_are_refused(run_file: Path) -> None:
    name_teachers(run_file, "http://127.0.0.1:9")
    words = ["eval", str(run_file), "--policy", "best=teacher:one", "--rollout.context_tokens", "40"]
    done = composer_here(*words, "--rollout.trajectory_tokens", "32", "--rollout.turn_tokens", "16", cwd=run_file.parent)
    assert done.returncode == 2
    assert "leaves no room for a turn" in done.stderr or "context_tokens" in done.stderr


def test_results_answer_the_calls_of_their_own_rollout() -> None:
    """A template that leaves out which call a result answers writes the same ids for the results of different calls."""
    renderer = RememberingRenderer(byte_level_tokenizer())
    early, late = (
        renderer.delta_ids([Message(role="tool", content="ok", tool_call_id=f"call_{turn}_0", name="submit")], ended=True)
        for turn in (1, 4)
    )
    assert early == late
    talk = TeacherTalk(tools=(), turns=2, calls=(ToolCall(call_id="call_1_0", name="submit", arguments={}),))
    talk.hear(renderer.messages_of(early)[0])
    assert talk.messages[-1]["tool_call_id"] == "call_1_0"


def test_a_name_that_no_teacher_has_is_refused(run_file: Path) -> None:
    name_teachers(run_file, "http://127.0.0.1:1")
    done = composer_here("eval", str(run_file), "--policy", "best=teacher:nobody", cwd=run_file.parent)
    assert done.returncode == 2
    assert "no teacher 'nobody' in the run file" in done.stderr
    assert "name one of its [[teachers]]: one, other" in done.stderr


def test_tasks_of_other_authors_are_evaluated_too(run_file: Path, tmp_path: Path) -> None:
    """A Harbor task, imported as it is."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    foreign(theirs / "rates")
    done = composer_here("tasks", "import", "harbor", str(theirs), "--out", str(ours))
    assert done.returncode == 0, done.stderr
    tasks = load_tasks(ours)
    with TeacherServer(lambda body, number: solution(body, tasks[0])) as server:
        name_teachers(run_file, server.base_url)
        words = ["--tasks.held_out", str(ours), "--tasks.forgeable", "true"]
        code, said, (found,) = evaluated(run_file, *words)
    assert code == 0, said
    assert (found["tasks"], found["pass_at"][0]["mean"]) == (1, 1.0)


def test_swe_bench_rows_are_evaluated_too(run_file: Path, tmp_path: Path) -> None:
    """A row built from a real git repository, by the command that a user has."""
    shop, rows, built = tmp_path / "shop", tmp_path / "rows.jsonl", tmp_path / "built"
    (shop / "tests").mkdir(parents=True)
    (shop / "prices.py").write_text("def net(gross):\n    return gross\n")
    (shop / "tests" / "test_prices.py").write_text("from prices import net\n\n\ndef test_net():\n    assert net(3) == 3\n")

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
        return subprocess.run(command, cwd=shop, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "base")
    base, patches = git("rev-parse", "HEAD").strip(), []
    more = {
        "prices.py": "\n\ndef discount(price, count):\n    return price * count if count < 10 else price * count - 5\n",
        "tests/test_prices.py": (
            "\n\ndef test_discount():\n    from prices import discount\n    assert discount(2, 3) == 6\n"
            "    assert discount(2, 20) == 35\n    assert discount(7, 10) == 65\n"
        ),
    }
    for path, text in more.items():
        (shop / path).write_text((shop / path).read_text() + text)
        patches.append(git("diff"))
        git("reset", "-q", "--hard")
    row = {"instance_id": "shop__shop-1", "repo": "shop/shop", "base_commit": base, "patch": patches[0], "test_patch": patches[1]}
    row |= {"FAIL_TO_PASS": ["tests/test_prices.py::test_discount"], "PASS_TO_PASS": ["tests/test_prices.py::test_net"]}
    rows.write_text(json.dumps(row | {"problem_statement": "There is no discount.\n"}) + "\n")
    done = composer_here("tasks", "revert", str(rows), "--checkout", str(shop), "--out", str(built))
    assert done.returncode == 0, done.stderr
    (task,) = load_tasks(built)
    with TeacherServer(lambda body, number: solution(body, task)) as server:
        name_teachers(run_file, server.base_url)
        budgets = {"turn_tokens": "512", "trajectory_tokens": "1024", "context_tokens": "4096"}
        words = [word for name, tokens in budgets.items() for word in (f"--rollout.{name}", tokens)]
        code, said, (found,) = evaluated(run_file, "--tasks.held_out", str(built), "--tasks.forgeable", "true", *words)
    assert code == 0, said
    assert (found["tasks"], found["pass_at"][0]["mean"]) == (1, 1.0)


def test_what_ids_stand_for_is_remembered_across_turns() -> None:
    renderer = RememberingRenderer(byte_level_tokenizer())
    opening = [Message(role="user", content="Fix it.")]
    ids = renderer.prompt_ids(opening)
    reply = [Message(role="tool", content="done", tool_call_id="call_0_0", name="submit")]
    assert renderer.messages_of(ids) == (tuple(opening), ())
    assert renderer.messages_of(renderer.delta_ids(reply, ended=True)) == (tuple(reply), ())
    with pytest.raises(KeyError):
        renderer.messages_of((1, 2, 3))
    call = {"id": "call_0_0", "type": "function", "function": {"name": "submit", "arguments": {}}}
    said = renderer.assistant_ids(Message(role="assistant", content="", tool_calls=[call]))
    assert [one.name for one in parse_tool_calls(renderer.decode(said), turn=0)[1]] == ["submit"]
