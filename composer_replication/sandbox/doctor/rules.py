"""The probe for the filter of system calls: each of its rules, by a real call.

A refusal looks the same whether the filter or the kernel gave it: without rights, `mount` fails with EPERM too. So the program
first loads a second filter, by which these calls wait for a tracer. As the stricter answer of two filters counts, a call that
the sandbox's filter refuses still fails with its error, and any other with ENOSYS, since there is no tracer. So none is carried
out, whatever the sandbox lets through. Calls that the filter itself answers with ENOSYS do not wait: of their arguments, which
none takes, the kernel says something else.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence

from composer_replication.sandbox.attempt import Attempt
from composer_replication.sandbox.backends.bpf import answer, assemble, if_equal, load
from composer_replication.sandbox.doctor.calls import got_by_calls
from composer_replication.sandbox.doctor.probe import shortened
from composer_replication.sandbox.doctor.refused_calls import RefusedCall, refused_calls

_NUMBER = 0
"""Offset of the call's number in `struct seccomp_data`."""
_ALLOW, _TRACE = 0x7FFF0000, 0x7FF00000
"""SECCOMP_RET_ALLOW and SECCOMP_RET_TRACE of `linux/seccomp.h`; an error is stricter than both."""
_FOREIGN = "calls of 32-bit x86"


def filter_rules(attempt: Attempt) -> list[str]:
    """Make every call that the filter of this kind of sandbox refuses, and one of another architecture."""
    tried = refused_calls(attempt.sandbox.isolation)
    told = [(call.number, call.arguments, call.answer) for call in tried]
    marks = _waiting_for_a_tracer({call.number for call in tried if call.answer != errno.ENOSYS})
    got = got_by_calls(attempt, _TRY, {"calls": told, "marks": marks.hex(), "foreign": _FOREIGN})
    return [*(what for what in got if what == _FOREIGN), *_summed([tried[int(what)] for what in got if what != _FOREIGN])]


def _waiting_for_a_tracer(numbers: Iterable[int]) -> bytes:
    """Return a filter under which these calls wait for a tracer."""
    checks = [if_equal(number, "traced") for number in sorted(numbers)]
    return assemble([load(_NUMBER), *checks, answer(_ALLOW), "traced", answer(_TRACE)])


def _summed(through: Sequence[RefusedCall]) -> list[str]:
    """Return one phrase for each call that got through."""
    by_name: dict[str, list[str]] = {}
    for call in through:
        by_name.setdefault(call.name, []).extend([call.about] if call.about else [])
    return [f"{name} ({', '.join(shortened(about))})" if about else name for name, about in by_name.items()]


_TRY = """
class Steps(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("first", ctypes.c_void_p)]
def control(what, *arguments):
    if libc.prctl(*[ctypes.c_ulong(a) if isinstance(a, int) else a for a in (what, *arguments)]) != 0:
        raise RuntimeError("the probe's own filter cannot be loaded: " + os.strerror(ctypes.get_errno()))
def foreign():  # getpid of i386
    import mmap
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20; int 0x80; ret
    child = os.fork()
    if child == 0:
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
if os.uname().machine == "x86_64":
    attempt(request["foreign"], foreign)
no_new_privileges, set_filter, program = 38, 22, 2
marks = bytes.fromhex(request["marks"])
kept = ctypes.create_string_buffer(marks, len(marks))
steps = Steps(len(marks) // 8, ctypes.addressof(kept))
control(no_new_privileges, 1, 0, 0, 0)
control(set_filter, program, ctypes.byref(steps), 0, 0)
for place, (number, arguments, expected) in enumerate(request["calls"]):
    done = call_number(number, *arguments)
    if (ctypes.get_errno() if done == -1 else 0) != expected:
        got.append(str(place))
"""
