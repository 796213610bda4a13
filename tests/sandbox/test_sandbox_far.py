"""Both ends of a remote sandbox without a server between them: what they say to each other, and that the agent ends."""

from __future__ import annotations

import base64
import io
import json
import os
import select
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.sandbox import Command, Ending, ExecResult, Limits, Tree, open_sandbox
from composer_replication.sandbox.attempt import processes_with
from composer_replication.sandbox.backends.linux import arrivals, watch_arrivals
from composer_replication.sandbox.remote.mailbox import BOOTSTRAP, INBOX, LEASE, OUTBOX
from composer_replication.sandbox.transfer.archive import pack, unpack
from composer_replication.sandbox.transfer.messages import (
    command_of,
    error_facts,
    raise_error,
    request_archive,
    result_archive,
    result_of_archive,
)
from composer_replication.sandbox.transfer.upload import archive_of, modules_archive
from composer_replication.types.errors import MissingExtraError, SandboxError, SandboxUnavailableError, TaskError

PYTHON = Path(sys.executable)
CHANGES = {"a": b"one\r\n", "gone": None, "b/c": b""}
RESULT = ExecResult(
    ending=Ending.KILLED, returncode=-9, stdout=b"\xff", stderr=b"", channel=b"c", wall_s=1.5, cpu_s=0.5, changes=CHANGES
)


def sent(facts, blobs):
    return unpack(io.BytesIO(pack(facts, blobs)))


@given(st.binary(), st.dictionaries(st.text("ab", min_size=1), st.none() | st.binary()), st.dictionaries(st.text(), st.text()))
def test_an_order_comes_out_as_it_went_in(stdin, changes, env):
    limits = Limits(wall_s=1.5, memory_mb=7)
    command = Command(argv=("python", "-c", "x"), python=Path("/p"), stdin=stdin, env=env, limits=limits, read_back=True)
    tree = Tree(base=Path("/nowhere"), changes=changes)
    assert command_of(*sent(*request_archive(tree, command, b"packed"))) == (command, b"packed", changes)


@pytest.mark.parametrize("changes", [CHANGES, {}, None])
def test_a_result_comes_out_as_it_went_in(changes):
    result = ExecResult(**{name: getattr(RESULT, name) for name in RESULT.__slots__} | {"changes": changes})
    assert result_of_archive(*sent(*result_archive(result))) == result


@pytest.mark.parametrize("facts", [{"ending": "gone"}, {"ending": None}, {"changes": [["a", True]]}, {"returncode": "x"}])
def test_a_result_of_another_shape_is_not_read(facts):
    whole, blobs = result_archive(RESULT)
    with pytest.raises((KeyError, TypeError, ValueError)):
        result_of_archive({**whole, **facts}, blobs)
    del whole["cpu_s"]
    with pytest.raises(KeyError):
        result_of_archive(whole, blobs)


def test_a_changed_file_outside_the_tree_is_refused():
    facts, blobs = result_archive(RESULT)
    with pytest.raises(SandboxError, match="not a plain path"):
        result_of_archive({**facts, "changes": [["../up", True], *facts["changes"][1:]]}, blobs)


@pytest.mark.parametrize("error", [SandboxError("a", fix="b"), SandboxUnavailableError("a"), TaskError("a", fix="b")])
def test_an_error_is_raised_as_what_it_was(error):
    with pytest.raises(type(error), match=r"^there: a") as raised:
        raise_error(sent(error_facts(error), [])[0], "there")
    assert (type(raised.value), raised.value.fix) == (type(error), error.fix)


def test_no_other_class_is_raised_whatever_the_answer_says():
    with pytest.raises(SandboxError, match="there: x"):
        raise_error({"error": "SystemExit", "message": "x"}, "there")
    raise_error({"got": []}, "there")


def test_a_file_has_arrived_when_all_of_it_is_there(tmp_path):
    (tmp_path / "in").mkdir()
    fd = watch_arrivals(str(tmp_path / "in"))
    try:
        with (tmp_path / "in" / "written").open("wb") as file:
            file.write(b"half")
            file.flush()
            assert not select.select([fd], [], [], 0)[0]
        (tmp_path / "moved").touch()
        (tmp_path / "moved").rename(tmp_path / "in" / "moved-in")
        assert arrivals(fd) == ["written", "moved-in"]
    finally:
        os.close(fd)


