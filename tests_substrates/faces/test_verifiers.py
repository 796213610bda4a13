"""A real evaluation with verifiers' own command, its own harness and its own runtime, against a local endpoint."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import verifiers.v1 as vf
from verifiers.v1.runtimes import ApptainerConfig, ModalConfig, PodmanConfig, make_runtime
from verifiers.v1.utils.compile import resolve_runtime_config
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from composer_replication.envs import oracle_script
from composer_replication.integrations import verifiers as face
from composer_replication.integrations.verifiers import CodingTaskset, CodingTasksetConfig, _changes, _packed
from composer_replication.sandbox.grading.submission import read_submission
from composer_replication.tasks.exchange.images import PYTHON_IMAGE
from composer_replication.tasks.exchange.pins import Pins, pins_of
from composer_replication.tasks.files import tree_files
from composer_replication.types.errors import ConfigError, SandboxError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "tools"))
from package_index import write_wheel

COMMANDS = Path(sys.executable).parent
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class Policy(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint: of tasks it has a script for it carries out one edit a turn, to others it says no."""

    protocol_version = "HTTP/1.1"
    scripts: dict[str, list[dict]] = {}  # noqa: RUF012

    def do_GET(self):
        self.answer("application/json", json.dumps({"object": "list", "data": [{"id": "local", "object": "model"}]}).encode())

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = json.dumps([m["content"] for m in request["messages"] if m["role"] == "user"])
        script = next((edits for instruction, edits in self.scripts.items() if json.dumps(instruction)[1:-1] in said), [])
        turn = sum(message["role"] == "tool" for message in request["messages"])
        message, reason = {"role": "assistant", "content": "I am done."}, "stop"
        if turn < len(script):
            call = {"id": f"call_{turn}", "type": "function", "index": 0}
            call["function"] = {"name": "edit", "arguments": json.dumps(script[turn])}
            message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        head = {"id": "x", "created": 0, "model": "local"}
        if not request.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            whole = head | {"object": "chat.completion", "choices": [choice], "usage": USAGE}
            self.answer("application/json", json.dumps(whole).encode())
            return
        head["object"] = "chat.completion.chunk"
        events = [
            head | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            head | {"choices": [], "usage": USAGE},
        ]
        stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
        self.answer("text/event-stream", stream)

    def answer(self, kind, data):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def endpoint(tasks):
    """It knows the solution of all tasks but the last."""
    for task in tasks[:-1]:
        arguments = [message["tool_calls"][0]["function"]["arguments"] for message in oracle_script(task)[:-1]]
        Policy.scripts[task.spec.instruction] = [{"path": a["path"], "old_str": a["old"], "new_str": a["new"]} for a in arguments]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Policy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()


