"""The remote sandbox through a real server: it behaves like the other kinds, and what breaks on the way is nobody's reward."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import http.server
import json
import logging
import os
import secrets
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from composer_replication.cli import app
from composer_replication.sandbox import Command, Ending, Limits, Tree, open_sandbox
from composer_replication.sandbox.attempt import processes_with
from composer_replication.sandbox.doctor.probes import PROBES
from composer_replication.sandbox.doctor.selftest import ProbeVerdict, self_test
from composer_replication.sandbox.grading.grade import grade
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.remote import client as remote
from composer_replication.sandbox.remote.agent import LEASE
from composer_replication.sandbox.remote.client import RemoteSandbox
from composer_replication.sandbox.remote.server import Resolver
from composer_replication.sandbox.transfer.archive import pack
from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.report import BuildOptions
from composer_replication.types import Unscored
from composer_replication.types.errors import ComposerError, SandboxError, SandboxUnavailableError, TaskError

PYTHON = Path(sys.executable)
ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {probe.name: probe for probe in PROBES}
BOUND_S = 300.0


def execute(sandbox, base, code, *arguments, changes=None, stdin=b"", read_back=False, **limits):
    argv = (str(PYTHON), "-S", "-B", "-c", textwrap.dedent(code), *arguments)
    limits = Limits(**{"wall_s": 60.0, "disk_mb": 32, **limits})
    command = Command(argv=argv, python=PYTHON, stdin=stdin, limits=limits, read_back=read_back)
    return sandbox.run(Tree(base=base, changes=changes or {}), command)


def guardian_of(folder: str) -> int:
    """The guardian of the agent with that folder: of the processes that name it, the one whose parent does not."""
    with_folder = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"main({folder!r}".encode() in Path("/proc", name, "cmdline").read_bytes():
                with_folder.append((int(name), int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])))
        except (FileNotFoundError, ProcessLookupError):
            continue
    (guardian,) = (pid for pid, parent in with_folder if parent not in dict(with_folder))
    return guardian


@contextmanager
def watched(pid: int):
    """Waits at the end until the process has ended."""
    fd = os.pidfd_open(pid)
    try:
        yield
        assert select.select([fd], [], [], BOUND_S)[0], f"process {pid} goes on"
    finally:
        os.close(fd)


@contextmanager
def running(sandbox, base, marker, failed):
    """A command that goes on and on in another thread, from when it runs until it has failed."""

    def run():
        try:
            execute(sandbox, base, "import time; time.sleep(600)", marker, wall_s=600.0)
        except SandboxError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while not processes_with(marker):
        assert thread.is_alive(), failed
    yield
    thread.join(BOUND_S)
    assert not thread.is_alive()


def test_it_says_what_is_enforced_there(box, address):
    assert box.isolation.name == f"remote:{address}"
    assert box.isolation.network.startswith(f"{open_sandbox().isolation.name} there: no ")
    assert box.isolation.missing == open_sandbox().isolation.missing


@pytest.mark.parametrize("name", BY_NAME)
def test_no_probe_gets_through(box, name):
    (finding,) = self_test(box, [BY_NAME[name]])
    assert finding.verdict in (ProbeVerdict.BLOCKED, ProbeVerdict.ADMITTED), finding


def test_the_tree_is_a_disposable_copy_and_changes_come_back(box, base):
    code = """
        import json, os, subprocess, sys
        found = sorted(os.path.join(d, f)[2:] for d, _, fs in os.walk(".") for f in fs)
        first = [found, open("link").read(), subprocess.run(["./script.sh"], capture_output=True, text=True).stdout]
        os.remove("pkg/new.py"); open("made", "wb").write(bytes(range(256))); os.symlink("/", "out")
        os.write(1, sys.stdin.buffer.read()[-5:]); os.write(2, b"err\\r\\n\\xff")
        os.write(3, json.dumps(first).encode())
        sys.exit(7)
    """
    changes = {"pkg/new.py": b"new", "pkg/old.py": None, "keep.txt": b"changed\r\n"}
    before = box.cpu_s
    result = execute(box, base, code, changes=changes, stdin=b"a" * 1_000_000 + b"final", read_back=True)
    assert (result.ending, result.returncode, result.stdout, result.stderr) == (Ending.EXITED, 7, b"final", b"err\r\n\xff")
    assert json.loads(result.channel) == [["keep.txt", "link", "pkg/new.py", "script.sh"], "changed\n", "ran\n"]
    assert result.changes == {"keep.txt": b"changed\r\n", "made": bytes(range(256)), "pkg/old.py": None}
    assert result.not_kept == ("'out' (a link)",)
    assert (base / "keep.txt").read_text() == "keep"
    assert box.cpu_s - before == pytest.approx(result.cpu_s)


@pytest.mark.parametrize(
    ("code", "limits", "ending"),
    [
        ("import time; time.sleep(60)", {"wall_s": 1.0}, Ending.TIMEOUT),
        ("while True: pass", {"cpu_s": 1.0}, Ending.TIMEOUT),
        ("x = [bytearray(8 << 20) for _ in range(128)]", {"memory_mb": 128}, Ending.OUT_OF_MEMORY),
        ("open('x', 'wb').write(bytes(64 << 20))", {"disk_mb": 8}, Ending.OUTPUT_LIMIT),
    ],
    ids=["wall", "cpu", "memory", "disk"],
)
def test_limits_hold(box, base, code, limits, ending):
    assert execute(box, base, code, **limits).ending is ending


def test_many_at_once_from_threads_and_within_a_loop(box, base):
    async def all_of_them():
        runs = [asyncio.to_thread(execute, box, base, f"import os; os.write(3, b'{number}')") for number in range(8)]
        there = execute(box, base, "import os; os.write(3, b'here')")  # blocking, in a thread whose loop runs
        return [result.channel for result in (there, *await asyncio.gather(*runs))]

    assert asyncio.run(all_of_them()) == [b"here", *(str(number).encode() for number in range(8))]


def test_pytest_runs_as_in_any_box(box, base):
    (base / "test_it.py").write_text("def test_good(): pass\n\n\ndef test_bad(): assert False\n")
    run = CodeRunner(sandbox=box, python=box.python).run(Tree(base=base), ["test_it.py::test_good", "test_it.py::test_bad"])
    assert {name: str(outcome) for name, outcome in run.outcomes.items()} == {
        "test_it.py::test_good": "passed",
        "test_it.py::test_bad": "failed",
    }


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    out = tmp_path_factory.mktemp("built") / "tasks"
    project = ROOT / "composer_replication" / "quickstart" / "projects" / "orchard"
    return build_tasks(str(project), out, BuildOptions(trivial=True, max_tasks=1, packages=("orchard/grafts.py",), jobs=1)), out


def test_the_solution_is_one_and_doing_nothing_is_zero(box, tasks):
    _, folder = tasks
    for policy, reward in (("oracle", 1.0), ("noop", 0.0)):
        arguments = ["rollout", "--tasks", str(folder), "--policy", policy, "--sandbox", box.isolation.name, "--json"]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["reward_mean"] == reward, done.stdout


def test_an_interpreter_that_is_not_there(box, base):
    with pytest.raises(TaskError, match=r"127\.0\.0\.1:\d+: /nowhere/python is not a working Python interpreter"):
        box.installation(Path("/nowhere/python"))
    with pytest.raises(TaskError, match="not a working Python"):
        box.run(Tree(base=base), Command(argv=("/nowhere/python",), python=Path("/nowhere/python")))
    assert execute(box, base, "pass").ending is Ending.EXITED


def test_the_doctor_tries_it(box):
    done = CliRunner().invoke(app, ["doctor", "--json", "--kind", box.isolation.name])
    (facts,) = json.loads(done.stdout)["sandboxes"].values()
    assert facts["isolation"]["name"] == box.isolation.name


def test_a_wrong_key(address, monkeypatch, caplog, capfd):
    monkeypatch.setenv("COMPOSER_REMOTE_KEY", "wrong-" + (wrong := secrets.token_hex(8)))
    with caplog.at_level(logging.DEBUG), pytest.raises(SandboxUnavailableError, match="refuses the key") as refused:
        RemoteSandbox(f"remote:{address}")
    assert "COMPOSER_REMOTE_KEY" in refused.value.fix
    assert wrong not in "".join([str(refused.value), caplog.text, *capfd.readouterr()])


def test_no_key_and_a_key_where_none_belongs(address, monkeypatch):
    with pytest.raises(SandboxUnavailableError, match="not a place for a key"):
        RemoteSandbox(f"remote:{address.replace('//', '//user:key@')}")
    monkeypatch.delenv("COMPOSER_REMOTE_KEY")
    with pytest.raises(SandboxUnavailableError, match="there is no key"):
        RemoteSandbox(f"remote:{address}")


def test_nobody_answers():
    with pytest.raises(SandboxUnavailableError, match="does not answer") as refused:
        open_sandbox("remote:http://127.0.0.1:9")
    assert "swerex-remote" in refused.value.fix


@pytest.mark.parametrize(
    ("program", "message", "fix"),
    [
        ("exit 1", "the agent does not start", "COMPOSER_REMOTE_PYTHON"),
        ('PYTHONHOME= exec "{old}" "$@"', "has no pytest", "-m pip install pytest"),
    ],
    ids=["no interpreter", "no pytest"],
)
def test_a_machine_that_lacks_something(address, tmp_path, monkeypatch, program, message, fix):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True, timeout=BOUND_S)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n" + program.format(old=tmp_path / "bare" / "bin" / "python") + "\n")
    python.chmod(0o755)
    monkeypatch.setenv("COMPOSER_REMOTE_PYTHON", str(python))
    with pytest.raises(SandboxUnavailableError, match=message) as refused:
        RemoteSandbox(f"remote:{address}")
    assert fix in refused.value.fix


def test_an_interpreter_that_the_server_does_not_find(address, monkeypatch):
    monkeypatch.setenv("COMPOSER_REMOTE_PYTHON", "/nowhere/python")
    with pytest.raises(SandboxError, match=r"could not do it.*nowhere"):
        RemoteSandbox(f"remote:{address}")


def test_a_killed_server_is_no_result_and_leaves_nothing(serve, base, tasks):
    report, folder = tasks
    failed: list[SandboxError] = []
    marker = f"composer-remote-{secrets.token_hex(8)}"
    with serve() as (process, url):
        box = RemoteSandbox(f"remote:{url}")
        session, guardian = box._session, guardian_of(box._session._folder)
        task = load_only(folder)
        assert grade(task.spec, task.repo, task.gold_files(), sandbox=box, python=box.python).reward == 1.0
        with running(box, base, marker, failed), watched(guardian):
            process.kill()
            process.wait()
        assert "does not answer" in failed[0].message
        report = grade(task.spec, task.repo, task.gold_files(), sandbox=box, python=box.python)
    assert isinstance(report.reward, Unscored)
    assert processes_with(marker) == []
    assert not Path(session._folder).exists()
    with serve(int(url.rpartition(":")[2])):
        assert execute(box, base, "import os; os.write(3, b'again')").channel == b"again"
        with watched(guardian_of(box._session._folder)):
            box._session.leave()


def load_only(folder):
    from composer_replication.tasks.folders import load_tasks

    (task,) = load_tasks(folder)
    return task


def test_a_killed_agent_is_started_anew(serve, base):
    with serve() as (_, url):
        box = RemoteSandbox(f"remote:{url}")
        folder, guardian = Path(box._session._folder), guardian_of(box._session._folder)
        (agent,) = (int(pid) for pid in Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()[:1])
        failed: list[SandboxError] = []
        marker = f"composer-remote-{secrets.token_hex(8)}"
        with running(box, base, marker, failed), watched(guardian):
            os.kill(agent, 9)
        assert "the agent" in failed[0].message
        assert processes_with(marker) == []
        assert not folder.exists()
        assert execute(box, base, "import os; os.write(3, b'again')").channel == b"again"
        assert not folder.exists()
        with watched(guardian_of(box._session._folder)):
            box._session.leave()


def test_a_killed_client_leaves_nothing(serve, base):
    marker = f"composer-remote-{secrets.token_hex(8)}"
    program = f"""
        import sys
        from pathlib import Path
        from composer_replication.sandbox import Command, Limits, Tree
        from composer_replication.sandbox.remote import client as remote
        remote.LEASE_S = 3.0
        python = {sys.executable!r}
        argv = (python, "-S", "-c", "import time; time.sleep(600)", {marker!r})
        box = remote.RemoteSandbox(sys.argv[1])
        print(box._session._folder, flush=True)
        box.run(Tree(base=Path({str(base)!r})), Command(argv=argv, python=Path(python), limits=Limits(wall_s=600)))
    """
    with serve() as (_, url):
        argv = [sys.executable, "-c", textwrap.dedent(program), f"remote:{url}"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as client:
            folder = client.stdout.readline().strip()
            assert folder
            while not processes_with(marker):
                assert client.poll() is None
            with watched(guardian_of(folder)):
                client.kill()
        assert processes_with(marker) == []
        assert not Path(folder).exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_client_that_ends_takes_its_agent_along(serve, host):
    """At once: the lease has been given back when the client has ended."""
    program = (
        "import sys; from composer_replication.sandbox.remote.client import RemoteSandbox; box = RemoteSandbox(sys.argv[1]); "
    )
    program += "print(box._session._folder, flush=True); sys.stdin.read()"
    with serve() as (_, url):
        argv = [sys.executable, "-c", program, f"remote:{url.replace('127.0.0.1', host)}"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
            folder = client.stdout.readline().strip()
            with watched(guardian_of(folder)):
                assert Path(folder, LEASE).exists()
                client.stdin.close()
                assert client.wait(BOUND_S) == 0
                assert not Path(folder, LEASE).exists()
            assert client.stderr.read() == ""
        assert not Path(folder).exists()


def test_a_name_is_remembered_for_when_no_thread_looks_it_up():
    found = {}

    async def look_up(known):
        resolver = Resolver(found)
        before = await resolver.resolve("localhost", 80) if known else None
        await asyncio.get_running_loop().shutdown_default_executor()
        return before, await resolver.resolve("localhost", 80)

    with pytest.raises(OSError, match="no thread can be started to look up localhost"):
        asyncio.run(look_up(known=False))
    before, after = asyncio.run(look_up(known=True))
    assert before == after
    assert before[0]["host"] in ("127.0.0.1", "::1")


def test_a_client_ends_though_the_server_hangs(serve):
    program = "import sys; from composer_replication.sandbox.remote import client as remote; remote._CLOSE_S = 0.5; "
    program += "box = remote.RemoteSandbox(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with serve() as (process, url):
        argv = [sys.executable, "-c", program, f"remote:{url.replace('127.0.0.1', 'localhost')}"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
            client.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            client.stdin.close()
            assert client.wait(BOUND_S) == 0
            assert client.stderr.read() == ""


def at_once(count, action):
    """What `action` raises, or None, in each of so many threads that begin together."""
    begin = threading.Barrier(count)

    def one(_):
        begin.wait()
        try:
            action()
        except (ComposerError, KeyboardInterrupt) as error:
            return error

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def test_all_who_wait_for_a_hanging_server_learn_of_it_at_once(serve, base, monkeypatch):
    with serve() as (process, url):
        box = RemoteSandbox(f"remote:{url}")
        box._session.leave()
        attempts = []
        opening = box._open
        monkeypatch.setattr(box, "_open", lambda: (attempts.append(None), opening())[1])
        monkeypatch.setattr(remote, "_REQUEST_S", 3.0)
        process.send_signal(signal.SIGSTOP)
        failed = at_once(8, lambda: execute(box, base, "pass"))
        assert [error.message for error in failed] == [f"the server {url} did not answer within 3 s"] * 8
        assert len(attempts) == 1
        process.send_signal(signal.SIGCONT)
        monkeypatch.setattr(remote, "_REQUEST_S", 120.0)
        assert at_once(4, lambda: execute(box, base, "pass")) == [None] * 4
        assert len(attempts) == 2
        with watched(guardian_of(box._session._folder)):
            box._session.leave()


def test_an_interrupted_attempt_is_made_again_by_who_waited_for_it(serve, base, monkeypatch):
    with serve() as (_, url):
        box = RemoteSandbox(f"remote:{url}")
        box._session.leave()
        opening, faults = box._open, [KeyboardInterrupt()]

        def interrupted():
            time.sleep(0.5)
            if faults:
                raise faults.pop()
            return opening()

        monkeypatch.setattr(box, "_open", interrupted)
        failed = at_once(4, lambda: execute(box, base, "pass"))
        assert sorted(type(error).__name__ for error in failed) == ["KeyboardInterrupt", "NoneType", "NoneType", "NoneType"]
        with watched(guardian_of(box._session._folder)):
            box._session.leave()


class Hostile(http.server.BaseHTTPRequestHandler):
    """Answers every request with the next of `replies`: status, body, and how much of the body is sent."""

    replies: list[tuple[int, bytes, int]]
    location = ""
    keys: list[str]

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.keys.append(self.headers["X-API-Key"])
        status, body, sent = self.replies.pop(0) if self.replies else (200, b"{}", 2)
        self.send_response(status)
        if self.location:
            self.send_header("Location", self.location)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:sent])
        self.close_connection = True

    def log_message(self, *_arguments):
        pass


@pytest.mark.parametrize(
    ("status", "body", "sent", "message"),
    [
        (200, b'{"stdout": "/tmp/x", "stderr": "", "exit_code": 0}', 20, "does not answer"),
        (200, b"not JSON at all", 99, "makes no sense"),
        (200, b'{"stdout": {}, "exit_code": 0}', 99, "makes no sense"),
        (200, b"[" * 200_000, 1 << 20, "makes no sense"),
        (200, b" " * (17 << 20), 1 << 25, "longer than"),
        (503, b'{"detail": "busy"}', 99, "status 503"),
    ],
    ids=["cut off", "no JSON", "another shape", "too deep", "too long", "an error"],
)
def test_replies_that_are_none(status, body, sent, message):
    with hostile([(status, body, sent)]) as url, pytest.raises(SandboxError, match=message):
        RemoteSandbox(f"remote:{url}")


def test_a_server_cannot_have_anything_called_here(tmp_path):
    error = {"message": f"touch {tmp_path}/called", "class_path": "os.system", "traceback": "", "extra_info": {}}
    reply = json.dumps({"swerexception": error}).encode()
    with hostile([(511, reply, len(reply))]) as url, pytest.raises(SandboxError, match="could not do it"):
        RemoteSandbox(f"remote:{url}")
    assert not (tmp_path / "called").exists()


def reply(stdout):
    body = json.dumps({"stdout": stdout, "stderr": "", "exit_code": 0}).encode()
    return 200, body, len(body)


def answer(parcel):
    return reply(base64.b64encode(parcel).decode())


RESULT = {"ending": "exited", "returncode": 0, "wall_s": 0.0, "cpu_s": 0.0, "changes": None, "not_kept": []}


@pytest.mark.parametrize(
    "parcel",
    [
        b"[" * 200_000,
        b'{"facts": {}, "sizes": [Infinity]}\n',
        pack(RESULT | {"cpu_s": float("nan")}, [b"", b"", b""]),
        pack(RESULT | {"returncode": float("inf")}, [b"", b"", b""]),
        pack(RESULT, [b"", b"", b"x" * (2 << 20)]),
        pack(RESULT | {"changes": [["../x", True]]}, [b"", b"", b"", b"x"]),
        b"x" * (1 << 26),
    ],
    ids=["too deep", "endless", "no time", "no status", "too much output", "outside the tree", "too long"],
)
def test_answers_that_are_none(base, parcel):
    """The agent is somebody else's from its second answer on."""
    opened = pack({"isolation": dataclasses.asdict(open_sandbox().isolation), "python": sys.executable}, [])
    uploaded = (200, b"{}", 2)
    replies = [reply("/tmp/agent"), uploaded, answer(opened), uploaded, answer(parcel)]
    with hostile(replies) as url:
        box = RemoteSandbox(f"remote:{url}")
        with pytest.raises(SandboxError):
            execute(box, base, "pass")
        box._session.leave()
        assert box.cpu_s == 0.0


