"""Every kind of box this machine allows, attacked from inside. `test_sandbox_elsewhere.py` runs this file as other users too."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

from composer_replication.sandbox import Ending, Isolation, open_sandbox
from composer_replication.sandbox.attempt import processes_with
from composer_replication.sandbox.backends import landlock, linux
from composer_replication.sandbox.doctor.probes import PROBES
from composer_replication.sandbox.doctor.selftest import ProbeVerdict, self_test
from composer_replication.sandbox.opening import available
from composer_replication.types.errors import SandboxError, SandboxUnavailableError

ISOLATING = available()
BY_NAME = {probe.name: probe for probe in PROBES}
WORK_UNCONFINED = {"network", "host files", "host writes", "/proc", "signals", "watcher", "neighbour"}
WORK_UNCONFINED |= {
    "sockets",
    "kernel",
    "file handles",
    "terminal",
    "shared files",
    "system calls",
    "software",
    "software's names",
}
"""What a plain subprocess gets away with as any user; limits hold there too, and what it leaves running is killed."""
if os.geteuid() == 0:
    WORK_UNCONFINED |= {"ptrace", "capabilities", "mount"}
with contextlib.suppress(OSError):  # a stock container refuses keys
    linux.syscall("keyctl", 0, -3, 0)
    WORK_UNCONFINED |= {"keys"}


def test_a_weaker_kind_says_why_it_is_not_a_stronger_one():
    """What this machine refuses is found out by asking it; `test_sandbox_elsewhere.py` asks machines that refuse more."""
    assert ("landlock" in ISOLATING) == (landlock.abi_version() > 0)
    isolation = open_sandbox().isolation
    assert isolation.name == ISOLATING[0]
    reasons = []
    for kind in ("namespaces", "bubblewrap") if isolation.name == "landlock" else ():
        with pytest.raises(SandboxUnavailableError) as refused:
            open_sandbox(kind)
        reasons.append(f"{kind} refused: " + refused.value.message.partition(": ")[2])
    assert [phrase for phrase in isolation.missing if "refused" in phrase] == reasons


@pytest.mark.parametrize("name", BY_NAME)
def test_no_probe_gets_through(box, name):
    (finding,) = self_test(box, [BY_NAME[name]])
    assert finding.verdict in (ProbeVerdict.BLOCKED, ProbeVerdict.ADMITTED), finding
    if finding.verdict is ProbeVerdict.ADMITTED:
        assert finding.detail[-1].removeprefix("not enforced: ") in box.isolation.missing


@pytest.mark.parametrize("name", sorted(WORK_UNCONFINED))
def test_the_probes_work_where_nothing_confines_them(name):
    """A probe that cannot get out of no box at all proves nothing about the others."""
    (finding,) = self_test(open_sandbox("unsafe-subprocess"), [BY_NAME[name]])
    assert finding.verdict is ProbeVerdict.OPEN, finding


def test_a_box_that_breaks_is_not_a_box_that_holds():
    class Broken:
        isolation = open_sandbox("unsafe-subprocess").isolation

        def run(self, tree, command):
            raise SandboxError("no box")

    (finding,) = self_test(Broken(), [BY_NAME["network"]])
    assert (finding.verdict, finding.detail) == (ProbeVerdict.BROKEN, ("no box",))


@pytest.mark.parametrize("warm", [False, True])
def test_the_user_of_a_box(box, base, warm, answer):
    code = """
        import json, os
        facts = dict(line.split(":") for line in open("/proc/self/status").read().splitlines())
        os.write(3, json.dumps([os.getuid(), os.getgid(), facts["CapBnd"].strip()]).encode())
    """
    uid, gid, bounding = answer(box, base, code, warm=warm)
    if box.isolation.name == "landlock":
        # one of those that boxes take in turn: another of this process may have the first
        assert uid in box._setup.uids or box.isolation.user.startswith(f"uid {uid}")
        assert bounding == "0" * 16 or os.geteuid() != 0
    else:
        assert (uid, gid, bounding) == (65534, 65534, "0" * 16)


def test_a_daemon_does_not_survive_a_timeout(any_box, base, execute):
    marker = f"composer-daemon-{os.getpid()}-{any_box.isolation.name}"
    code = """
        import subprocess, sys, time
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)", sys.argv[1]], start_new_session=True)
        time.sleep(600)
    """
    assert execute(any_box, base, code, marker, wall_s=1.0).ending is Ending.TIMEOUT
    assert processes_with(marker) == []


def test_the_box_dies_with_its_host(any_box, base, tmp_path):
    marker = f"composer-orphan-{os.getpid()}-{any_box.isolation.name}"
    host = f"""
        import sys
        from pathlib import Path
        from composer_replication.sandbox import Command, Tree, open_sandbox
        python = {sys.executable!r}
        command = Command(argv=(python, "-S", "-c", "import time; time.sleep(600)", {marker!r}), python=Path(python))
        open_sandbox({any_box.isolation.name!r}).run(Tree(base=Path({str(base)!r})), command)
    """
    package_root = str(Path(sys.modules["composer_replication"].__file__).parents[1])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "PYTHONPATH": package_root, "TMPDIR": str(scratch)}
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(host)], env=environment, stderr=subprocess.PIPE)
    while not [pid for pid in processes_with(marker) if pid != process.pid]:
        assert process.poll() is None
    process.kill()
    assert process.communicate()[1] == b""  # at its end no process of the host is left that could complain
    assert processes_with(marker) == []
    assert list(scratch.iterdir()) == []


def test_this_package_is_hidden_in_the_interpreter(box, base, tmp_path, answer):
    venv.create(tmp_path / "venv", symlinks=True)
    site_packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    (site_packages / "composer_replication" / "quickstart").mkdir(parents=True)
    (site_packages / "composer_replication" / "quickstart" / "gold.py").write_text("answer = 42")
    (site_packages / "neighbour.py").write_text("value = 1")
    code = """
        import json, os, sys
        sys.path.append(sys.argv[1])
        import neighbour
        try:
            gold = open(sys.argv[1] + "/composer_replication/quickstart/gold.py").read()
        except OSError:
            gold = None
        os.write(3, json.dumps([neighbour.value, gold, sys.prefix]).encode())
    """
    python = tmp_path / "venv" / "bin" / "python"
    assert answer(box, base, code, str(site_packages), python=python) == [1, None, str(tmp_path / "venv")]


def test_packages_of_other_interpreters_are_hidden(box, base, tmp_path, answer):
    """One of them may have the project that a task is made from, under its own name or among what pip brings along."""
    venv.create(tmp_path / "venv", symlinks=True)
    own = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    wheels = tmp_path / "venv" / "share" / "python-wheels"
    others = [own.parents[1] / "python3.0" / "site-packages", tmp_path / "venv" / "pkgs" / "gold-1", own / "pip", wheels]
    for folder in (own, *others):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gold.py").write_text("answer = 42")
    code = """
        import json, os, sys
        def readable(folder):
            try:
                return bool(open(folder + "/gold.py").read())
            except OSError:
                return False
        os.write(3, json.dumps([readable(folder) for folder in sys.argv[1:]]).encode())
    """
    python = tmp_path / "venv" / "bin" / "python"
    found = answer(box, base, code, *map(str, (own, *others)), python=python)
    assert found == [True, False, False, False, False]


def test_isolation_is_described(box):
    isolation = box.isolation
    assert isinstance(isolation, Isolation)
    assert isolation.summary().startswith(f"{isolation.name}: ")
    assert "rlimits" in isolation.limits
