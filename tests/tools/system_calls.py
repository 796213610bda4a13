"""Programs that make real system calls, for a box and for a process under the filter alone."""

from __future__ import annotations

import json

from composer_replication.sandbox.backends.syscalls import NUMBERS, REFUSED, number_of

FAMILIES = range(47)
NEW_NAMESPACES = [1 << bit for bit in (7, 17, 25, 26, 27, 28, 29, 30)]
FACTS = {
    "numbers": {name: number for name in NUMBERS if (number := number_of(name)) is not None},
    "refused": [name for name in REFUSED if number_of(name) is not None],
    "families": [family for family in FAMILIES if family not in (1, 2, 10)],
    "namespaces": NEW_NAMESPACES,
}

REFUSALS = f"""
import ctypes, json, os
facts = json.loads({json.dumps(json.dumps(FACTS))})
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
told = {{}}
def make(what, number, *args):
    ctypes.set_errno(0)
    done = libc.syscall(*[ctypes.c_long(a) for a in (number, *args)])
    if done == 0 and what.startswith("clone"):
        os._exit(0)  # a child that was not refused
    told[what] = ctypes.get_errno() if done == -1 else 0
for name in facts["refused"]:
    make(name, facts["numbers"][name], *[-1] * 6)  # no call takes this, where the filter lets it through
for family in facts["families"]:
    make(f"socket {{family}}", facts["numbers"]["socket"], family, 3, 0)
    make(f"socketpair {{family}}", facts["numbers"]["socketpair"], family, 3, 0, 0)
for flag in facts["namespaces"]:
    make(f"clone {{flag:#x}}", facts["numbers"]["clone"], flag, 0, 0, 0, 0)
for request in (0x5412, 0x541C):
    make(f"ioctl {{request:#x}}", facts["numbers"]["ioctl"], 0, request, 0)
    make(f"ioctl {{request:#x}} with a higher bit", facts["numbers"]["ioctl"], 0, request | 1 << 32, 0)
make("personality", facts["numbers"]["personality"], 0x0400000)
if os.uname().machine == "x86_64":
    make("x32", 39 | 1 << 30)
make("clone3", facts["numbers"]["clone3"], -1, -1)
"""
"""Makes every call that the filter refuses; `told` is what -> errno, 0 where the call was carried out."""

FOREIGN = """
import ctypes, mmap, os
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid of i386); int 0x80; ret
def foreign():
    child = os.fork()
    if child == 0:
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
"""`foreign()` is how a process ended that made a call of the 32-bit x86 architecture."""

WORKS = """
import ctypes, fcntl, json, mmap, multiprocessing, os, select, signal, socket, sqlite3, subprocess, sys, tempfile, threading
def in_network():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        server.accept()[0].close()
        return client.recv(1) == b""
def in_pair():
    one, other = socket.socketpair()
    with one, other:
        one.send(b"x")
        return other.recv(1) == b"x"
def forks():
    child = os.fork() or os._exit(0)
    return os.waitpid(child, 0)[1] == 0
def threads():
    got = []
    some = [threading.Thread(target=got.append, args=(n,)) for n in range(3)]
    [thread.start() for thread in some]; [thread.join() for thread in some]
    return sorted(got) == [0, 1, 2]
def processes():
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=there.send, args=("x",))
    child.start(); child.join()
    return here.recv() == "x"
def maps():
    with mmap.mmap(-1, 4096) as shared:
        if os.fork() == 0:
            shared[0] = 7
            os._exit(0)
        os.wait()
        return shared[0] == 7
def database():
    with sqlite3.connect("data.sqlite") as one, sqlite3.connect("data.sqlite") as other:
        one.execute("create table t (x)"); one.execute("insert into t values (1)"); one.commit()
        return other.execute("select x from t").fetchall() == [(1,)]
def locks():
    with open("lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX)
    return True
def polls():
    read, write = os.pipe()
    with select.epoll() as poll:
        poll.register(read, select.EPOLLIN)
        os.write(write, b"x")
        return poll.poll(5) == [(read, select.EPOLLIN)]
def signals():
    got = []
    signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
    os.kill(os.getpid(), signal.SIGUSR1)
    return got == [1]
works = {
    "getppid": lambda: os.getppid() >= 0, "pair": in_pair, "network": in_network, "fork": forks, "threads": threads,
    "subprocess": lambda: subprocess.run([sys.executable, "-S", "-c", "print(1)"], capture_output=True).stdout == b"1\\n",
    "shell": lambda: subprocess.run("exit 3", shell=True).returncode == 3, "multiprocessing": processes, "mmap": maps,
    "sqlite": database, "locks": locks, "epoll": polls, "signals": signals,
    "memory file": lambda: os.close(os.memfd_create("x")) is None,
    "pidfd": lambda: os.close(os.pidfd_open(os.getpid())) is None,
    "temporary file": lambda: tempfile.TemporaryFile().write(b"x") == 1,
    "terminal's size": lambda: os.get_terminal_size, "urandom": lambda: len(os.urandom(4)) == 4,
    "which personality": lambda: ctypes.CDLL(None).personality(0xFFFFFFFF) >= 0,
}
told = {}
for name, action in works.items():
    try:
        told[name] = bool(action())
    except OSError as error:
        told[name] = repr(error)
"""
"""Does what programs of tests do; `told` is what -> True, or why not."""
