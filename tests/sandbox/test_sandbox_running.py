"""What a program in a box sees and what its host gets back, the same in every kind of box."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import signal
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from composer_replication.sandbox import Command, Ending, Limits, Tree, open_sandbox
from composer_replication.sandbox.backends.box import BoxSandbox
from composer_replication.sandbox.request import WARM_FLAGS, BoxReport
from composer_replication.sandbox.transfer.requests import ending_of
from composer_replication.types.errors import ConfigError, SandboxError

PYTHON = Path(sys.executable)


def test_the_tree_is_a_disposable_copy(any_box, base, answer):
    changes = {"pkg/new.py": b"new", "pkg/old.py": None, "keep.txt": b"changed", "deep/er/file": b"x", "gone/never": None}
    code = """
        import json, os, subprocess
        found = sorted(os.path.join(d, f)[2:] for d, _, fs in os.walk(".") for f in fs)
        first = [found, open("keep.txt").read(), subprocess.run(["./script.sh"], capture_output=True, text=True).stdout]
        open("keep.txt", "a").write("!")
        os.remove("pkg/new.py"); os.rename("deep", "deeper"); os.mkdir("pkg/old.py"); open("made", "w").close()
        os.write(3, json.dumps([*first, open("keep.txt").read()]).encode())
    """
    for _ in range(2):
        found, kept, ran, appended = answer(any_box, base, code, changes=changes)
        assert found == ["deep/er/file", "keep.txt", "pkg/new.py", "script.sh"]
        assert (kept, ran, appended) == ("changed", "ran\n", "changed!")
    assert sorted(str(p.relative_to(base)) for p in base.rglob("*")) == ["keep.txt", "pkg", "pkg/old.py", "script.sh"]
    assert (base / "keep.txt").read_text() == "keep"


def test_changes_do_not_follow_links_of_the_tree(any_box, base, tmp_path, answer):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("host")
    (base / "link").symlink_to(outside)
    (base / "file").symlink_to(outside / "file")
    code = "import json, os; os.write(3, json.dumps([open('link/file').read(), open('file').read()]).encode())"
    assert answer(any_box, base, code, changes={"link/file": b"box", "file": b"box"}) == ["box", "box"]
    assert (outside / "file").read_text() == "host"


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "a//b", ".", "a/.."])
def test_changes_must_be_plain_relative_paths(any_box, base, path, execute):
    with pytest.raises(SandboxError, match="not a plain path"):
        execute(any_box, base, "pass", changes={path: b"x"})


@pytest.mark.parametrize("warm", [False, True])
def test_the_environment_and_descriptors_are_clean(any_box, base, monkeypatch, warm, answer):
    monkeypatch.setenv("HOST_SECRET", "tell-nobody")
    code = """
        import json, os
        fds = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 3 and os.path.exists(f"/proc/self/fd/{fd}")]
        first = open("/proc/self/environ").read()
        os.write(3, json.dumps([dict(os.environ), fds, "tell-nobody" in first]).encode())
    """
    environment, extra, leaked = answer(any_box, base, code, warm=warm)
    assert not leaked
    assert "HOST_SECRET" not in environment
    assert environment["COMPOSER_RESULT_FD"] == "3"
    assert extra == []


@pytest.mark.parametrize("warm", [False, True])
def test_a_host_with_many_descriptors_gives_none_away(any_box, base, warm, answer):
    """The launcher's have the numbers that they have here, which may be above the limit of a command's own."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, before[1]), before[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(2500)]
    code = """
        import json, os
        fds = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 3 and os.path.exists(f"/proc/self/fd/{fd}")]
        os.write(3, json.dumps(fds).encode())
    """
    try:
        assert answer(BoxSandbox(any_box._setup), base, code, warm=warm) == []
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_stdin_output_channel_and_exit_status(any_box, base):
    code = """
        import os, sys
        data = sys.stdin.buffer.read()
        os.write(1, str(len(data)).encode()); os.write(2, b"err"); os.write(int(os.environ["COMPOSER_RESULT_FD"]), data[-5:])
        sys.exit(7)
    """
    argv = (str(PYTHON), "-S", "-c", textwrap.dedent(code))
    command = Command(argv=argv, python=PYTHON, stdin=b"a" * 3_000_000 + b"final")
    result = any_box.run(Tree(base=base), command)
    assert (result.stdout, result.stderr, result.channel) == (b"3000005", b"err", b"final")
    assert (result.ending, result.returncode) == (Ending.EXITED, 7)


