"""Probes that leave something for whoever comes next."""

from __future__ import annotations

from composer_replication.sandbox.attempt import Attempt, processes_with

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


def daemon(attempt: Attempt) -> list[str]:
    """Start processes that outlive the sandbox."""
    attempt.got(_DAEMON.format(program="import time; time.sleep(600)"))
    return ["a process that outlives the sandbox"] if processes_with(attempt.token) else []


def watcher(attempt: Attempt) -> list[str]:
    """Leave a process that rewrites the tree for whoever comes next."""
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


def neighbour(attempt: Attempt) -> list[str]:
    """Look for what an earlier sandbox left behind."""
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
