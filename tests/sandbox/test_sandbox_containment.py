"""Every kind of box this machine allows, attacked from inside. `test_sandbox_elsewhere.py` runs this file as other users too."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

from composer_replication.errors import SandboxUnavailableError
from composer_replication.sandbox import Ending, Isolation, landlock, open_sandbox
from composer_replication.sandbox.opening import available

ISOLATING = available()


@pytest.fixture
def victim():
    """A process of ours on the host, with a secret in its environment."""
    argv = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, env={"HOST_SECRET": "tell-nobody"})
    yield process
    process.stdin.close()
    process.wait()


def running(marker: str) -> list[int]:
    """Host processes with `marker` among their arguments."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and marker.encode() in Path("/proc", name, "cmdline").read_bytes().split(b"\0"):
                found.append(int(name))
        except OSError:
            continue
    return found


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


def test_no_network(box, base, answer):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind(f"\0composer-test-{os.getpid()}")
        abstract.listen()
        code = """
            import json, os, socket, sys
            def attempt(f):
                try:
                    f(); return "reached"
                except OSError:
                    return "refused"
            def udp():
                s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b"x", ("127.0.0.1", int(sys.argv[2])))
            def unix():
                s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[3].replace("@", "\\0"))
            tcp = attempt(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5))
            attempt(udp)
            os.write(3, json.dumps([tcp, attempt(unix)]).encode())
        """
        name = f"@composer-test-{os.getpid()}"
        got = answer(box, base, code, str(server.getsockname()[1]), str(udp.getsockname()[1]), name)
        abstract.close()
        assert got == ["refused", "refused"]
        with pytest.raises(BlockingIOError):
            udp.recv(1)


def test_no_host_files(box, base, tmp_path, answer):
    (tmp_path / "secret.txt").write_text("host secret")
    home = os.path.expanduser("~")
    code = """
        import json, os, sys
        def read(path):
            try:
                return open(path).read()
            except OSError:
                return None
        def entries(path):
            try:
                return os.listdir(path)
            except OSError:
                return []
        os.write(3, json.dumps([read(sys.argv[1]), read("/etc/passwd"), entries(sys.argv[2])]).encode())
    """
    secret, passwd, listing = answer(box, base, code, str(tmp_path / "secret.txt"), home)
    assert secret is None
    assert passwd != Path("/etc/passwd").read_text()
    hidden = set(os.listdir(home)) if os.path.isdir(home) and os.access(home, os.R_OK) else set()
    installation = {part for prefix in (sys.prefix, sys.base_prefix) for part in Path(prefix).parts}
    assert not (set(listing) & hidden) - installation


def test_host_files_cannot_be_written(box, base, tmp_path, answer):
    target = tmp_path / "target.txt"
    target.write_text("before")
    target.chmod(0o666)
    tmp_path.chmod(0o777)
    code = """
        import json, os, sys
        def write(path):
            try:
                os.close(os.open(path, os.O_WRONLY | (0 if os.path.exists(path) else os.O_CREAT))); return "opened"
            except OSError:
                return "refused"
        paths = ["/usr/composer-test", "/etc/passwd", "/proc/sys/kernel/core_pattern", sys.prefix + "/composer-test"]
        try:
            os.chmod(sys.argv[1], 0o600)
        except OSError:
            pass
        os.write(3, json.dumps([write(p) for p in (*paths, sys.argv[1])]).encode())
    """
    assert answer(box, base, code, str(target)) == ["refused"] * 5
    assert target.read_text() == "before"
    assert target.stat().st_mode & 0o777 == 0o666


def test_host_processes_are_out_of_reach(box, base, victim, answer):
    code = """
        import json, os, sys
        seen = []
        try:
            names = os.listdir("/proc")
        except OSError:
            names = []
        for name in (*names, sys.argv[1]):
            try:
                seen.append(open(f"/proc/{name}/environ", "rb").read().decode(errors="replace"))
            except OSError:
                pass
        try:
            os.kill(int(sys.argv[1]), 9)
        except OSError:
            pass
        os.write(3, json.dumps("tell-nobody" in "".join(seen)).encode())
    """
    assert answer(box, base, code, str(victim.pid)) is False
    signals_open = any(phrase.startswith("signals") for phrase in box.isolation.missing)
    assert victim.poll() is None or signals_open


@pytest.mark.parametrize("warm", [False, True])
def test_no_privileges(box, base, warm, answer):
    code = """
        import ctypes, json, os
        libc = ctypes.CDLL(None)
        facts = dict(line.split(":") for line in open("/proc/self/status").read().splitlines())
        attempts = {
            "mount": libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
            "mount namespace": libc.unshare(0x00020000),
            "user namespace": libc.unshare(0x10000000),
            "chroot": libc.chroot(b"."),
            "sethostname": libc.sethostname(b"x", 1),
            "setuid": libc.setuid(0) if os.getuid() else -1,
        }
        caps = [facts[name].strip() for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")]
        out = {"uid": os.getuid(), "gid": os.getgid(), "caps": caps, "bounding": facts["CapBnd"].strip()}
        out |= {"no_new_privs": facts["NoNewPrivs"].strip(), "did": [n for n, r in attempts.items() if r == 0]}
        os.write(3, json.dumps(out).encode())
    """
    got = answer(box, base, code, warm=warm)
    assert got["caps"] == ["0" * 16] * 4
    assert got["no_new_privs"] == "1"
    assert got["did"] == []
    if box.isolation.name == "landlock":
        assert box.isolation.user.startswith(f"uid {got['uid']}")
        assert got["bounding"] == "0" * 16 or os.geteuid() != 0
    else:
        assert (got["uid"], got["gid"], got["bounding"]) == (65534, 65534, "0" * 16)


