"""The Docker sandbox on a real daemon: it holds, it behaves like the other kinds, and what breaks is nobody's reward."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from composer_replication.sandbox import Command, Ending, Limits, Tree, open_sandbox
from composer_replication.sandbox.backends import docker
from composer_replication.sandbox.doctor.probes import PROBES
from composer_replication.sandbox.doctor.selftest import ProbeVerdict, self_test
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.types.errors import SandboxError, SandboxUnavailableError

PYTHON = Path(sys.executable)
BY_NAME = {probe.name: probe for probe in PROBES}


def execute(sandbox, base, code, *, changes=None, stdin=b"", read_back=False, **limits):
    argv = (str(PYTHON), "-S", "-B", "-c", textwrap.dedent(code))
    limits = Limits(**{"wall_s": 60.0, "disk_mb": 32, **limits})
    command = Command(argv=argv, python=PYTHON, stdin=stdin, limits=limits, read_back=read_back)
    return sandbox.run(Tree(base=base, changes=changes or {}), command)


def containers() -> list[str]:
    argv = ["docker", "ps", "--all", "--quiet", "--filter", "ancestor=composer-sandbox-test"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("name", BY_NAME)
def test_no_probe_gets_through(box, name):
    (finding,) = self_test(box, [BY_NAME[name]])
    admitted = {ProbeVerdict.ADMITTED} if name == "shared files" else set()  # where the interpreter is the host's
    assert finding.verdict in {ProbeVerdict.BLOCKED, *admitted}, finding


def test_the_container_is_as_small_as_it_is_said_to_be(box, base):
    code = """
        import json, os
        facts = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
        def writable(path):
            try:
                open(path + "/new", "w").close()
            except OSError:
                return False
            return True
        top = [path for path in ("/", "/usr", "/etc", "/dev", "/spare", "/tmp", ".") if writable(path)]
        nets = [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]]
        found = [os.getuid(), os.getgid(), facts["CapBnd"].strip(), facts["Seccomp"].strip(), top, nets, os.getppid()]
        os.write(3, json.dumps(found).encode())
    """
    result = execute(box, base, code)
    assert json.loads(result.channel) == [65534, 65534, "0" * 16, "2", ["/tmp", "."], ["lo"], 1], result


def test_the_tree_is_a_disposable_copy_and_changes_come_back(box, base):
    code = """
        import json, os, subprocess, sys
        found = sorted(os.path.join(d, f)[2:] for d, _, fs in os.walk(".") for f in fs)
        first = [found, open("link").read(), subprocess.run(["./script.sh"], capture_output=True, text=True).stdout]
        open("same.txt", "a").write("!"); os.remove("pkg/new.py"); open("made", "w").close(); os.symlink("/", "out")
        os.write(1, sys.stdin.buffer.read()[-5:]); os.write(2, b"err")
        os.write(3, json.dumps(first).encode())
        sys.exit(7)
    """
    changes = {"pkg/new.py": b"new", "pkg/old.py": None, "keep.txt": b"changed"}
    result = execute(box, base, code, changes=changes, stdin=b"a" * 1_000_000 + b"final", read_back=True)
    assert (result.ending, result.returncode, result.stdout, result.stderr) == (Ending.EXITED, 7, b"final", b"err")
    names = ["keep.txt", "link", "pkg/new.py", "same.txt", "script.sh"]
    assert json.loads(result.channel) == [names, "changed", "ran\n"]
    assert result.changes == {"keep.txt": b"changed", "made": b"", "pkg/old.py": None, "same.txt": b"keep!"}
    assert result.not_kept == ("'out' (a link)",)
    assert (base / "keep.txt").read_text() == "keep"


def test_a_command_that_blocks_the_comparison_changed_nothing(box, base):
    result = execute(box, base, "import os; os.mkdir('/spare/base'); open('keep.txt', 'w').close()", read_back=True)
    assert (result.ending, result.changes) == (Ending.EXITED, {})
    assert "blocked the folder for comparing" in result.not_kept[0]


def test_process_1_cannot_be_killed_by_what_it_watches(box, base):
    code = """
        import os, signal
        if os.fork() == 0:
            signal.pause()
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
            os.kill(1, number)
        os.write(3, b"alive")
        os.kill(-1, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    result = execute(box, base, code)
    assert (result.ending, result.channel) == (Ending.KILLED, b"alive")


def test_process_1_cannot_be_looked_into_by_what_it_watches(box, base):
    code = """
        import json, os
        def reached(action):
            try:
                return action() is not False
            except OSError:
                return False
        ways = [lambda: open("/proc/1/mem", "rb"), lambda: os.listdir("/proc/1/fd"), lambda: open("/proc/1/fd/1", "wb")]
        os.write(3, json.dumps([reached(way) for way in ways]).encode())
    """
    result = execute(box, base, code)
    assert json.loads(result.channel) == [False] * 3, result


def test_pytest_runs_as_in_any_box(box, base):
    (base / "test_it.py").write_text("def test_good(): pass\n\n\ndef test_bad(): assert False\n")
    run = CodeRunner(sandbox=box, python=PYTHON).run(Tree(base=base), ["test_it.py::test_good", "test_it.py::test_bad"])
    assert {name: str(outcome) for name, outcome in run.outcomes.items()} == {
        "test_it.py::test_good": "passed",
        "test_it.py::test_bad": "failed",
    }


def test_a_daemon_that_does_not_answer(image, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    with pytest.raises(SandboxUnavailableError, match="no Docker daemon answers") as refused:
        open_sandbox(f"docker:{image}:latest")
    assert "DOCKER_HOST" in refused.value.fix


def test_a_daemon_that_hangs(image, tmp_path, monkeypatch):
    """It accepts, and says nothing."""
    monkeypatch.setattr(docker, "_ANSWER_S", 1.0)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "hangs"))
        server.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/hangs")
        with pytest.raises(SandboxUnavailableError, match="`docker info` did not end within 1 s: the daemon hangs"):
            docker.open_docker("docker", image)


