"""Real clients, real websockets, a real server process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from composer_replication.envs import CODING_TOOLS, CodingEnv, noop_script, oracle_script
from composer_replication.envs.suite import TaskSuite
from composer_replication.envs.tools import TOOLSETS
from composer_replication.integrations.openenv import CodingAction, CodingClient, CodingSession
from composer_replication.types import GradeReport, Unscored

COMPOSER = (sys.executable, "-c", "from composer_replication.cli import main; main()")
SESSIONS = 3
FRIEND = "https://friend.example"
HOLDER = """
import asyncio, sys
from composer_replication.integrations.openenv import CodingClient

async def hold():
    async with CodingClient(base_url=sys.argv[1]) as client:
        await client.reset()
        print("holding", flush=True)
        await asyncio.Event().wait()

asyncio.run(hold())
"""


@contextmanager
def serving(folder, *options):
    command = [*COMPOSER, "serve", "openenv", "--tasks", str(folder), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        assert line.startswith("serving 3 tasks on http://127.0.0.1:"), line
        process.url = line.split()[4].rstrip(",")
        yield process
        process.terminate()
        assert process.wait() == -signal.SIGTERM


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder, "--max-sessions", str(SESSIONS)) as process:
        yield process


@pytest.fixture(scope="module")
def shell_server(folder):
    with serving(folder, "--shell", "--allow-origin", FRIEND) as process:
        yield process


def action(message):
    function = message["tool_calls"][0]["function"]
    return CodingAction(tool=function["name"], arguments=function["arguments"])


def children(pid):
    """Return the ids of a process's children; a thread of it may end meanwhile."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += path.read_text().split()
    return sorted(found)


def test_a_session_from_reset_to_reward(server, tasks):
    with CodingClient(base_url=server.url).sync() as client:
        for task in tasks:
            first = client.reset(task_id=task.spec.task_id, episode_id="mine")
            assert first.observation.messages[1]["content"] == task.spec.instruction
            assert first.observation.tools == list(CODING_TOOLS)
            results = [client.step(action(message)) for message in oracle_script(task)]
            assert [result.observation.status for result in results] == ["ok"] * len(results)
            assert [result.reward for result in results] == [*[None] * (len(results) - 1), 1.0]
            assert [result.done for result in results] == [*[False] * (len(results) - 1), True]
            state = client.state()
            assert (state.task_id, state.episode_id, state.step_count) == (task.spec.task_id, "mine", len(results))
            assert state.changed == sorted(task.gold_files())
            client.reset(task_id=task.spec.task_id)
            assert client.state().changed == []
            last = client.step(action(noop_script()[0]))
            assert (last.reward, last.done) == (0.0, True)
            assert last.observation.reasons


def test_the_documented_example_runs(documented, server, tasks, capsys):
    exec(documented("OpenEnv").replace("http://127.0.0.1:8000", server.url), {})
    said = capsys.readouterr().out
    assert "orchard/grafts.py" in said
    assert f"{tasks[7 % len(tasks)].spec.task_id} 0.0 [" in said


def test_the_seed_chooses_the_task_and_without_one_all_have_their_turn(server, tasks):
    ids = [task.spec.task_id for task in tasks]
    with CodingClient(base_url=server.url).sync() as client:
        assert [begun(client, seed=seed) for seed in range(4)] == [*ids, ids[0]]
        assert {begun(client) for _ in ids} == set(ids)


def begun(client, **options):
    """The id of the task that a reset gave. No observation says it: it names what was deleted."""
    first = client.reset(**options)
    task_id = client.state().task_id
    assert task_id not in str(first.observation)
    assert task_id not in str(client.step(CodingAction(tool="list_files")).observation)
    return task_id


def test_errors_say_what_is_wrong_and_leave_the_session_usable(server, tasks):
    with CodingClient(base_url=server.url).sync() as client:
        with pytest.raises(RuntimeError, match="reset the environment first"):
            client.step(CodingAction(tool="submit"))
        with pytest.raises(RuntimeError, match="there is no task x"):
            client.reset(task_id="x")
        client.reset()
        assert client.step(CodingAction(tool="no_such_tool")).observation.status == "unknown_tool"
        assert client.step(CodingAction(tool="read_file")).observation.status == "invalid_arguments"
        assert client.step(CodingAction(tool="submit")).done
        with pytest.raises(RuntimeError, match="submitted"):
            client.step(CodingAction(tool="submit"))


BAD_CALLS = (
    ("bash", {"command": "echo a\0b"}, "invalid_arguments"),
    ("bash", {"command": "echo \ud800"}, "invalid_arguments"),
    ("bash", {"command": "echo " + 200_000 * "a"}, "invalid_arguments"),
    ("read_file", {"path": 200_000 * "a"}, "path_not_found"),
    ("read_file", {"\ud800": "a"}, "invalid_arguments"),
    ("no \ud800 tool", {}, "unknown_tool"),
)


