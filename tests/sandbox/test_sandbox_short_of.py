"""A machine that is short of something: a box that cannot be made is a SandboxError, leaves nothing open, and the next works."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from composer_replication.sandbox import Command, Limits, Tree, open_sandbox, opening
from composer_replication.sandbox.backends.box import BoxSandbox
from composer_replication.sandbox.backends.pump import Pump
from composer_replication.sandbox.opening import available
from composer_replication.sandbox.protocol import Isolation
from composer_replication.sandbox.request import BoxReport, BoxRequest
from composer_replication.types.errors import SandboxError

PYTHON = Path(sys.executable)
SHORT_OF_DESCRIPTORS = """
    import contextlib, json, os, resource, sys
    from pathlib import Path
    from composer_replication.types.errors import SandboxError
    from composer_replication.sandbox import Command, Tree, open_sandbox
    from composer_replication.sandbox.backends.box import BoxSandbox
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    python, base, running = Path(sys.executable), Path(sys.argv[1]), sys.argv[2] == "running"
    command = Command(argv=(str(python), "-S", "-B", "-c", "print(1)"), python=python)
    box = open_sandbox("unsafe-subprocess")
    box.run(Tree(base=base), command)
    def sandbox():
        return box if running else BoxSandbox(box._setup)
    taken, messages = [], []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(0))
    while True:
        try:
            sandbox().run(Tree(base=base), command)
        except SandboxError as error:
            messages.append(error.message)
            try:
                found = os.dup(0)
            except OSError:
                found = None
            assert (found is None) == (len(messages) == 1), "what had been open is open"
            if found is not None:
                os.close(found)
            os.close(taken.pop())
        else:
            break
    print(json.dumps(messages))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("when", "what"), [("running", "the pipes of a sandbox"), ("starting", "the sandbox launcher")])
def test_no_descriptors_are_left_for_a_box(base, when, what):
    """One more is left for it each time, until they are enough: what fails in between keeps none."""
    root = str(Path(sys.modules["composer_replication"].__file__).parents[1])
    argv = [sys.executable, "-c", textwrap.dedent(SHORT_OF_DESCRIPTORS), str(base), when]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root})
    assert done.returncode == 0, done.stderr
    messages = json.loads(done.stdout)
    assert len(messages) > 3
    assert messages[0].startswith(what)
    assert all("Too many open files" in message for message in messages), messages
    assert len(messages) < 40, messages


def test_a_launcher_without_a_folder_for_temporary_files(base, tmp_path, monkeypatch):
    sandbox = BoxSandbox(open_sandbox("unsafe-subprocess")._setup)
    command = Command(argv=(str(PYTHON), "-S", "-c", ""), python=PYTHON)
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.tempdir", str(tmp_path / "gone"))
        with pytest.raises(SandboxError, match=r"the sandbox launcher cannot be started: .*gone") as refused:
            sandbox.run(Tree(base=base), command)
    assert "temporary files" in refused.value.fix
    assert sandbox.run(Tree(base=base), command).returncode == 0


@pytest.mark.skipif(not available(), reason="no isolating kind works on this machine")
def test_a_kind_that_cannot_be_tried_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert re.search("it cannot be tried: .*gone", opening._open_once.__wrapped__(available()[0]))


def request_of(base) -> BoxRequest:
    return BoxRequest(
        base=str(base), changes={}, argv=["true"], env={}, binds=[], masks=[], scratch="", wall_s=60.0, rlimits=[], disk_mb=1,
        memory_mb=1, processes=1, overlay=False,
    )  # fmt: skip


@pytest.mark.parametrize("kept", [1, -1])
def test_a_supervisor_that_dies_in_the_middle_of_its_report(base, kept):
    written = BoxReport(returncode=1).dumps()[:kept]

    def send(fds):
        os.write(fds.report, written)

    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(SandboxError, match="in the middle of its report"):
        Pump(b"", Limits()).run(send, request_of(base), time.monotonic() + 60)
    assert set(os.listdir("/proc/self/fd")) <= before  # what earlier tests have left may be collected meanwhile


def test_boxes_described_otherwise_share_their_users():
    described = open_sandbox("unsafe-subprocess")._setup
    first = BoxSandbox(dataclasses.replace(described, uids=(65534,)))
    second = first.with_isolation(Isolation(name="x", network="", files="", user="", limits=""))
    assert first._free_uids.get() == 65534
    assert second._free_uids.empty()
