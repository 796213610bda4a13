"""Isolation where user namespaces are refused, as in a stock Docker container: Landlock, a system call filter, a separate user.

The kernel interface is documented in `userspace-api/landlock.rst`. The command works in a private copy of the tree; it may read
the system's and the interpreter's files, write its copy, and open no socket. No namespace: it sees that other files exist.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from composer_replication.sandbox.backends import linux
from composer_replication.sandbox.backends.supervisor import Started
from composer_replication.sandbox.backends.unsafe import start_in_copy
from composer_replication.sandbox.request import BoxFds, BoxRequest

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION, _RULE_PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_FS_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""First ABI version -> all file rights it knows: refer came with 2, truncate with 3, device ioctls with 5."""
_NET_TCP, _SCOPE_ABSTRACT_UNIX_AND_SIGNALS = 3, 3
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/alternatives")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_REFUSED = {
    "x86_64": {
        "socket": 41, "ptrace": 101, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
        "process_vm_readv": 310, "process_vm_writev": 311, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425,
        "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "pidfd_getfd": 438,
    },
    "aarch64": {
        "socket": 198, "ptrace": 117, "add_key": 217, "request_key": 218, "keyctl": 219, "unshare": 97, "perf_event_open": 241,
        "process_vm_readv": 270, "process_vm_writev": 271, "bpf": 280, "userfaultfd": 282, "io_uring_setup": 425,
        "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180, "pidfd_getfd": 438,
    },
}  # fmt: skip
"""No socket of any family (pairs are allowed), no looking into other processes, none of the interfaces around the filter."""

_METADATA = {
    "x86_64": (90, 91, 92, 93, 94, 132, 188, 189, 190, 197, 198, 199, 235, 260, 261, 268, 280, 452, 463, 466, 469),
    "aarch64": (5, 6, 7, 14, 15, 16, 52, 53, 54, 55, 88, 452, 463, 466, 469),
}
"""System calls that change modes, owners, times and extended attributes. Landlock does not cover them, so for a user who owns
files outside the sandbox they succeed without effect."""


def abi_version() -> int:
    """Return the kernel's Landlock version; 0 where there is none or it is switched off."""
    try:
        return linux.syscall("landlock_create_ruleset", _CREATE_RULESET, None, 0, _GET_VERSION)
    except OSError:
        return 0


def start(request: BoxRequest, fds: BoxFds, error_fd: int) -> Started:
    """Copy the tree, confine a child to it and start the command there. Raises OSError."""
    return start_in_copy(request, fds, error_fd, lambda box: _confine(request, box))


def _confine(request: BoxRequest, box: str) -> None:
    linux.no_new_privs()
    ruleset = _ruleset(request, box)
    linux.drop_bounding_set()
    if request.uid is not None:
        os.setgroups([])
        os.setresgid(request.uid, request.uid, request.uid)
        os.setresuid(request.uid, request.uid, request.uid)
    linux.drop_capabilities()
    linux.die_with_parent()
    linux.syscall("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    linux.answer_syscalls({machine: tuple(calls.values()) for machine, calls in _REFUSED.items()}, errno.EPERM)
    if request.uid is None:
        linux.answer_syscalls(_METADATA, 0)


def _ruleset(request: BoxRequest, box: str) -> int:
    abi = abi_version()
    handled = max(rights for version, rights in _FS_RIGHTS.items() if version <= abi)
    attributes = struct.pack("Q", handled)
    if abi >= 4:
        attributes += struct.pack("Q", _NET_TCP)
    if abi >= 6:
        attributes += struct.pack("Q", _SCOPE_ABSTRACT_UNIX_AND_SIGNALS)
    ruleset = linux.syscall("landlock_create_ruleset", _CREATE_RULESET, attributes, len(attributes), 0)
    _allow(ruleset, handled, [f"{box}/repo", f"{box}/tmp"])
    _allow(ruleset, handled & (_READ_FILE | _WRITE_FILE), _DEVICES)
    for path in (*_SYSTEM, *request.binds, f"/proc/{os.getpid()}"):
        _allow_but(ruleset, handled & _READ, path, request.masks)
    return ruleset


def _allow_but(ruleset: int, rights: int, path: str, masks: list[str]) -> None:
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
        rule = struct.pack("=Qi", allowed, fd)
        if allowed:
            buffer = ctypes.create_string_buffer(rule, len(rule))
            linux.syscall("landlock_add_rule", _ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(buffer), 0)
        os.close(fd)