def test_bad_calls_are_observations_and_the_session_goes_on(shell_server):
    nested = []
    for _ in range(200):
        nested = [nested]
    with CodingClient(base_url=shell_server.url).sync() as client:
        assert client.reset().observation.tools == list(TOOLSETS["shell"])
        for tool, arguments, status in (*BAD_CALLS, ("read_file", {"path": nested}, "invalid_arguments")):
            result = client.step(CodingAction(tool=tool, arguments=arguments))
            assert (result.observation.status, result.done) == (status, False), tool
            assert result.observation.content.encode()
        assert client.step(CodingAction(tool="bash", arguments={"command": "echo fine"})).observation.content == "fine"


def test_a_web_page_is_refused_unless_its_origin_is_named(shell_server):
    url = shell_server.url.replace("http://", "ws://") + "/ws"
    for origin in ("http://evil.example", shell_server.url, "null"):
        with pytest.raises(InvalidStatus) as refused, connect(url, origin=origin):
            pass
        assert (refused.value.response.status_code, origin in refused.value.response.body.decode()) == (403, True)
        request = Request(f"{shell_server.url}/reset", data=b"{}", headers={"Origin": origin, "Content-Type": "application/json"})
        with pytest.raises(HTTPError, match="403"):
            urlopen(request)
    for origin in (FRIEND, None):
        with connect(url, origin=origin) as socket:
            socket.send(json.dumps({"type": "reset", "data": {}}))
            assert json.loads(socket.recv())["type"] == "observation"


def test_sessions_at_once_do_not_see_each_other(server, tasks):
    task = tasks[0]
    path = next(iter(task.gold_files()))

    async def one(number, started, write_done):
        async with CodingClient(base_url=server.url) as client:
            await client.reset(task_id=task.spec.task_id)
            started[number].set()
            await asyncio.gather(*(event.wait() for event in started))
            await client.step(CodingAction(tool="write_file", arguments={"path": path, "content": f"# {number}\n"}))
            write_done[number].set()
            await asyncio.gather(*(event.wait() for event in write_done))
            return (await client.step(CodingAction(tool="read_file", arguments={"path": path}))).observation.content

    async def all_of_them():
        started, write_done = ([asyncio.Event() for _ in range(SESSIONS)] for _ in range(2))
        return await asyncio.gather(*(one(number, started, write_done) for number in range(SESSIONS)))

    assert [content.strip() for content in asyncio.run(all_of_them())] == [f"# {number}" for number in range(SESSIONS)]


def test_one_client_too_many_is_refused_and_a_killed_one_gives_its_place_back(server):
    before = children(server.pid)
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER, server.url], stdout=subprocess.PIPE, text=True) for _ in range(SESSIONS)
    ]
    try:
        for holder in holders:
            assert holder.stdout.readline() == "holding\n"
        with pytest.raises(RuntimeError, match="CAPACITY_REACHED"), CodingClient(base_url=server.url).sync() as client:
            client.reset()
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
    asyncio.run(until_served(server.url))
    assert children(server.pid) == before


async def until_served(url):
    """A whole session, as soon as the server has noticed that it has a free place."""
    for _ in range(1000):
        try:
            async with CodingClient(base_url=url) as client:
                await client.reset()
                assert (await client.step(CodingAction(tool="submit"))).reward == 0.0
                return
        except RuntimeError as error:
            if "CAPACITY_REACHED" not in str(error):
                raise
            await asyncio.sleep(0.02)
    raise AssertionError("the places of the killed clients were never given back")


def test_a_silent_client_loses_its_place(folder):
    options = ("--max-sessions", "1", "--session-timeout", "1")
    with serving(folder, *options) as server, CodingClient(base_url=server.url).sync() as silent:
        silent.reset()
        asyncio.run(until_served(server.url))
        with pytest.raises(RuntimeError, match="connect again"):
            silent.reset()


def test_a_broken_box_is_no_reward_at_all(folder, monkeypatch):
    monkeypatch.setattr(CodingEnv, "grade", lambda _: GradeReport(reward=Unscored("the box broke"), outcomes={}))
    session = CodingSession(TaskSuite(folder), itertools.count())
    session.reset()
    last = session.step(CodingAction(tool="submit"))
    assert (last.done, last.reward, last.unscored) == (True, None, "the box broke")


def test_the_alarm_of_an_impossible_task_is_in_the_last_observation(folder, monkeypatch):
    monkeypatch.setattr(
        CodingEnv, "grade", lambda _: GradeReport(reward=0.0, outcomes={}, reasons=("ALARM",), alarms=("a forged verdict",))
    )
    session = CodingSession(TaskSuite(folder), itertools.count())
    assert not session.reset().alarms
    last = session.step(CodingAction(tool="submit"))
    assert (last.done, last.reward, last.alarms) == (True, 0.0, ["a forged verdict"])


def test_a_port_in_use_is_an_error_with_its_fix(server, folder):
    port = server.url.rpartition(":")[2]
    done = subprocess.run([*COMPOSER, "serve", "openenv", "--tasks", str(folder), "--port", port], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "choose another --port" in done.stderr
