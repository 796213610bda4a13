"""Isolation where user namespaces are refused, as in a stock Docker container: Landlock, a system call filter, a separate user.

The kernel interface is documented in `userspace-api/landlock.rst`. The command works in a private copy of the tree; it may read
the system's and the interpreter's files, write its copy, and open no socket. No namespace: it sees that other files exist.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal, NoReturn, TypeAlias

from composer_replication.sandbox.backends import linux, seccomp
from composer_replication.sandbox.backends.supervisor import Started, take_limits
from composer_replication.sandbox.backends.syscalls import METADATA, OTHERS_OF_THE_USER, SHARED_MEMORY
from composer_replication.sandbox.backends.system import system_view
from composer_replication.sandbox.backends.unsafe import start_in_copy
from composer_replication.sandbox.request import BoxFds, BoxRequest

_GET_VERSION, _RULE_PATH_BENEATH, _RULE_NET_PORT = 1, 1, 2
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_FS_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""First ABI version -> all file rights it knows: refer came with 2, truncate with 3, device ioctls with 5."""
_CONNECT_TCP, _NET_TCP, _SCOPE_ABSTRACT_UNIX_AND_SIGNALS = 2, 3, 3
ABI_WITH_PORTS, ABI_WITH_SCOPES = 4, 6
"""The first versions that confine TCP, and signals to other processes."""
_INTERNET = (2, 10)  # AF_INET, AF_INET6
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

Sockets: TypeAlias = Literal["none", "internet", "all"]
"""`none`, those of IPv4 and IPv6, or what every kind of sandbox allows: Unix sockets too."""

_REFUSED = dict.fromkeys(("socket", *SHARED_MEMORY), errno.EPERM)
"""No socket of any family (pairs are allowed), and no memory, semaphores or messages that other sandboxes could open: there is no
namespace around them."""

_METADATA = dict.fromkeys(METADATA, 0)
"""Landlock does not cover these calls, so for a user who owns files outside the sandbox they succeed without effect."""

_OTHERS = dict.fromkeys(("setpriority", "ioprio_set"), errno.EPERM)
_ITSELF = {name: seccomp.ArgumentRule(argument=0, allowed=(0,)) for name in OTHERS_OF_THE_USER if name not in _OTHERS}
"""Nor does it cover these, by which a process changes others of its user, the trainer among them: it may change itself alone, as
process 0."""


def abi_version() -> int:
    """Return the kernel's Landlock version; 0 where there is none or it is switched off."""
    try:
        return linux.syscall("landlock_create_ruleset", None, 0, _GET_VERSION)
    except OSError:
        return 0


def start(request: BoxRequest, fds: BoxFds, error_fd: int) -> Started:
    """Copy the tree, confine a child to it and start the command there. Raises OSError."""
    return start_in_copy(request, fds, error_fd, lambda box: _confine(request, box))


def _confine(request: BoxRequest, box: str) -> None:
    linux.no_new_privs()
    readable = (*system_view().paths, *request.binds)
    ruleset = _ruleset([f"{box}/repo", f"{box}/tmp"], readable, masks=request.masks)
    linux.drop_bounding_set()
    if request.uid is not None:
        os.setgroups([])
        os.setresgid(request.uid, request.uid, request.uid)
        os.setresuid(request.uid, request.uid, request.uid)
    linux.drop_capabilities()
    linux.die_with_parent()
    linux.syscall("landlock_restrict_self", ruleset, 0)
    os.close(ruleset)
    seccomp.seal(box_filter(own_user=request.uid is not None))


@cache
def box_filter(*, own_user: bool) -> bytes:
    """Return the filter of system calls. Where the sandbox has no user of its own, calls that change modes, owners or times have
    no effect, and those that change other processes are refused.

    Raises OSError like `seccomp.compiled`.
    """
    return seccomp.compiled(_REFUSED) if own_user else seccomp.compiled(_REFUSED | _METADATA | _OTHERS, more=_ITSELF)


def become(
    argv: Sequence[str],
    *,
    writable: Iterable[str],
    readable: Iterable[str],
    ports: Iterable[int] | None,
    sockets: Sockets,
    rlimits: Iterable[tuple[int, int, int]],
) -> NoReturn:
    """Confine this process and turn it into a program of the machine that has no tree, and may need the network.

    Args:
        writable, readable: files and folders; what is not there is left out.
        ports: of TCP that it may connect to; None: all.
        sockets: families that it may open.
        rlimits: as `BoxRequest.rlimits`.

    Raises OSError.
    """
    rules = _ruleset(writable, filter(os.path.exists, readable), ports=ports)
    linux.no_new_privs()
    linux.die_with_parent()
    take_limits(rlimits)
    linux.syscall("landlock_restrict_self", rules, 0)
    os.close(rules)
    match sockets:
        case "none":
            seccomp.seal(box_filter(own_user=True))
        case "internet":
            seccomp.seal(seccomp.compiled(more={"socket": seccomp.ArgumentRule(argument=0, allowed=_INTERNET)}))
        case _:
            seccomp.seal(seccomp.box_filter())
    os.execv(argv[0], list(argv))


def _ruleset(
    writable: Iterable[str], readable: Iterable[str], *, masks: Sequence[str] = (), ports: Iterable[int] | None = ()
) -> int:
    abi = abi_version()
    handled = max(rights for version, rights in _FS_RIGHTS.items() if version <= abi)
    attributes = struct.pack("Q", handled)
    if abi >= ABI_WITH_PORTS:
        attributes += struct.pack("Q", 0 if ports is None else _NET_TCP)
    if abi >= ABI_WITH_SCOPES:
        attributes += struct.pack("Q", _SCOPE_ABSTRACT_UNIX_AND_SIGNALS)
    ruleset = linux.syscall("landlock_create_ruleset", attributes, len(attributes), 0)
    _allow(ruleset, handled, writable)
    _allow(ruleset, handled & (_READ_FILE | _WRITE_FILE), _DEVICES)
    for path in (*readable, f"/proc/{os.getpid()}"):
        _allow_but(ruleset, handled & _READ, path, masks)
    for port in (ports or ()) if abi >= ABI_WITH_PORTS else ():
        _add(ruleset, _RULE_NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port))
    return ruleset


def _allow_but(ruleset: int, rights: int, path: str, masks: Sequence[str]) -> None:
    """Allow reading below `path`, but not the content of the masked folders: their neighbours are allowed one by one."""
    real = os.path.realpath(path)
    if path in masks or real in masks:
        return
    if not any(mask.startswith((path + "/", real + "/")) for mask in masks):
        _allow(ruleset, rights, [path])
        return
    _allow(ruleset, rights & _READ_DIR, [path])
    for name in os.listdir(path):
        _allow_but(ruleset, rights, f"{path}/{name}", masks)


def _allow(ruleset: int, rights: int, paths: Iterable[str]) -> None:
    for path in paths:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        allowed = rights if os.path.isdir(path) else rights & _FILE_RIGHTS
        if allowed:
            _add(ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", allowed, fd))
        os.close(fd)


def _add(ruleset: int, kind: int, rule: bytes) -> None:
    buffer = ctypes.create_string_buffer(rule, len(rule))
    linux.syscall("landlock_add_rule", ruleset, kind, ctypes.byref(buffer), 0)