def test_output_beyond_the_limit_is_dropped(any_box, base, execute):
    code = "import sys; sys.stdout.write('x' * 5_000_000); sys.stderr.write('y' * 5_000_000)"
    result = execute(any_box, base, code, output_bytes=1000)
    assert (len(result.stdout), len(result.stderr), result.ending) == (1000, 1000, Ending.EXITED)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_death_by_signal_is_told(any_box, base, number, execute):
    result = execute(any_box, base, f"import os; os.kill(os.getpid(), {int(number)})")
    assert (result.ending, result.returncode) == (Ending.KILLED, -number)


def test_a_kill_for_memory_elsewhere_is_not_this_box():
    """The machine counts the kills in every box; a box with a control group of its own counts those that were its own."""

    report = BoxReport(returncode=-signal.SIGKILL, host_oom=True, oom_killed=False)
    assert ending_of(report, Limits(), b"") is Ending.KILLED
    with pytest.raises(SandboxError, match="the machine ran out of memory"):
        ending_of(dataclasses.replace(report, oom_killed=None), Limits(), b"")
    with pytest.raises(SandboxError, match="the machine ran out of memory"):  # its group says that its limit was not reached
        ending_of(dataclasses.replace(report, host_oom=False, killed_for_the_machine=True), Limits(), b"")


def test_a_program_that_is_not_there_is_an_error(any_box, base):
    if any_box.isolation.name == "bubblewrap":
        result = any_box.run(Tree(base=base), Command(argv=("/nowhere",), python=PYTHON))
        assert result.returncode == 1
        assert b"No such file" in result.stderr
    else:
        with pytest.raises(SandboxError, match="No such file"):
            any_box.run(Tree(base=base), Command(argv=("/nowhere",), python=PYTHON))


def test_a_missing_base_is_an_error(any_box, tmp_path, execute):
    with pytest.raises(SandboxError, match="base folder"):
        execute(any_box, tmp_path / "nowhere", "pass")


def test_many_boxes_at_once_stay_apart(any_box, base, answer):
    code = """
        import json, os, sys
        open(os.environ["TMPDIR"] + "/mine", "x").write(sys.argv[1]); open("mine", "x").write(sys.argv[1])
        os.write(3, json.dumps([sys.argv[1], open(os.environ["TMPDIR"] + "/mine").read(), open("mine").read()]).encode())
    """
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: answer(any_box, base, code, str(n)), range(24)))
    assert answers == [[str(n)] * 3 for n in range(24)]


def test_nothing_is_left_open_or_on_disk(any_box, base, execute, answer):
    answer(any_box, base, "import os; os.write(3, b'1')")
    launcher = any_box._launchers[""]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        answer(any_box, base, "import os; os.write(3, b'1')")
        execute(any_box, base, "import time; time.sleep(600)", wall_s=0.2)
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(launcher.scratch) == []
    cgroups = any_box._setup.cgroups
    for folder in [] if cgroups is None else [cgroups.memory, cgroups.pids]:
        while [group for group in folder.glob(f"composer-box-{os.getpid()}-*") if not is_running(group.name.split("-")[3])]:
            pass  # those of the boxes that wait are there; the launcher removes the others within a second


def is_running(pid):
    return Path("/proc", pid).exists()


