"""The filter of system calls that every kind of sandbox loads last, and the session keyring that goes with it.

It names what is refused and allows the rest, so that a program that works outside works inside. Refused is what gives nothing to
the programs of a task and has let others out of their sandbox: keys, which outlive a process and cross every namespace; programs
and events of the kernel; other processes; mounts, namespaces and file handles once the sandbox is made; sockets of any family
but those of a network that the sandbox does not have. A refused call fails with EPERM, as it does for a user without rights.
"""

from __future__ import annotations

import errno
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from composer_replication.sandbox.backends import linux
from composer_replication.sandbox.backends.bpf import Line, Step, answer, assemble, if_any_bit, if_at_least, if_equal, load
from composer_replication.sandbox.backends.syscalls import REFUSED, number_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentRule:
    """Refuse a call by one of its arguments, of which the kernel, and so the filter, reads the lower 32 bits."""

    argument: int
    allowed: tuple[int, ...] = ()
    """Values that are allowed, and no other; empty: this rule does not say."""
    refused: tuple[int, ...] = ()
    refused_bits: int = 0
    """Values with any of these bits are refused."""


_NOT_THERE = ("clone3",)
"""Calls answered with ENOSYS. The flags of clone3 lie in memory, where a filter cannot read; C libraries then use clone."""

_FAMILIES = ArgumentRule(argument=0, allowed=(1, 2, 10))  # AF_UNIX, AF_INET, AF_INET6
RULES: dict[str, ArgumentRule] = {
    "socket": _FAMILIES,
    "socketpair": _FAMILIES,
    # every CLONE_NEW flag; 0x80 is CLONE_NEWTIME
    "clone": ArgumentRule(argument=0, refused_bits=0x7E020000 | 0x80),
    # TIOCSTI and TIOCLINUX type into a terminal
    "ioctl": ArgumentRule(argument=1, refused=(0x5412, 0x541C)),
    # PER_LINUX, PER_LINUX32, both with UNAME26, and the question which one it is, as in Docker's filter
    "personality": ArgumentRule(argument=0, allowed=(0, 8, 0x20000, 0x20008, 0xFFFFFFFF)),
}
"""Calls that are refused by an argument, of those in `syscalls.BY_ARGUMENT`."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
"""The bit of the numbers of x32, a second set of system calls of x86-64."""
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`."""
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_IN_A_ROW = 4
"""Most comparisons in a row at the end of the binary search."""


def compiled(
    answers: Mapping[str, int] | None = None,
    *,
    more: Mapping[str, ArgumentRule] | None = None,
    refusal: int = errno.EPERM,
    machine: str = "",
) -> bytes:
    """Return the filter's BPF program.

    Calls of another architecture kill the process, and the numbers of x32 are refused.

    Args:
        answers: errors with which further calls, or calls of the tables above, are answered instead; 0 is success. None of
            them is carried out.
        more: further calls that are refused by an argument.
        refusal: error of a refused call. Another one than EPERM tells this filter's refusals from the kernel's.
        machine: machine to compile for, by default this one.

    Raises:
        OSError: the system calls of the machine are not known.
    """
    machine = machine or platform.machine()
    errors = {**dict.fromkeys(REFUSED, refusal), **dict.fromkeys(_NOT_THERE, errno.ENOSYS), **(answers or {})}
    rules = {name: rule for name, rule in (RULES | dict(more or {})).items() if name not in errors}
    targets = {name: _error(error) for name, error in errors.items()} | {name: _check(rule) for name, rule in rules.items()}
    by_number = {number: label for name, label in targets.items() if (number := number_of(name, machine)) is not None}
    lines: list[Line] = [load(_ARCHITECTURE), if_equal(_AUDIT_ARCH[machine], otherwise="foreign")]
    lines += [load(_NUMBER), if_at_least(_X32, _error(refusal)), *_search(sorted(by_number.items()))]
    for rule in dict.fromkeys(rules.values()):
        lines += _checked(rule, _error(refusal))
    lines += ["allow", answer(_ALLOW), "foreign", answer(_KILL)]
    for error in sorted({refusal, *errors.values()}):
        lines += [_error(error), answer(_ERROR | error)]
    return assemble(lines)


def _error(error: int) -> str:
    return f"error {error}"


def _check(rule: ArgumentRule) -> str:
    return f"check {rule}"


def _search(targets: list[tuple[int, str]]) -> Iterator[Line]:
    """Yield a binary search for the loaded number: to its label, or to `allow`."""
    if len(targets) <= _IN_A_ROW:
        *first, (last, label) = targets
        yield from (if_equal(number, then) for number, then in first)
        yield if_equal(last, label, otherwise="allow")
        return
    middle = len(targets) // 2
    upper = f"from {targets[middle][0]}"
    yield if_at_least(targets[middle][0], upper)
    yield from _search(targets[:middle])
    yield upper
    yield from _search(targets[middle:])


def _checked(rule: ArgumentRule, refusal: str) -> list[Line]:
    """Return the steps that decide by one argument."""
    steps: list[Step] = [load(_ARGUMENTS + 8 * rule.argument)]
    steps += [if_equal(value, refusal) for value in rule.refused]
    if rule.allowed:
        *first, last = rule.allowed
        steps += [*(if_equal(value, "allow") for value in first), if_equal(last, "allow", otherwise=refusal)]
    else:
        steps.append(if_any_bit(rule.refused_bits, refusal, otherwise="allow"))
    return [_check(rule), *steps]


@cache
def box_filter() -> bytes:
    """Return the filter of every kind of sandbox that adds nothing to it. Raises OSError like `compiled`."""
    return compiled()


def seal(program: bytes) -> None:
    """Load a filter in the last process of a sandbox before its command. Raises OSError."""
    linux.no_new_privs()
    linux.load_filter(program)