def test_fork_bomb_is_stopped(box, base, answer):
    code = """
        import json, os, sys, time
        made = 0
        for _ in range(300):
            try:
                if os.fork() == 0:
                    time.sleep(60); os._exit(0)
                made += 1
            except OSError:
                break
        os.write(3, json.dumps(made).encode())
    """
    made = answer(box, base, code, processes=16)
    unlimited = any(phrase.startswith("number of processes") for phrase in box.isolation.missing) and os.geteuid() == 0
    assert made <= 16 or unlimited
    assert made >= 8


def test_memory_hog_is_out_of_memory(box, base, execute):
    code = "kept = []\nwhile True: kept.append(bytearray(8 << 20))"
    assert execute(box, base, code, memory_mb=128).ending is Ending.OUT_OF_MEMORY


@pytest.mark.parametrize("folder", [".", "TMPDIR"])
def test_disk_filler_hits_the_output_limit(box, base, folder, execute):
    code = """
        import os, sys
        folder = os.environ.get(sys.argv[1], sys.argv[1])
        for n in range(64):
            with open(f"{folder}/fill-{n}", "wb") as file:
                file.write(bytes(1 << 20))
    """
    assert execute(box, base, code, folder, disk_mb=8).ending is Ending.OUTPUT_LIMIT


def test_one_huge_file_hits_the_output_limit(box, base, execute):
    code = "file = open('big', 'wb')\nwhile True: file.write(bytes(1 << 20))"
    assert execute(box, base, code, disk_mb=8).ending is Ending.OUTPUT_LIMIT


def test_sleeping_and_spinning_time_out(any_box, base, execute):
    sleeper = execute(any_box, base, "import time; time.sleep(600)", wall_s=0.5)
    assert sleeper.ending is Ending.TIMEOUT
    spinner = execute(any_box, base, "while True: pass", cpu_s=1.0)
    assert spinner.ending is Ending.TIMEOUT
    stubborn = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert execute(any_box, base, stubborn, cpu_s=1.0).ending is Ending.TIMEOUT


def test_a_daemon_does_not_survive(any_box, base, answer):
    marker = f"composer-daemon-{os.getpid()}-{any_box.isolation.name}"
    code = """
        import os, subprocess, sys
        argv = [sys.executable, "-S", "-c", "import time; time.sleep(600)", sys.argv[1]]
        daemon = subprocess.Popen(argv, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv(sys.executable, argv)
            os._exit(0)
        os.wait()
        os.write(3, b"true")
    """
    assert answer(any_box, base, code, marker) is True
    assert running(marker) == []


def test_a_daemon_does_not_survive_a_timeout(any_box, base, execute):
    marker = f"composer-daemon-{os.getpid()}-{any_box.isolation.name}"
    code = """
        import subprocess, sys, time
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)", sys.argv[1]], start_new_session=True)
        time.sleep(600)
    """
    assert execute(any_box, base, code, marker, wall_s=1.0).ending is Ending.TIMEOUT
    assert running(marker) == []


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
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(host)], env=environment)
    while not [pid for pid in running(marker) if pid != process.pid]:
        assert process.poll() is None
    process.kill()
    process.wait()
    while running(marker) or list(scratch.iterdir()):
        pass


def test_this_package_is_hidden_in_the_interpreter(box, base, tmp_path, answer):
    venv.create(tmp_path / "venv", symlinks=True)
    site_packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    (site_packages / "composer_replication" / "embedded").mkdir(parents=True)
    (site_packages / "composer_replication" / "embedded" / "gold.py").write_text("answer = 42")
    (site_packages / "neighbour.py").write_text("value = 1")
    code = """
        import json, os, sys
        sys.path.append(sys.argv[1])
        import neighbour
        try:
            gold = open(sys.argv[1] + "/composer_replication/embedded/gold.py").read()
        except OSError:
            gold = None
        os.write(3, json.dumps([neighbour.value, gold, sys.prefix]).encode())
    """
    python = tmp_path / "venv" / "bin" / "python"
    assert answer(box, base, code, str(site_packages), python=python) == [1, None, str(tmp_path / "venv")]


def test_isolation_is_described(box):
    isolation = box.isolation
    assert isinstance(isolation, Isolation)
    assert isolation.summary().startswith(f"{isolation.name}: ")
    assert "rlimits" in isolation.limits