def test_an_evaluation_by_its_own_command(endpoint, folder, tasks, tmp_path):
    command = [
        *(COMMANDS / "vf-eval", "composer_tasks", "-m", "local", "-r", "1", "--no-push", "--no-rich", "--output-dir", tmp_path),
        *("--env.taskset.tasks", folder, "--env.agent.harness.id", "bash", "--env.agent.runtime.type", "subprocess"),
        *("--client.base-url", endpoint, "--client.api-key-var", "LOCAL_API_KEY"),
    ]
    done = subprocess.run(
        [str(word) for word in command], env={**os.environ, "LOCAL_API_KEY": "none"}, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.rglob("traces.jsonl")
    traces = [trace for line in file.read_text().splitlines() for trace in json.loads(line)["traces"]]
    assert not any(trace["errors"] for trace in traces), [trace["errors"] for trace in traces]
    rewards = {trace["task"]["data"]["task_id"]: trace["rewards"]["tests_pass"]["score"] for trace in traces}
    assert rewards == {task.spec.task_id: 1.0 for task in tasks[:-1]} | {tasks[-1].spec.task_id: 0.0}


def test_verifiers_finds_every_task_valid(folder, tasks, tmp_path):
    command = [
        *(COMMANDS / "vf-validate", "composer_tasks", "--taskset.tasks", folder, "--runtime.type", "subprocess"),
        *("--no-rich", "--output-dir", tmp_path),
    ]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.rglob("summary.json")
    checks = json.loads(file.read_text())["checks"]
    assert (checks["gold"]["valid"], checks["noop"]["valid"]) == (len(tasks), len(tasks))


def test_what_an_agent_leaves_is_only_read(tasks):
    """Links, devices, paths that lead outside and files of absurd size earn nothing and touch nothing."""
    task, packed = tasks[0], io.BytesIO()
    (path,) = task.gold_files()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, kind in (("../outside.py", tarfile.REGTYPE), ("/absolute.py", tarfile.REGTYPE), ("device", tarfile.CHRTYPE)):
            member = tarfile.TarInfo(name)
            member.type = kind
            tar.addfile(member)
        link = tarfile.TarInfo(f"./{path}")
        link.type, link.linkname = tarfile.SYMTYPE, str(task.root / "solution" / "files" / path)
        tar.addfile(link)
    changes = _changes(packed.getvalue(), task)
    assert changes[path] is None
    submission = read_submission(task.spec, task.repo, changes)
    assert submission.changes[path] is None
    assert {"../outside.py", "/absolute.py"} <= set(submission.rejected)
    assert _changes(_packed(task.repo), task) == {p: (task.repo / p).read_bytes() for p in tree_files(task.repo)}


def sparse(name, size):
    """The header of a file that stores nothing and unpacks to `size` zeros (GNU format, type S)."""
    member = tarfile.TarInfo(name)
    member.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (size, 0)  # one piece of data at the end, of no length
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def tarred(*members):
    return b"".join(members) + bytes(2 * tarfile.BLOCKSIZE)


def long_name():
    """A header that says that the next one's name follows: a chain of them is read by recursion."""
    member = tarfile.TarInfo("././@LongLink")
    member.type = tarfile.GNUTYPE_LONGNAME
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(gzip.compress(tarred()), id="compressed"),
        pytest.param(tarred(*(sparse(f"{number}.py", 1 << 20) for number in range(9))), id="sparse"),
        pytest.param(tarred(*(tarfile.TarInfo(str(number)).tobuf() for number in range(101))), id="many"),
        pytest.param(tarred(*[long_name()] * 3000), id="recursion"),
        pytest.param(tarred(tarfile.TarInfo("a").tobuf())[:300], id="torn"),
        pytest.param(b"no archive", id="none"),
    ],
)
def test_an_archive_that_is_none_or_unpacks_to_too_much_is_refused(archive, tasks, monkeypatch):
    monkeypatch.setattr(face, "_MOST_BYTES", 8 << 20)
    monkeypatch.setattr(face, "_MOST_MEMBERS", 100)
    assert _changes(archive, tasks[0]) is None
    assert _changes(tarred(sparse("a.py", 1 << 20)), tasks[0])["a.py"] == bytes(1 << 20)


@pytest.fixture
def task(folder):
    return next(iter(CodingTaskset(CodingTasksetConfig(tasks=folder)).load()))


def scored(task, path, *, spoil=None):
    """The trace of a task scored in a runtime that `spoil` had its hands on, programs found on `path`."""

    async def score():
        runtime = make_runtime(vf.SubprocessConfig())
        await runtime.start()
        try:
            about = vf.TraceTask(type="CodingTask", data=task.data, key=task.key, hash=task.hash)
            trace = vf.Trace(task=about, agent=vf.AgentInfo(config=vf.AgentConfig(runtime=vf.SubprocessConfig())))
            await task.setup(trace, runtime)
            runtime.env = {"PATH": str(path)}
            if spoil is not None:
                spoil(runtime)
            await task.score(trace, runtime)
            return trace
        finally:
            await runtime.stop()

    return asyncio.run(score())


