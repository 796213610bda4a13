"""The Docker sandbox on a `docker` program that hangs, breaks off or is another one: no daemon is needed for that."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import select
import sys
from pathlib import Path

import pytest

from composer_replication.sandbox import Command, Ending, Limits, Tree
from composer_replication.sandbox.attempt import processes_with
from composer_replication.sandbox.backends import docker
from composer_replication.sandbox.backends.docker import open_docker
from composer_replication.sandbox.request import BoxReport
from composer_replication.sandbox.transfer.archive import pack
from composer_replication.types.errors import SandboxError, SandboxUnavailableError

PYTHON = Path(sys.executable)
BOUND_S = 60.0
PROGRAM = """#!/bin/sh
if [ "$1" = "$HANGING" ]; then
    sleep "$MARKER"  # a child, which keeps the pipes
    exit
fi
case "$1" in
    info) echo "$INFO" ;;
    image) echo sha256:0 ;;
    inspect) echo false ;;
    run) cat "$ANSWER" ;;
esac
"""
INFO = '{"MemoryLimit": true, "PidsLimit": true}'


@pytest.fixture
def hanging(tmp_path, monkeypatch):
    """`hanging(word)`: from now on, `docker WORD` does not end. At the end nothing of it may be left."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    marker = f"600.{random.getrandbits(48)}"
    report = dataclasses.asdict(BoxReport(returncode=3))
    del report["changes"]
    (tmp_path / "answer").write_bytes(pack({"report": report, "changes": None}, [b"out", b"", b""]))
    values = {"PATH": f"{program.parent}:/usr/bin:/bin", "MARKER": marker, "ANSWER": str(tmp_path / "answer"), "INFO": INFO}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(docker, "_ANSWER_S", 0.5)
    monkeypatch.setattr(docker, "_GRACE_S", 0.1)
    yield lambda word: monkeypatch.setenv("HANGING", word)
    for pid in processes_with(marker):  # killed, and perhaps not dead yet
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            assert select.select([fd], [], [], BOUND_S)[0], f"process {pid} goes on"
            os.close(fd)


def run(sandbox, base):
    return sandbox.run(Tree(base=base), Command(argv=(str(PYTHON), "-c", ""), python=PYTHON, limits=Limits(wall_s=0.4)))


@pytest.mark.parametrize("word", ["info", "image"])
def test_a_daemon_that_hangs_when_it_is_opened(hanging, word):
    hanging(word)
    with pytest.raises(SandboxUnavailableError, match=rf"`docker {word}` did not end within 0\.5 s: the daemon hangs") as refused:
        open_docker("docker", "image")
    assert "restart it" in refused.value.fix


def test_a_daemon_that_hangs_while_a_container_runs(hanging, base):
    sandbox = open_docker("docker", "image")
    hanging("run")
    with pytest.raises(SandboxError, match="ended without an answer: it was stopped, or took too long"):
        run(sandbox, base)


def test_a_daemon_that_hangs_when_it_is_asked_what_became_of_a_container(hanging, base, monkeypatch):
    sandbox = open_docker("docker", "image")
    monkeypatch.setenv("ANSWER", "/dev/null")
    hanging("inspect")
    with pytest.raises(SandboxError, match=r"`docker inspect` did not end within 0\.5 s"):
        run(sandbox, base)


def test_a_container_that_is_not_removed_spoils_no_result(hanging, base, caplog):
    sandbox = open_docker("docker", "image")
    hanging("rm")
    result = run(sandbox, base)
    assert (result.ending, result.returncode, result.stdout) == (Ending.EXITED, 3, b"out")
    assert "a container may be left: `docker rm` did not end" in caplog.text


def test_abandoned_containers_that_are_not_removed_keep_nobody_from_working(hanging, base, caplog):
    hanging("container")
    assert run(open_docker("docker", "image"), base).returncode == 3
    assert "a container may be left" in caplog.text


def test_a_program_of_that_name_that_is_another_one(hanging, monkeypatch):
    monkeypatch.setenv("INFO", "docker: a dockable panel for your desktop")
    with pytest.raises(SandboxUnavailableError, match=r"bin/docker is not Docker: to `docker info` it says 'docker: a dockable"):
        open_docker("docker", "image")


def test_a_program_that_cannot_be_started(hanging, tmp_path):
    (tmp_path / "bin" / "docker").write_bytes(b"\x7fELF, but no more")
    with pytest.raises(SandboxUnavailableError, match=r"bin/docker cannot be started: .*Exec format error"):
        open_docker("docker", "image")


def test_a_program_that_ends_near_the_end_of_its_order():
    """What is left is less than a buffer: it is tried again when the pipe is closed."""
    order = bytes(1 << 20)
    source = f"""
import fcntl, os, struct, termios
left = {len(order)} - (1 << 16) - 4096
while left:
    left -= len(os.read(0, min(left, 1 << 16)))
while struct.unpack("i", fcntl.ioctl(0, termios.FIONREAD, bytes(4)))[0] < 1 << 16:
    pass
"""
    with docker._container([sys.executable, "-c", source], 60.0) as process:
        assert docker._exchange(process, order, 100) == (b"", "")
