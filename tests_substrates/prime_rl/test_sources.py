"""The environment server's side: our agent as a harness of verifiers, its work in our sandbox, its reward from our grader."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import verifiers.v1 as vf
from prime_rl.configs.rl import RLConfig
from prime_rl.utils.config import cli
from verifiers.v1.utils.loaders import load_environment

from composer_replication.envs import oracle_script
from composer_replication.recipes.prime_rl.config import write_configs
from composer_replication.recipes.prime_rl.traces import RESULTS
from composer_replication.tasks.folders import load_tasks


class Policy(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint that says the lines of a script, one an answer; then the same again."""

    protocol_version = "HTTP/1.1"
    lines: list[dict] = []  # noqa: RUF012

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        said = self.lines[turn % len(self.lines)]
        message = {"role": "assistant", "content": said.get("content") or None}
        reason = "stop"
        if said.get("tool_calls"):
            reason = "tool_calls"
            message["tool_calls"] = [
                {
                    "id": f"call_{turn}_{i}",
                    "type": "function",
                    "function": {"name": c["function"]["name"], "arguments": json.dumps(c["function"]["arguments"])},
                }
                for i, c in enumerate(said["tool_calls"])
            ]
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        data = json.dumps(
            {"id": "x", "object": "chat.completion", "created": 0, "model": "local", "choices": [choice], "usage": usage}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def play(run_file, tasks, tmp_path):
    """`play(lines)`: the trace of an episode of the first task, in the environment that our rl.toml names."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Policy)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def run(lines, **overrides):
        Policy.lines = lines
        (toml,) = write_configs(run_file(tmp_path / "given.toml", **overrides), tmp_path / "out")
        environment = load_environment(cli(RLConfig, args=["@", str(toml)]).orchestrator.train.source[0].env)
        address = f"http://127.0.0.1:{server.server_address[1]}/v1"
        context = vf.ModelContext(model="local", client=vf.EvalClientConfig(base_url=address, api_key_var="NO_SUCH_KEY"))

        async def episode():
            async with environment.serving():
                return await environment.run_episode(next(iter(environment.taskset)), context)

        return asyncio.run(episode())

    yield run
    server.shutdown()
    server.server_close()


@pytest.fixture
def script(tasks):
    return oracle_script(load_tasks(tasks)[0])


def call(name, **arguments):
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def test_a_solved_task_is_rewarded(play, script):
    episode = play(script)
    assert episode.ok, episode.last_error or episode.traces[0].last_error
    (trace,) = episode.traces
    assert trace.rewards["tests_pass"].score == 1.0
    assert [r["status"] for r in trace.info[RESULTS].values()] == ["ok"] * len(script)
    assert {tool.name for tool in trace.tools} >= {"edit_file", "run_tests", "submit"}


def test_what_went_wrong_is_known_to_detectors(play):
    episode = play([call("open_file", path="a"), call("read_file", path="nowhere.py"), call("submit")])
    (trace,) = episode.traces
    assert [r["status"] for r in trace.info[RESULTS].values()] == ["unknown_tool", "path_not_found", "ok"]
    assert trace.rewards["tests_pass"].score == 0.0


def test_work_is_graded_when_turns_run_out(play, script):
    """Everything but the submission is done within the turns there are."""
    episode = play(script, **{"rollout.max_turns": str(len(script) - 1)})
    (trace,) = episode.traces
    assert trace.stop_condition == "max_turns"
    assert trace.rewards["tests_pass"].score == 1.0
