"""Raw system calls for the programs of probes, by name, with the numbers of this machine."""

from __future__ import annotations

import textwrap

from composer_replication.sandbox.attempt import Attempt
from composer_replication.sandbox.backends.syscalls import NUMBERS, number_of

_CALLS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call_number(number, *arguments):
    ctypes.set_errno(0)
    return libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *arguments)])
def call(name, *arguments):
    return call_number(request["numbers"][name], *arguments)
def reached(name, *arguments):
    done = call(name, *arguments)
    return done >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.EACCES, errno.ENOSYS)
"""


def got_by_calls(attempt: Attempt, code: str, parameters: dict[str, object] | None = None) -> list[str]:
    """Return what a program obtained that finds three functions more: `call(name, *arguments)`, `call_number` for a call by its
    number, and `reached`, which tells a call that the kernel answered from one that was refused. Raises SandboxError when the
    program failed."""
    numbers = {name: number_of(name) for name in NUMBERS}
    return attempt.got(_CALLS + textwrap.dedent(code), {"numbers": numbers, **(parameters or {})})