def test_a_daemon_that_hangs_between_two_boxes(box, base, tmp_path, monkeypatch):
    monkeypatch.setattr(docker, "_ANSWER_S", 1.0)
    monkeypatch.setattr(docker, "_GRACE_S", 1.0)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "hangs"))
        server.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/hangs")
        with pytest.raises(SandboxError, match="`docker inspect` did not end within 1 s"):
            execute(box, base, "pass", wall_s=1.0)


def test_an_image_that_is_not_there_is_not_pulled():
    with pytest.raises(SandboxUnavailableError, match="there is no Docker image composer-no-such-image") as refused:
        open_sandbox("docker:composer-no-such-image")
    assert refused.value.fix.startswith("docker pull composer-no-such-image")


def test_the_daemon_goes_away_between_two_boxes(box, base, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    with pytest.raises(SandboxError, match=r"ended without an answer: .*nobody"):
        execute(box, base, "pass")


def test_a_container_lost_in_the_middle_is_no_result(box, base):
    assert containers() == []
    failed: list[SandboxError] = []

    def run():
        try:
            execute(box, base, "import time; time.sleep(600)", wall_s=600.0)
        except SandboxError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not (found := containers()):
        pass
    while subprocess.run(["docker", "kill", found[0]], capture_output=True).returncode != 0:
        pass  # it is made, and not yet started
    thread.join()
    assert "ended without an answer" in failed[0].message
    assert containers() == []


def test_the_box_dies_with_its_host(box, base):
    host = f"""
        from pathlib import Path
        from composer_replication.sandbox import Command, Limits, Tree, open_sandbox
        python = {sys.executable!r}
        argv = (python, "-S", "-c", "import time; time.sleep(600)")
        box = open_sandbox({box.isolation.name!r})
        print("open", flush=True)
        box.run(Tree(base=Path({str(base)!r})), Command(argv=argv, python=Path(python), limits=Limits(wall_s=600)))
    """
    root = str(Path(sys.modules["composer_replication"].__file__).parents[1])
    argv = [sys.executable, "-c", textwrap.dedent(host)]
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"open\n"
        while not (found := containers()):
            assert process.poll() is None
        while state(found[0]) != "running":
            assert process.poll() is None
        process.kill()
    while state(found[0]) == "running":
        pass
    subprocess.run(["docker", "rm", "--force", *found], check=True, capture_output=True)


def state(container: str) -> str:
    argv = ["docker", "inspect", "--format", "{{.State.Status}}", container]
    return subprocess.run(argv, capture_output=True, text=True).stdout.strip()
