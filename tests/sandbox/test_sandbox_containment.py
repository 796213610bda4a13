"""Every kind of box this machine allows, attacked from inside. `test_sandbox_elsewhere.py` runs this file as other users too."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from composer_replication.errors import SandboxError, SandboxUnavailableError
from composer_replication.sandbox import Command, Ending, ExecResult, Isolation, Limits, Sandbox, Tree, open_sandbox
from composer_replication.sandbox.opening import available
from composer_replication.sandbox.request import WARM_FLAGS

PYTHON = Path(sys.executable)
ISOLATING = available()
EVERY = (*ISOLATING, "unsafe-subprocess")


@pytest.fixture(params=ISOLATING)
def box(request) -> Sandbox:
    return open_sandbox(request.param)


@pytest.fixture(params=EVERY)
def any_box(request) -> Sandbox:
    return open_sandbox(request.param)


@pytest.fixture
def base(tmp_path) -> Path:
    folder = tmp_path / "base"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "old.py").write_text("old")
    (folder / "keep.txt").write_text("keep")
    (folder / "script.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "script.sh").chmod(0o755)
    return folder


def execute(
    sandbox: Sandbox, base: Path, code: str, *arguments: str, changes=None, python: Path = PYTHON, warm=False, **limits
) -> ExecResult:
    flags = WARM_FLAGS if warm else ("-B", "-S" if python == PYTHON else "-s", "-c")
    argv = (str(python), *flags, textwrap.dedent(code), *arguments)
    limits = {"wall_s": 60.0, "disk_mb": 32, **limits}
    return sandbox.run(Tree(base=base, changes=changes or {}), Command(argv=argv, python=python, limits=Limits(**limits)))


def answer(sandbox: Sandbox, base: Path, code: str, *arguments: str, **options):
    """What the program writes to the channel as JSON."""
    result = execute(sandbox, base, code, *arguments, **options)
    assert (result.ending, result.returncode) == (Ending.EXITED, 0), result
    return json.loads(result.channel)


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


def test_the_expected_kinds_are_available():
    isolation = open_sandbox().isolation
    assert isolation.name == ISOLATING[0]
    if os.environ.get("COMPOSER_TEST_WITHOUT_NAMESPACES"):
        assert ISOLATING == ("landlock",)
        assert any(phrase.startswith("namespaces refused: ") and "not permitted" in phrase for phrase in isolation.missing)
        with pytest.raises(SandboxUnavailableError, match="Operation not permitted"):
            open_sandbox("namespaces")
    else:
        assert {"namespaces", "landlock"} <= set(ISOLATING)
        assert not any("refused" in phrase for phrase in isolation.missing)


def test_no_network(box, base):
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


def test_no_host_files(box, base, tmp_path):
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


def test_host_files_cannot_be_written(box, base, tmp_path):
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


def test_host_processes_are_out_of_reach(box, base, victim):
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
def test_no_privileges(box, base, warm):
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


def test_fork_bomb_is_stopped(box, base):
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


def test_memory_hog_is_out_of_memory(box, base):
    code = "kept = []\nwhile True: kept.append(bytearray(8 << 20))"
    assert execute(box, base, code, memory_mb=128).ending is Ending.OUT_OF_MEMORY


@pytest.mark.parametrize("folder", [".", "TMPDIR"])
def test_disk_filler_hits_the_output_limit(box, base, folder):
    code = """
        import os, sys
        folder = os.environ.get(sys.argv[1], sys.argv[1])
        for n in range(64):
            with open(f"{folder}/fill-{n}", "wb") as file:
                file.write(bytes(1 << 20))
    """
    assert execute(box, base, code, folder, disk_mb=8).ending is Ending.OUTPUT_LIMIT


def test_one_huge_file_hits_the_output_limit(box, base):
    code = "file = open('big', 'wb')\nwhile True: file.write(bytes(1 << 20))"
    assert execute(box, base, code, disk_mb=8).ending is Ending.OUTPUT_LIMIT


def test_sleeping_and_spinning_time_out(any_box, base):
    sleeper = execute(any_box, base, "import time; time.sleep(600)", wall_s=0.5)
    assert sleeper.ending is Ending.TIMEOUT
    spinner = execute(any_box, base, "while True: pass", cpu_s=1.0)
    assert spinner.ending is Ending.TIMEOUT
    stubborn = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert execute(any_box, base, stubborn, cpu_s=1.0).ending is Ending.TIMEOUT


def test_a_daemon_does_not_survive(any_box, base):
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


def test_a_daemon_does_not_survive_a_timeout(any_box, base):
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


def test_the_tree_is_a_disposable_copy(any_box, base):
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


def test_changes_do_not_follow_links_of_the_tree(any_box, base, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("host")
    (base / "link").symlink_to(outside)
    (base / "file").symlink_to(outside / "file")
    code = "import json, os; os.write(3, json.dumps([open('link/file').read(), open('file').read()]).encode())"
    assert answer(any_box, base, code, changes={"link/file": b"box", "file": b"box"}) == ["box", "box"]
    assert (outside / "file").read_text() == "host"


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "a//b", ".", "a/.."])
def test_changes_must_be_plain_relative_paths(any_box, base, path):
    with pytest.raises(SandboxError, match="not a plain path"):
        execute(any_box, base, "pass", changes={path: b"x"})


@pytest.mark.parametrize("warm", [False, True])
def test_the_environment_and_descriptors_are_clean(any_box, base, monkeypatch, warm):
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


def test_output_beyond_the_limit_is_dropped(any_box, base):
    code = "import sys; sys.stdout.write('x' * 5_000_000); sys.stderr.write('y' * 5_000_000)"
    result = execute(any_box, base, code, output_bytes=1000)
    assert (len(result.stdout), len(result.stderr), result.ending) == (1000, 1000, Ending.EXITED)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_death_by_signal_is_told(any_box, base, number):
    result = execute(any_box, base, f"import os; os.kill(os.getpid(), {int(number)})")
    assert (result.ending, result.returncode) == (Ending.KILLED, -number)


def test_a_program_that_is_not_there_is_an_error(any_box, base):
    if any_box.isolation.name == "bubblewrap":
        result = any_box.run(Tree(base=base), Command(argv=("/nowhere",), python=PYTHON))
        assert result.returncode == 1
        assert b"No such file" in result.stderr
    else:
        with pytest.raises(SandboxError, match="No such file"):
            any_box.run(Tree(base=base), Command(argv=("/nowhere",), python=PYTHON))


def test_a_missing_base_is_an_error(any_box, tmp_path):
    with pytest.raises(SandboxError, match="base folder"):
        execute(any_box, tmp_path / "nowhere", "pass")


def test_many_boxes_at_once_stay_apart(any_box, base):
    code = """
        import json, os, sys
        open(os.environ["TMPDIR"] + "/mine", "x").write(sys.argv[1]); open("mine", "x").write(sys.argv[1])
        os.write(3, json.dumps([sys.argv[1], open(os.environ["TMPDIR"] + "/mine").read(), open("mine").read()]).encode())
    """
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: answer(any_box, base, code, str(n)), range(24)))
    assert answers == [[str(n)] * 3 for n in range(24)]


def test_nothing_is_left_open_or_on_disk(any_box, base):
    answer(any_box, base, "import os; os.write(3, b'1')")
    launcher = any_box._launchers[""]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        answer(any_box, base, "import os; os.write(3, b'1')")
        execute(any_box, base, "import time; time.sleep(600)", wall_s=0.2)
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(launcher.scratch) == []


def test_a_killed_launcher_is_replaced(any_box, base):
    answer(any_box, base, "import os; os.write(3, b'1')")
    launcher = any_box._launchers[""]
    launcher._process.kill()
    launcher._process.wait()
    assert answer(any_box, base, "import os; os.write(3, b'2')") == 2
    assert any_box._launchers[""] is not launcher


def test_this_package_is_hidden_in_the_interpreter(box, base, tmp_path):
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


def test_a_base_owned_by_somebody_else_is_still_writable(box, base):
    if os.geteuid() == 0:
        for path in (base, *base.rglob("*")):
            os.chown(path, 12345, 12345)
    code = "import os; open('keep.txt', 'a').write('!'); open('new', 'w').close(); os.write(3, b'true')"
    assert answer(box, base, code) is True
    assert (base / "keep.txt").read_text() == "keep"


def test_isolation_is_described(box):
    isolation = box.isolation
    assert isinstance(isolation, Isolation)
    assert isolation.summary().startswith(f"{isolation.name}: ")
    assert "rlimits" in isolation.limits


def test_unknown_kinds_are_refused():
    with pytest.raises(SandboxUnavailableError, match="no sandbox kind"):
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


def test_a_warm_program_fails_like_any_other(any_box, base):
    result = execute(any_box, base, "def f(): raise ValueError('oh')\nf()", warm=True)
    assert (result.ending, result.returncode) == (Ending.EXITED, 1)
    lines = result.stderr.decode().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: oh"
    assert "launcher" not in result.stderr.decode()
    assert execute(any_box, base, "import os; os.abort()", warm=True).returncode == -signal.SIGABRT
    assert execute(any_box, base, "def broken(:", warm=True).returncode == 1