def test_the_key_follows_no_redirect():
    with hostile([]) as elsewhere, hostile([(307, b"", 0)], elsewhere) as url:
        with pytest.raises(SandboxError, match="redirects"):
            RemoteSandbox(f"remote:{url}")
        assert KEYS[elsewhere] == []
        assert len(KEYS[url]) == 1


def test_an_address_that_is_none():
    with pytest.raises(SandboxError, match="is not an address"):
        RemoteSandbox("remote:http://[bad")


KEYS: dict[str, list[str]] = {}


@contextmanager
def hostile(replies, location=""):
    keys: list[str] = []
    handler = type("Replying", (Hostile,), {"replies": replies, "location": location, "keys": keys})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        KEYS[url] = keys
        try:
            yield url
        finally:
            server.shutdown()


WHERE_NOTHING_ISOLATES = """
import sys
from pathlib import Path
from composer_replication.sandbox import Command, Tree, open_sandbox
from composer_replication.sandbox.opening import available
from composer_replication.types.errors import SandboxUnavailableError

try:
    open_sandbox()
except SandboxUnavailableError as error:
    print(available(), "remote:URL" in error.fix)
box = open_sandbox(sys.argv[1])
python = Path(sys.executable)
done = box.run(Tree(base=Path(sys.argv[2])), Command(argv=(str(python), "-c", "print(open('keep.txt').read())"), python=python))
print(done.stdout.decode().strip(), box.isolation.network)
"""


def test_another_machine_is_the_sandbox_where_there_are_neither_namespaces_nor_landlock(address, base):
    """As in a stock container on an old kernel: the client makes no sandbox of its own."""
    tool = str(ROOT / "tests" / "tools" / "no_unshare.py")
    argv = [sys.executable, tool, "--no-landlock", sys.executable, "-c", WHERE_NOTHING_ISOLATES, f"remote:{address}", str(base)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND_S)
    assert done.returncode == 0, done.stderr
    refused, ran = done.stdout.splitlines()
    assert refused == "() True"
    assert ran.startswith("keep namespaces there: no network")
