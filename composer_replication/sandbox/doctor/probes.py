"""Attempts to break out of a sandbox, declared once: `composer doctor --sandbox` reports them, `tests/sandbox` demands their
failure.

A probe runs programs of the standard library in sandboxes and says what got through, one phrase each; nothing means the sandbox
held. What a kind of sandbox admits that it does not enforce (`Isolation.missing`) excuses a probe by the beginning of that
phrase.
"""

from __future__ import annotations

import socket
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from composer_replication.sandbox.attempt import Attempt, processes_with
from composer_replication.sandbox.protocol import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One way out of a sandbox."""

    name: str
    tries: str
    """The attempt, in one phrase."""
    run: Callable[[Attempt], list[str]]
    """Returns what got through. Raises SandboxError when the sandbox broke."""
    excuses: tuple[str, ...] = ()
    """Beginnings of phrases of `Isolation.missing` that admit this gap."""


def _network(attempt: Attempt) -> list[str]:
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as named,
    ):
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        path = attempt.base.parent / "socket"
        for server, name in ((abstract, f"\0composer-{attempt.token}"), (named, str(path))):
            server.bind(name)
            server.listen()
        path.chmod(0o777)
        parameters = {"tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1], "named": str(path)}
        code = """
            import socket
            def to(family, address):
                with socket.socket(family) as s:
                    s.settimeout(5); s.connect(address)
            def udp():
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                    s.sendto(b"x", ("127.0.0.1", request["udp"]))
                return False
            attempt("TCP on loopback", lambda: to(socket.AF_INET, ("127.0.0.1", request["tcp"])))
            attempt("an abstract Unix socket", lambda: to(socket.AF_UNIX, "\\0composer-" + request["token"]))
            attempt("a Unix socket by its path", lambda: to(socket.AF_UNIX, request["named"]))
            attempt("raw packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close())
            attempt("", udp)
        """
        got = attempt.got(code, parameters)
        try:
            udp.recv(1)
        except BlockingIOError:
            return got
        return [*got, "UDP on loopback"]


def _host_files(attempt: Attempt) -> list[str]:
    return attempt.got("""
        def read(path):
            with open(path) as file:
                return request["token"] in file.read()
        def root_names():
            names = set(os.listdir(os.path.dirname(request["secret"])))
            return os.path.basename(request["secret"]) in names
        def hard_link():
            os.link(request["secret"], "linked")
            return read("linked")
        attempt("a file by its path", lambda: read(request["secret"]))
        attempt("a file by a link of the tree", lambda: read("link"))
        attempt("a file by the root of process 1", lambda: read("/proc/1/root" + request["secret"]))
        attempt("a file by a new link", lambda: (os.symlink(request["secret"], "new"), read("new"))[1])
        attempt("a file by a hard link", hard_link)
        attempt("a folder's names", root_names)
        attempt("the users' passwords", lambda: open("/etc/shadow").close())
    """)


def _host_writes(attempt: Attempt) -> list[str]:
    got = attempt.got("""
        def write(path):
            new = not os.path.exists(path)
            os.close(os.open(path, os.O_WRONLY | (os.O_CREAT if new else 0)))
            if new:
                os.remove(path)
        for path in ("/usr", sys.prefix, "/etc", os.path.dirname(request["secret"]), request["base"]):
            attempt(f"a new file in {path}", lambda: write(f"{path}/composer-{request['token']}"))
        attempt("a file anybody may write", lambda: write(request["target"]))
        attempt("the system's programs", lambda: write(sys.executable))
        for action in (lambda: os.chmod(request["target"], 0o600), lambda: os.truncate(request["target"], 0)):
            try:
                action()
            except OSError:
                pass
    """)
    if attempt.target.read_text() != "before" or attempt.target.stat().st_mode & 0o777 != 0o666:
        got.append("a file's content or mode")
    return got


def _processes(attempt: Attempt) -> list[str]:
    return attempt.got("""
        def holds_token(path):
            with open(path, "rb") as file:
                return request["token"].encode() in file.read()
        names = [str(request["victim"])]
        attempt("", lambda: names.extend(n for n in os.listdir("/proc") if n.isdigit()) or False)
        for name in names:
            attempt("a process's environment", lambda: holds_token(f"/proc/{name}/environ"))
        attempt("a process's memory", lambda: open(f"/proc/{request['victim']}/mem", "rb").close())
        attempt("a process's descriptors", lambda: os.listdir(f"/proc/{request['victim']}/fd"))
        attempt("the memory of process 1", lambda: os.getpid() != 1 and open("/proc/1/mem", "r+b").close())
    """)


def _signals(attempt: Attempt) -> list[str]:
    return attempt.got('attempt("a signal to a process", lambda: os.kill(request["victim"], 0))')


def _ptrace(attempt: Attempt) -> list[str]:
    return attempt.got("""
        import ctypes, errno
        libc = ctypes.CDLL(None, use_errno=True)
        def attach(pid):
            if pid == os.getpid() or libc.ptrace(16, pid, None, None) != 0:
                return False
            os.waitpid(pid, 0x40000000)
            rights = [line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith(("CapEff", "CapPrm"))]
            same = os.readlink(f"/proc/{pid}/ns/user") == os.readlink("/proc/self/ns/user")
            libc.ptrace(17, pid, None, None)
            return pid != 1 or not same or any(int(right, 16) for right in rights)
        def read(pid):
            place = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
            nowhere = (ctypes.c_size_t * 2)(8, 8)
            done = libc.process_vm_readv(pid, place, 1, nowhere, 1, 0)
            return done >= 0 or ctypes.get_errno() == errno.EFAULT
        attempt("attached to a process", lambda: attach(request["victim"]))
        attempt("read a process's memory", lambda: read(request["victim"]))
        attempt("attached to an init with more rights", lambda: os.getppid() == 1 and attach(1))
    """)


def _privileges(attempt: Attempt) -> list[str]:
    return attempt.got("""
        import ctypes, stat
        libc = ctypes.CDLL(None)
        facts = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
        for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            attempt(f"capabilities ({name})", lambda: int(facts[name], 16) != 0)
        attempt("programs may gain privileges", lambda: facts["NoNewPrivs"].strip() != "1")
        attempt("became root", lambda: os.getuid() != 0 and libc.setuid(0) == 0)
        name = os.uname().nodename.encode()
        attempt("set the machine's name", lambda: libc.sethostname(name, len(name)) == 0)
        attempt("made a device", lambda: (os.mknod("device", 0o600 | stat.S_IFBLK, os.makedev(7, 0)), os.remove("device")))
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/dev/mem", "/dev/kmsg"):
            attempt(f"opened {path}", lambda: os.close(os.open(path, os.O_WRONLY)))
    """)


def _mounts(attempt: Attempt) -> list[str]:
    return attempt.got("""
        import ctypes
        libc = ctypes.CDLL(None)
        def forked(action):
            child = os.fork()
            if child == 0:
                os._exit(0 if action() >= 0 else 1)
            return os.waitpid(child, 0)[1] == 0
        new_mounts, new_users = 0x00020000, 0x10000000
        attempt("a mount namespace", lambda: forked(lambda: libc.unshare(new_mounts)))
        attempt("a user namespace", lambda: forked(lambda: libc.unshare(new_users)))
        attempt("chroot", lambda: forked(lambda: libc.chroot(b".")))
        attempt("fsopen", lambda: forked(lambda: libc.syscall(430, b"tmpfs", 0)))
        os.makedirs("point", exist_ok=True)
        def mount():
            if libc.mount(b"none", b"point", b"tmpfs", 0, None) != 0:
                return False
            libc.umount2(b"point", 2)
        def writable_again():
            read_only_bind = 32 | 4096
            return libc.mount(None, b"/usr", None, read_only_bind, None) == 0
        attempt("mount", mount)
        attempt("made /usr writable again", writable_again)
    """)


def _fork_bomb(attempt: Attempt) -> list[str]:
    return attempt.got(
        """
        import time
        made = 0
        try:
            while made < 300:
                if os.fork() == 0:
                    time.sleep(60); os._exit(0)
                made += 1
        except OSError:
            pass
        if made > request["limit"]:
            got.append(f"{made} processes with a limit of {request['limit']}")
        """,
        {"limit": 16},
        processes=16,
    )


def _memory(attempt: Attempt) -> list[str]:
    code = """
        def exceed():
            kept = [bytearray(8 << 20) for _ in range(128)]
    """
    return _beyond(attempt, Ending.OUT_OF_MEMORY, "1024 MB with a limit of 128", code, memory_mb=128)


def _shared_memory(attempt: Attempt) -> list[str]:
    code = """
        def exceed():
            for number in range(128):
                os.write(os.memfd_create(str(number)), bytes(8 << 20))
    """
    return _beyond(attempt, Ending.OUT_OF_MEMORY, "1024 MB of memory files with a limit of 128", code, memory_mb=128)


def _disk(attempt: Attempt) -> list[str]:
    fill = """
        def exceed():
            for number in range(64):
                with open(f"{FOLDER}/fill-{number}", "wb") as file:
                    file.write(bytes(1 << 20))
    """
    huge = """
        def exceed():
            with open("huge", "wb") as file:
                for _ in range(64):
                    file.write(bytes(1 << 20))
    """
    ways = {
        "64 MB in the tree with a limit of 8": fill.replace("{FOLDER}", "."),
        "64 MB of temporary files with a limit of 8": fill.replace("{FOLDER}", "{os.environ['TMPDIR']}"),
        "a file of 64 MB with a limit of 8": huge,
    }
    return [line for what, code in ways.items() for line in _beyond(attempt, Ending.OUTPUT_LIMIT, what, code, disk_mb=8)]


def _time(attempt: Attempt) -> list[str]:
    sleeping = """
        import time
        def exceed():
            time.sleep(5)
    """
    spinning = """
        import signal, time
        def exceed():
            signal.signal(signal.SIGXCPU, signal.SIG_IGN)
            while time.process_time() < 5: pass
    """
    slept = _beyond(attempt, Ending.TIMEOUT, "slept 5 s with a limit of 0.5", sleeping, wall_s=0.5)
    return slept + _beyond(attempt, Ending.TIMEOUT, "computed 5 s with a limit of 1", spinning, cpu_s=1)


def _beyond(attempt: Attempt, expected: Ending, what: str, code: str, *, wall_s: float = 60.0, **limits: int) -> list[str]:
    """Run a program whose `exceed()` goes beyond a limit: it is stopped as expected, refused with an OSError, or gets through."""
    code = textwrap.dedent(code) + 'attempt(request["what"], exceed)\n'
    if attempt.execute(code, {"what": what}, wall_s=wall_s, **limits).ending is expected:
        return []
    return attempt.got(code, {"what": what}, wall_s=wall_s, **limits)


_DAEMON = """
    import subprocess
    program = {program!r}
    argv = [sys.executable, "-S", "-c", program, request["token"], request["base"]]
    subprocess.Popen(argv, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, argv)
        os._exit(0)
    os.wait()
"""


def _daemon(attempt: Attempt) -> list[str]:
    attempt.got(_DAEMON.format(program="import time; time.sleep(600)"))
    return ["a process that outlives the sandbox"] if processes_with(attempt.token) else []


def _watcher(attempt: Attempt) -> list[str]:
    program = """
import os, sys
while True:
    for folder in (".", sys.argv[2]):
        try:
            with open(folder + "/file", "w") as file:
                file.write("planted")
            open("rewritten", "w").close()
        except OSError:
            pass
"""
    wait = """
    while not os.path.exists("rewritten"):
        pass
    """
    attempt.got(_DAEMON.format(program=program) + wait)
    got = attempt.got(
        """attempt("the next sandbox's tree", lambda: open("file").read() != "tree" or os.path.exists("rewritten"))"""
    )
    if (attempt.base / "file").read_text() != "tree" or {p.name for p in attempt.base.iterdir()} != {"file", "link"}:
        got.append("the task's own tree")
    if processes_with(attempt.token):
        got.append("a process that outlives the sandbox")
    return got


def _neighbour(attempt: Attempt) -> list[str]:
    places = """
        import ctypes
        libc = ctypes.CDLL(None)
        key = int(request["token"][:7], 16)
        folders = (".", os.environ["TMPDIR"], "/tmp", "/var/tmp", "/dev/shm", "/run")
        paths = [f"{folder}/composer-{request['token']}" for folder in folders]
    """
    leave = """
        for path in paths:
            attempt("", lambda: open(path, "w").close() or False)
        libc.shmget(key, 4096, 0o1666)
    """
    look = """
        for path in paths:
            attempt(f"a file in {os.path.dirname(path)} of the previous sandbox", lambda: os.remove(path))
        shared = libc.shmget(key, 0, 0)
        if shared >= 0:
            libc.shmctl(shared, 0, None)
            got.append("shared memory of the previous sandbox")
    """
    attempt.got(places + leave)
    return attempt.got(places + look)


def _descriptors(attempt: Attempt) -> list[str]:
    return attempt.got("""
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 3:
                attempt(f"descriptor {name}", lambda: os.path.exists(os.readlink(f"/proc/self/fd/{name}")) or os.fstat(int(name)))
    """)


PROBES: tuple[Probe, ...] = (
    Probe(name="network", tries="TCP, UDP, raw packets and Unix sockets of the host", run=_network),
    Probe(name="host files", tries="reading by path, link, hard link and process 1", run=_host_files),
    Probe(
        name="host writes", tries="writing the system, the interpreter, the task's tree and a file open to all", run=_host_writes
    ),
    Probe(name="/proc", tries="environment, memory and descriptors of processes of the host", run=_processes),
    Probe(name="signals", tries="a signal to a process of the host", run=_signals, excuses=("signals",)),
    Probe(name="ptrace", tries="attaching to processes and reading their memory", run=_ptrace),
    Probe(name="capabilities", tries="capabilities, becoming root, devices, the kernel's settings", run=_privileges),
    Probe(name="mount", tries="mounts, namespaces, chroot", run=_mounts),
    Probe(name="fork bomb", tries="300 processes with a limit of 16", run=_fork_bomb, excuses=("number of processes",)),
    Probe(name="memory", tries="eight times its memory limit in one process", run=_memory),
    Probe(
        name="shared memory",
        tries="eight times its memory limit outside every process",
        run=_shared_memory,
        excuses=("memory limit of the whole sandbox", "memory of the whole sandbox"),
    ),
    Probe(name="disk", tries="eight times its disk limit, in many files and in one", run=_disk),
    Probe(name="time", tries="sleeping and computing beyond its limits", run=_time),
    Probe(name="daemon", tries="processes that outlive the sandbox", run=_daemon),
    Probe(name="watcher", tries="a process left behind that rewrites the tree for whoever comes next", run=_watcher),
    Probe(name="neighbour", tries="what an earlier sandbox left behind", run=_neighbour),
    Probe(name="descriptors", tries="open descriptors of the host", run=_descriptors),
)