def program(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return folder


def test_a_runtime_whose_tar_the_agent_took_away_or_replaced_is_scored(task, tmp_path, monkeypatch):
    """Without `tar`, without anything, with one that fails and one that packs more than is read."""
    monkeypatch.setattr(face, "_MOST_BYTES", 1 << 20)
    for path in (
        program(tmp_path / "no_tar", "true", ""),
        program(tmp_path / "nothing_works", "true", "exit 1"),
        program(tmp_path / "tar_fails", "tar", "exit 1"),
        program(tmp_path / "tar_too_large", "tar", f'exec {sys.executable} -c \'open("$2", "wb").write(bytes(9 << 20))\''),
    ):
        trace = scored(task, path)
        assert (trace.rewards["tests_pass"].score, trace.metrics) == (0.0, {"cheat_alarm": 0.0}), path
        assert "packed by tar" in trace.info["reasons"][0]


def test_a_runtime_that_is_gone_is_no_reward_at_all(task, monkeypatch):
    """As a container engine answers when its container is gone: with a status of its own."""

    def lose(runtime):
        async def run(argv, env):
            return vf.ProgramResult(1, "", "no such container")

        runtime.run = run

    with pytest.raises(vf.SandboxError):
        scored(task, os.environ["PATH"], spoil=lose)


def test_a_hung_tar_is_scored(task, tmp_path, monkeypatch):
    monkeypatch.setattr(face, "_PACKING_S", 0.2)
    assert scored(task, program(tmp_path / "slow", "tar", "exec /bin/sleep 600")).rewards["tests_pass"].score == 0.0


def test_passing_an_impossible_task_is_an_alarm_in_the_metrics(task, monkeypatch):
    """Its tests contradict nothing here: a solution that passes them is what an alarm is about."""
    spec = replace(task._task.spec, impossible=True)
    monkeypatch.setattr(type(task), "_task", property(lambda self: replace(self._suite.task(self.data.task_id), spec=spec)))

    def solve(runtime):
        for path, content in task._task.gold_files().items():
            (runtime.workdir / path).write_bytes(content)

    trace = scored(task, os.environ["PATH"], spoil=solve)
    assert (trace.rewards["tests_pass"].score, trace.metrics) == (0.0, {"cheat_alarm": 1.0})
    assert "ALARM" in trace.info["reasons"][0]


# --- container runtimes -----------------------------------------------------------------------------------------------

HERE = "{}.{}".format(*sys.version_info)
CONTAINERS = [
    pytest.param(vf.DockerConfig(), f"python:{HERE}-slim", id="docker"),
    pytest.param(PodmanConfig(), f"docker.io/library/python:{HERE}-slim", id="podman"),
    pytest.param(vf.PrimeConfig(), f"python:{HERE}-slim", id="prime"),
    pytest.param(ModalConfig(), f"python:{HERE}-slim", id="modal"),
]


def first_task(folder, runtime, **options):
    """As an evaluation gets it, and the runtime that verifiers makes for it."""
    taskset = {"id": "composer_tasks", "tasks": str(folder), **options}
    env = load_environment(resolve_env_config({"taskset": taskset, "agent": {"runtime": runtime.model_dump()}}))
    task = next(iter(env.taskset))
    return task, resolve_runtime_config(env.config.agent.runtime, task)


@pytest.mark.parametrize(("runtime", "image"), CONTAINERS)
def test_in_a_container_the_network_is_closed_and_the_image_is_the_interpreters(folder, runtime, image):
    _, resolved = first_task(folder, runtime)
    assert resolved.network_restricted
    assert (resolved.allow, resolved.block, resolved.image) == ([], ["*"], image)
    assert not resolved.permits("https", "pypi.org", 443)


def test_its_own_command_asks_the_engine_for_such_a_container(folder, tmp_path):
    """An engine that writes down what it is asked for, and starts nothing."""
    log = tmp_path / "log"
    program(tmp_path / "bin", "docker", f'echo "$@" >> {log}\n[ "$1" != run ]')
    command = [
        *(
            COMMANDS / "vf-eval",
            "composer_tasks",
            "-m",
            "local",
            "-n",
            "1",
            "-r",
            "1",
            "--no-push",
            "--no-rich",
            "--output-dir",
            tmp_path,
        ),
        *("--env.taskset.tasks", folder, "--env.agent.harness.id", "bash", "--env.agent.runtime.type", "docker"),
        *("--client.base-url", "http://127.0.0.1:9/v1", "--client.api-key-var", "LOCAL_API_KEY"),
    ]
    environment = {**os.environ, "LOCAL_API_KEY": "none", "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    subprocess.run([str(word) for word in command], env=environment, capture_output=True, cwd=tmp_path)
    (asked,) = {line for line in log.read_text().splitlines() if line.startswith("run ")}
    assert {"NET_ADMIN", "NET_RAW", "no-new-privileges"} <= set(asked.split())  # what verifiers asks for to close the network
    assert asked.endswith(f" python:{HERE}-slim infinity")


def test_the_network_is_opened_and_another_image_named_on_request(folder):
    task, resolved = first_task(folder, vf.DockerConfig(), network="open", image="registry.local/{build}:py{python}")
    assert (resolved.allow, resolved.network_restricted) == (["*"], False)
    assert resolved.image == f"registry.local/tasks:py{HERE}"
    assert task.data.network == "open"
    assert first_task(folder, vf.DockerConfig(image="mine:1"))[1].image == "mine:1"


def test_a_task_in_another_language_needs_an_image_with_its_tools(tasks, folder):
    taskset = CodingTaskset(CodingTasksetConfig(tasks=folder, image=f"docker.io/library/{PYTHON_IMAGE}"))
    task = replace(tasks[0], spec=replace(tasks[0].spec, language="go"))
    with pytest.raises(ConfigError, match=r"is in go, and the image .* has no tools for it") as caught:
        taskset._image(None, task)
    assert "--format docker" in caught.value.fix
    named = CodingTaskset(CodingTasksetConfig(tasks=folder, image="composer-tasks/{build}"))
    assert named._image(None, task) == "composer-tasks/tasks"


def test_what_a_container_may_reach_beside_the_tasks_is_left_to_its_runtime(folder):
    _, resolved = first_task(folder, vf.DockerConfig(allow=["example.org"]), network="open")
    assert resolved.allow == ["example.org"]


def test_the_runtime_subprocess_is_given_neither(folder):
    task, resolved = first_task(folder, vf.SubprocessConfig())
    assert (task.data.image, task.data.network_allow, resolved) == (None, ["*"], vf.SubprocessConfig())


def test_a_runtime_that_cannot_close_the_network_is_refused_unless_it_may_be_open(folder):
    with pytest.raises(ConfigError, match="apptainer cannot close the network") as caught:
        first_task(folder, ApptainerConfig())
    assert "--env.taskset.network open" in caught.value.fix
    assert first_task(folder, ApptainerConfig(), network="open")[1].image == f"python:{HERE}-slim"


@pytest.fixture
def contained(tmp_path, monkeypatch):
    """Set a task up in a folder of this machine that passes for a container, with an environment and an index of its own."""
    index = tmp_path / "index"
    index.mkdir()
    for name, requires in (("pytest", ["pluggy"]), ("pluggy", [])):
        write_wheel(index, name, requires=requires)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "image"], check=True)
    path = f"{tmp_path / 'image' / 'bin'}:{os.defpath}"

    def set_up(task, config, pins):
        monkeypatch.setattr(type(task), "_pins", property(lambda self: pins))

        async def run():
            runtime = make_runtime(vf.SubprocessConfig())
            await runtime.start()
            runtime.config = config
            runtime.env = {"PATH": path, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
            try:
                await task.setup(None, runtime)
                shown = await runtime.run(["python", "-m", "pip", "freeze"], {})
                return (runtime.workdir / "orchard").is_dir(), shown.stdout.split()
            finally:
                await runtime.stop()

        return asyncio.run(run())

    set_up.index = index
    return set_up


def test_an_image_without_the_dependencies_gets_them_before_the_agent_comes(folder, contained):
    task, _ = first_task(folder, vf.DockerConfig())
    pins = Pins(HERE, ("pluggy==9.0", "pytest==9.0"))
    assert contained(task, vf.DockerConfig(allow=[]), pins) == (True, ["pluggy==9.0", "pytest==9.0"])
    for wheel in contained.index.iterdir():
        wheel.unlink()  # where all is there already, no index is asked
    assert contained(task, vf.DockerConfig(allow=[]), pins) == (True, ["pluggy==9.0", "pytest==9.0"])
    with pytest.raises(SandboxError, match=r"alpha==9.0") as caught:
        contained(task, vf.DockerConfig(allow=[]), Pins(HERE, ("alpha==9.0",)))
    assert "composer tasks export" in caught.value.fix


def test_the_versions_that_are_installed_are_those_of_the_interpreter(folder, tasks):
    task, _ = first_task(folder, vf.DockerConfig())
    assert task._pins == pins_of(tasks[0].spec, tasks[0].repo, Path(sys.executable))
    assert f"pytest=={pytest.__version__}" in task._pins.requirements


def test_an_open_container_that_nobody_asked_for_is_refused(task, folder, contained):
    """As another environment than ours would start it: `best-of-n` takes the tasks as they are loaded."""
    with pytest.raises(ConfigError, match="network of this runtime is open") as caught:
        contained(task, vf.DockerConfig(), Pins(HERE, ()))
    assert "--env.taskset.network closed" in caught.value.fix
    closed = next(iter(CodingTaskset(CodingTasksetConfig(tasks=folder, network="closed")).load()))
    assert resolve_runtime_config(vf.DockerConfig(), closed).allow == []
    opened = next(iter(CodingTaskset(CodingTasksetConfig(tasks=folder, network="open")).load()))
    assert contained(opened, vf.DockerConfig(), Pins(HERE, ("pluggy==9.0",))) == (True, ["pluggy==9.0"])
