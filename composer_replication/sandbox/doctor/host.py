"""Probes that reach for the host: its network, files, processes and descriptors."""

from __future__ import annotations

import socket

from composer_replication.sandbox.attempt import Attempt


def network(attempt: Attempt) -> list[str]:
    """Connect to servers of the host."""
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


def host_files(attempt: Attempt) -> list[str]:
    """Read files of the host by every path that leads to them."""
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


def host_writes(attempt: Attempt) -> list[str]:
    """Write files of the host."""
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


def processes(attempt: Attempt) -> list[str]:
    """Look into the host's processes through /proc."""
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


def signals(attempt: Attempt) -> list[str]:
    """Signal a process of the host."""
    return attempt.got('attempt("a signal to a process", lambda: os.kill(request["victim"], 0))')


def limits(attempt: Attempt) -> list[str]:
    """Change limits and priorities of a process of the host, to what they are."""
    return attempt.got("""
        import resource
        victim, open_files = request["victim"], resource.RLIMIT_NOFILE
        def same_limit():
            before = resource.prlimit(victim, open_files)
            return resource.prlimit(victim, open_files, before) == before
        attempt("a limit of a process", same_limit)
        attempt("the processors of a process", lambda: os.sched_setaffinity(victim, os.sched_getaffinity(victim)) is None)
        attempt("the priority of a process", lambda: os.setpriority(0, victim, os.getpriority(0, victim)) is None)
    """)


def ptrace(attempt: Attempt) -> list[str]:
    """Trace the host's processes and read their memory and descriptors."""
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
        def take_descriptor(pid):
            process = os.pidfd_open(pid)
            get_descriptor = 438  # the same number on every machine
            return libc.syscall(get_descriptor, process, 0, 0) >= 0
        attempt("attached to a process", lambda: attach(request["victim"]))
        attempt("read a process's memory", lambda: read(request["victim"]))
        attempt("took a process's descriptor", lambda: take_descriptor(request["victim"]))
        attempt("attached to an init with more rights", lambda: os.getppid() == 1 and attach(1))
    """)


def descriptors(attempt: Attempt) -> list[str]:
    """Look for open descriptors of the host."""
    return attempt.got("""
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 3:
                attempt(f"descriptor {name}", lambda: os.path.exists(os.readlink(f"/proc/self/fd/{name}")) or os.fstat(int(name)))
    """)