class Agent:
    """A running agent, whose server is this process."""

    def __init__(self, lease_s: float) -> None:
        archive = base64.b64encode(modules_archive("sandbox/remote/agent.py")).decode()
        pieces = [archive[at : at + 60_000] for at in range(0, len(archive), 60_000)]
        argv = [str(PYTHON), "-I", "-S", "-B", "-W", "ignore", "-c", BOOTSTRAP, str(lease_s), *pieces]
        begun = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
        self.folder = Path(begun.stdout.strip())
        self.outbox = watch_arrivals(str(self.folder / OUTBOX))
        argument = f"main({str(self.folder)!r}"
        found = [name for name in filter(str.isdigit, os.listdir("/proc")) if argument in self.argument(name)]
        self.ends = [os.pidfd_open(int(name)) for name in found]

    @staticmethod
    def argument(pid: str) -> str:
        try:
            return Path("/proc", pid, "cmdline").read_text(errors="replace")
        except OSError:
            return ""

    def put(self, name, facts, blobs=()):
        (self.folder / "staged").write_bytes(pack(facts, blobs))
        (self.folder / "staged").rename(self.folder / INBOX / name)

    def answer(self, name):
        assert arrivals(self.outbox) == [name]
        return unpack(io.BytesIO(base64.b64decode((self.folder / OUTBOX / name).read_bytes())))

    def wait(self):
        """Until its processes have ended."""
        for fd in self.ends:
            assert select.select([fd], [], [], 300)[0], "the agent goes on"
        for fd in (*self.ends, self.outbox):
            os.close(fd)


@pytest.fixture
def agent():
    started = Agent(600.0)
    yield started
    (started.folder / LEASE).unlink(missing_ok=True)
    started.wait()
    assert not started.folder.exists()


def test_the_agent_serves_orders_in_this_machines_own_box(agent, base):
    agent.put("one", {"ask": "open"})
    facts, _ = agent.answer("one")
    assert (facts["python"], facts["isolation"]["name"]) == (str(PYTHON), open_sandbox().isolation.name)
    argv = (str(PYTHON), "-S", "-c", "import os; open('made', 'w').close(); os.remove('new'); os.write(3, os.getcwd().encode())")
    tree, command = Tree(base=base, changes={"new": b"new"}), Command(argv=argv, python=PYTHON, read_back=True)
    facts, blobs = request_archive(tree, command, archive_of(tree)[0])
    agent.put("two", {**facts, "ask": "run"}, blobs)
    result = result_of_archive(*agent.answer("two"))
    assert (result.ending, result.changes) == (Ending.EXITED, {"made": b""}), result
    assert result.channel.endswith(b"/repo"), result  # the whole path where the isolation has no root of its own
    assert sorted(path.name for path in agent.folder.iterdir()) == [INBOX, LEASE, OUTBOX, "program"]


def test_an_order_that_is_none_is_an_error_and_no_end(agent):
    agent.put("bad", {"ask": "run"})
    assert agent.answer("bad")[0]["error"] == "SandboxError"
    (agent.folder / INBOX / "torn").write_bytes(b"{")
    assert "could not be carried out" in agent.answer("torn")[0]["message"]
    agent.put("what", {"ask": "installation", "python": "/nowhere"})
    assert agent.answer("what")[0]["error"] == "TaskError"


def test_an_agent_that_cannot_answer_ends_instead_of_keeping_silent():
    agent = Agent(600.0)
    (agent.folder / INBOX / "huge").write_text(json.dumps({"facts": {}, "sizes": [1 << 62]}) + "\n")  # no machine has the memory
    agent.wait()
    assert not agent.folder.exists()


def test_the_agent_ends_with_its_lease_and_takes_its_boxes_along(base):
    marker = f"composer-far-{uuid.uuid4().hex}"
    argv = (str(PYTHON), "-S", "-c", "import time; time.sleep(600)", marker)
    tree = Tree(base=base)
    command = Command(argv=argv, python=PYTHON, limits=Limits(wall_s=600))
    facts, blobs = request_archive(tree, command, archive_of(tree)[0])
    agent = Agent(5.0)  # from here on the lease runs
    agent.put("run", {**facts, "ask": "run"}, blobs)
    while not processes_with(marker):
        assert not os.listdir(agent.folder / OUTBOX), "the order was answered"
        (agent.folder / LEASE).touch()
    agent.wait()
    assert processes_with(marker) == []
    assert not agent.folder.exists()


def test_without_the_extra_the_error_says_so(monkeypatch):
    monkeypatch.delitem(sys.modules, "composer_replication.sandbox.remote.client", raising=False)
    monkeypatch.setitem(sys.modules, "swerex", None)
    with pytest.raises(MissingExtraError, match="needs swe-rex") as refused:
        open_sandbox("remote:http://127.0.0.1:1/none")
    assert refused.value.fix == "pip install 'composer-replication[remote]'"
