"""The program of a container's process 1 as a plain process: what it answers, and that it ends with its host."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from system_calls import REFUSALS

from composer_replication.sandbox import Command, Limits, Tree
from composer_replication.sandbox.attempt import processes_with
from composer_replication.sandbox.backends.container_runner import BOOTSTRAP
from composer_replication.sandbox.backends.docker import _opened, _request
from composer_replication.sandbox.transfer.upload import archive_of

PYTHON = Path(sys.executable)


@contextmanager
def serving(tmp_path: Path, base: Path, code: str, *arguments: str) -> Iterator[subprocess.Popen]:
    """The process with its order; neither this package nor anything installed is in reach of it."""
    tree = Tree(base=base, changes={"pkg/old.py": None, "deep/new": b"new"})
    argv = (str(PYTHON), "-S", "-B", "-c", textwrap.dedent(code), *arguments)
    command = Command(argv=argv, python=PYTHON, stdin=b"in", limits=Limits(wall_s=600), read_back=True)
    room, spare = tmp_path / "room", tmp_path / "spare"
    for folder in (room, spare):
        folder.mkdir()
    program = [str(PYTHON), "-I", "-S", "-B", "-c", BOOTSTRAP, str(room), str(spare)]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/") as process:
        process.stdin.write(_request(tree, command, archive_of(tree)[0]))
        process.stdin.flush()
        yield process
        process.kill()


def test_a_command_is_run_and_told_of(tmp_path, base):
    code = """
        import os, sys
        open("keep.txt", "a").write(sys.stdin.read()); os.remove("deep/new"); open("made", "w").close()
        os.write(1, b"out"); os.write(2, b"err"); os.write(3, str(sorted(os.listdir())).encode())
        sys.exit(4)
    """
    with serving(tmp_path, base, code) as process:
        report, kept = _opened(process.stdout.read())
    assert (report.returncode, report.timed_out, report.not_kept) == (4, False, ())
    assert report.changes == {"keep.txt": b"keepin", "made": b"", "pkg/old.py": None}
    assert kept == {"stdout": b"out", "stderr": b"err", "channel": b"['deep', 'keep.txt', 'made', 'pkg', 'script.sh']"}


def test_the_command_is_under_our_filter_whatever_the_daemon_has(tmp_path, base):
    code = REFUSALS + "os.write(1, json.dumps(told).encode())"
    with serving(tmp_path, base, code) as process:
        report, kept = _opened(process.stdout.read())
    assert report.returncode == 0, kept
    told = json.loads(kept["stdout"])
    assert told.pop("clone3") == errno.ENOSYS
    assert {what: error for what, error in told.items() if error != errno.EPERM} == {}


def test_it_ends_when_its_host_does(tmp_path, base):
    marker = f"composer-inside-{tmp_path.name}"
    code = "import os, time; os.write(1, b'here'); time.sleep(600)"
    with serving(tmp_path, base, code, marker) as process:
        while not processes_with(marker):
            assert process.poll() is None
        process.stdin.close()
        report, _ = _opened(process.stdout.read())
    assert report.timed_out
    assert processes_with(marker) == []