def test_boxes_that_are_killed_while_they_wait_are_replaced(any_box, base, answer):
    answer(any_box, base, "import os; os.write(3, b'1')")
    launcher = any_box._launchers[""]._process.pid
    waiting = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    assert waiting
    for pid in waiting:
        with contextlib.suppress(ProcessLookupError):  # the box that has answered may still have been ending
            os.kill(int(pid), signal.SIGKILL)
    while any(is_running(pid) for pid in waiting):
        pass
    assert answer(any_box, base, "import os; os.write(3, b'2')") == 2
    assert any_box._launchers[""]._process.pid == launcher


@pytest.mark.slow
def test_a_killed_launcher_is_replaced(any_box, base, answer):
    answer(any_box, base, "import os; os.write(3, b'1')")
    launcher = any_box._launchers[""]
    launcher._process.kill()
    launcher._process.wait()
    assert answer(any_box, base, "import os; os.write(3, b'2')") == 2
    assert any_box._launchers[""] is not launcher


def test_a_base_owned_by_somebody_else_is_still_writable(box, base, answer):
    if os.geteuid() == 0:
        for path in (base, *base.rglob("*")):
            os.chown(path, 12345, 12345)
    code = "import os; open('keep.txt', 'a').write('!'); open('new', 'w').close(); os.write(3, b'true')"
    assert answer(box, base, code) is True
    assert (base / "keep.txt").read_text() == "keep"


def test_unknown_kinds_are_refused():
    with pytest.raises(ConfigError, match="no sandbox kind"):
        open_sandbox("chroot")  # type: ignore[arg-type]  # the mistake under test


FINGERPRINT = """
    import atexit, gc, inspect, json, os, pickle, signal, sys, threading
    class Mine: pass
    facts = {
        "argv": sys.argv, "path": sys.path, "hash": hash("abc"), "name": __name__, "executable": sys.executable,
        "main": sorted(n for n in vars(sys.modules["__main__"]) if n.startswith("__") and n != "__annotations__"),
        "pickled": type(pickle.loads(pickle.dumps(Mine()))).__module__, "files": sorted({f.filename for f in inspect.stack()}),
        "threads": threading.active_count(), "gc": gc.isenabled(), "prefix": sys.prefix, "flags": str(sys.flags),
        "ours": sorted(n for n in sys.modules if n.startswith("composer_replication")), "encoding": sys.stdout.encoding,
        "sigint": str(signal.getsignal(2)), "sigchld": str(signal.getsignal(17)), "stdin": sys.stdin.read(),
        "environ": {k: v for k, v in os.environ.items() if k not in ("HOME", "TMPDIR")},
    }
    atexit.register(lambda: os.write(3, json.dumps(facts, sort_keys=True).encode()))
    print("to stdout")
    sys.exit(5)
"""


def test_a_warm_start_cannot_be_told_from_a_cold_one(any_box, base):
    code = textwrap.dedent(FINGERPRINT)
    results = []
    for environment in ({}, {"PYTHONNODEBUGRANGES": ""}):
        argv = (str(PYTHON), *WARM_FLAGS, code, "one", "two")
        result = any_box.run(Tree(base=base), Command(argv=argv, python=PYTHON, stdin=b"input", env=environment))
        facts = json.loads(result.channel)
        facts["environ"].pop("PYTHONNODEBUGRANGES", None)
        results.append((facts, result.returncode, result.stdout))
    assert results[0] == results[1]
    assert results[0][0]["ours"] == []
    assert results[0][1:] == (5, b"to stdout\n")


def test_a_warm_program_fails_like_any_other(any_box, base, execute):
    result = execute(any_box, base, "def f(): raise ValueError('oh')\nf()", warm=True)
    assert (result.ending, result.returncode) == (Ending.EXITED, 1)
    lines = result.stderr.decode().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: oh"
    assert "launcher" not in result.stderr.decode()
    assert execute(any_box, base, "import os; os.abort()", warm=True).returncode == -signal.SIGABRT
    assert execute(any_box, base, "def broken(:", warm=True).returncode == 1
