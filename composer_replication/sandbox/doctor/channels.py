"""Probes for what crosses every namespace: keys, and files that sandboxes share."""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from composer_replication.sandbox.attempt import Attempt
from composer_replication.sandbox.backends import linux
from composer_replication.sandbox.doctor.calls import got_by_calls

_SESSION, _GET_KEYRING, _UNLINK = -3, 0, 9
"""KEY_SPEC_SESSION_KEYRING, KEYCTL_GET_KEYRING_ID and KEYCTL_UNLINK of `linux/keyctl.h`."""
_SYSTEM_FILE = "/usr/bin/env"
_LOOK_ROUND_S = 0.02


def keys(attempt: Attempt) -> list[str]:
    """Read a key of the host, and leave a key for the next sandbox."""
    with _host_key(attempt.token) as key:
        got = got_by_calls(attempt, _READ, {"key": key})
    got_by_calls(attempt, _LEAVE)
    return got + got_by_calls(attempt, _FIND)


@contextmanager
def _host_key(token: str) -> Iterator[int]:
    """Hold a key that has `token` as name and content in this process's session keyring; 0 where the host refuses keys."""
    try:
        linux.syscall("keyctl", _GET_KEYRING, _SESSION, 0)
        content = token.encode()
        key = linux.syscall("add_key", b"user", b"composer-" + content, content, len(content), _SESSION)
    except OSError:
        yield 0
        return
    try:
        yield key
    finally:
        linux.syscall("keyctl", _UNLINK, key, _SESSION)


_KEYRINGS = """
READ, DESCRIBE, UNLINK, RINGS = 11, 6, 9, (-3, -4, -5)  # the rings of the session, the user, and the user's first session
def content(key):
    buffer = ctypes.create_string_buffer(256)
    return key > 0 and call("keyctl", READ, key, buffer, 256) > 0 and request["token"].encode() in buffer.raw
def described(key):
    buffer = ctypes.create_string_buffer(256)
    return key > 0 and call("keyctl", DESCRIBE, key, buffer, 256) > 0 and request["token"].encode() in buffer.raw
def found(name):
    return call("request_key", b"user", (name + request["token"]).encode(), None, 0)
"""
_READ = (
    _KEYRINGS
    + """
def listed():
    with open("/proc/keys") as file:
        return request["token"][:8] in file.read()
attempt("a key of the host by its name", lambda: content(found("composer-")))
attempt("a key of the host by its number", lambda: content(request["key"]))
attempt("the name of a key of the host", lambda: described(request["key"]))
attempt("the list of the host's keys", listed)
"""
)
_LEAVE = (
    _KEYRINGS
    + """
name, message = ("message-" + request["token"]).encode(), request["token"].encode()
for ring in RINGS:
    call("add_key", b"user", name, message, len(message), ring)
"""
)
_FIND = (
    _KEYRINGS
    + """
attempt("a message of the previous sandbox as a key", lambda: content(found("message-")))
key = found("message-")
for ring in RINGS:
    call("keyctl", UNLINK, key, ring)
"""
)


def shared_files(attempt: Attempt) -> list[str]:
    """Lock and open files in one sandbox, and look for it from outside and from another sandbox that runs at the same time."""
    places, end_path = _files(attempt.token)
    parameters: dict[str, object] = {"places": places, "end": end_path}
    with ThreadPoolExecutor(1) as thread, open(end_path, "rb") as end:
        holder = thread.submit(attempt.got, _HOLD, parameters)
        seen: list[str] = []
        while not seen and not holder.done():
            time.sleep(_LOOK_ROUND_S)
            seen = [f"a lock on {what}, seen from outside" for what, path in places.items() if _is_locked(path)]
        if seen:
            seen += attempt.got(_LOOK, parameters)
        fcntl.flock(end, fcntl.LOCK_EX)  # until the holder has seen it
        holder.result()
    return seen


def _files(token: str) -> tuple[dict[str, str], str]:
    """Return files that sandboxes show: some to lock, and one whose lock ends the sandbox that holds the others. Those of the
    interpreter are drawn by `token`, so that probes which run at the same time do not meet."""
    modules = sorted(str(path) for path in Path(os.__file__).parent.glob("*.py"))
    locked, end = random.Random(token).sample(modules, 2)
    return {"a file of the system": _SYSTEM_FILE, "a file of the interpreter": locked}, end


def _is_locked(path: str) -> bool:
    with suppress(FileNotFoundError), open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


_HOLD = """
    import fcntl, time
    held = []
    def lock(path):
        held.append(open(path, "rb"))
        for _ in range(100):  # whoever looks for the lock takes it for a moment
            try:
                return fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
    for path in request["places"].values():
        attempt("", lambda: lock(path))
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        with open(request["end"], "rb") as end:
            try:
                fcntl.flock(end, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                break
        time.sleep(0.01)
    got.clear()
"""
_LOOK = """
    import ctypes, fcntl, select
    libc, opened = ctypes.CDLL(None), 0x20
    def is_opened(path):
        watch = libc.inotify_init1(os.O_CLOEXEC)
        return libc.inotify_add_watch(watch, path.encode(), opened) >= 0 and bool(select.select([watch], [], [], 1)[0])
    def is_locked(path):
        with open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False
    attempt("the opening of a file of the interpreter, seen by another sandbox", lambda: is_opened(request["end"]))
    for what, path in request["places"].items():
        attempt(f"a lock on {what}, seen by another sandbox", lambda: is_locked(path))
"""
