"""Run a command as in a stock container: no namespaces and no mounts, by a system call filter its children inherit.

Usage: `python tests/tools/no_unshare.py [--no-landlock] COMMAND [ARGUMENT...]`. Works as root and as anybody else; needs only
Linux and Python. With `--no-landlock` there is no Landlock either, as on an old kernel or under gVisor.
Refused with EPERM: unshare, setns, mount and its newer forms, umount, pivot_root, and clone with a new namespace. clone3 answers
ENOSYS, as under Docker, so that the C library falls back to clone, whose flags a filter can see.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

CLONE_NEW = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000 | 0x00000080
NEW_MOUNT_API = (428, 429, 430, 431, 432, 433, 442)
CLONE3 = 435
LANDLOCK = (444, 445, 446)
MACHINES = {
    # audit architecture, clone, (unshare, setns, mount, umount2, pivot_root)
    "x86_64": (0xC000003E, 56, (272, 308, 165, 166, 155)),
    "aarch64": (0xC00000B7, 220, (97, 268, 40, 39, 41)),
}
LOAD, EQUAL, ANY_BIT, ANSWER = 0x20, 0x15, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
NOT_THERE = 0x00050000 | errno.ENOSYS
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2


def program(*, landlock: bool = True) -> list[tuple[int, int, int, int]]:
    """The filter as (code, jump if true, jump if false, value)."""
    architecture, clone, refused = MACHINES[platform.machine()]
    code = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (ANSWER, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    for number in (*refused, *NEW_MOUNT_API):
        code += [(EQUAL, 0, 1, number), (ANSWER, 0, 0, REFUSE)]
    for number in (CLONE3, *(() if landlock else LANDLOCK)):
        code += [(EQUAL, 0, 1, number), (ANSWER, 0, 0, NOT_THERE)]
    code += [(EQUAL, 1, 0, clone), (ANSWER, 0, 0, ALLOW), (LOAD, 0, 0, FIRST_ARGUMENT)]
    return [*code, (ANY_BIT, 0, 1, CLONE_NEW), (ANSWER, 0, 0, REFUSE), (ANSWER, 0, 0, ALLOW)]


class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def forbid(*, landlock: bool = True) -> None:
    """Put this process and all it starts under the filter."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = program(landlock=landlock)
    buffer = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    loaded = Filter(length=len(code), code=ctypes.cast(buffer, ctypes.c_void_p))
    zero = ctypes.c_ulong(0)
    for call in (
        (PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero),
        (PR_SET_SECCOMP, ctypes.c_ulong(MODE_FILTER), ctypes.byref(loaded), zero, zero),
    ):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl: " + os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    without = sys.argv[1:2] == ["--no-landlock"]
    command = sys.argv[1 + without :]
    if not command:
        sys.exit("usage: no_unshare.py [--no-landlock] COMMAND [ARGUMENT...]")
    forbid(landlock=not without)
    os.execvp(command[0], command)
