"""Every rule of the filters of system calls as calls to make, from the tables that the filters are built of."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass

from composer_replication.sandbox.backends.seccomp import RULES, ArgumentRule
from composer_replication.sandbox.backends.syscalls import (
    BY_ARGUMENT,
    METADATA,
    OTHERS_OF_THE_USER,
    REFUSED,
    SHARED_MEMORY,
    number_of,
)
from composer_replication.sandbox.protocol import Isolation

_ODD = (-1,) * 6
"""Arguments that no call takes which has any."""
_X32 = 1 << 30
"""The first number of x32, a second set of system calls of x86-64; no machine has that many calls of its own."""
_HIGHER_BIT = 1 << 32
"""The kernel, and so a rule, does not look at the upper half of an argument."""
_OTHER_PROCESS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCall:
    """A call that a rule refuses, and the answer of a filter that has the rule."""

    name: str
    number: int
    arguments: tuple[int, ...] = _ODD
    about: str = ""
    """What the arguments are about, in words that follow the call's name."""
    answer: int = errno.EPERM
    """0: it is answered as if it had succeeded."""


def refused_calls(isolation: Isolation, machine: str | None = None) -> list[RefusedCall]:
    """Return the calls that a kind of sandbox refuses, on this machine or one of `syscalls.MACHINES`. Raises OSError for any
    other."""
    found = [*_of_every_kind(machine), RefusedCall(name="the numbers of x32", number=_X32)]
    if isolation.name == "landlock":
        found += _of_landlock(isolation, machine)
    return found


def _of_every_kind(machine: str | None) -> Iterator[RefusedCall]:
    for name in REFUSED:
        yield from _made(name, machine)
    for name in BY_ARGUMENT:
        if name not in RULES:  # its arguments lie in memory, where no rule reads
            yield from _made(name, machine, answer=errno.ENOSYS)
    for name, rule in RULES.items():
        values = _refused_by(rule)
        for argument in (*values, *(value | _HIGHER_BIT for value in values)):
            arguments = (*[0] * rule.argument, argument, *[0] * (5 - rule.argument))
            yield from _made(name, machine, arguments=arguments, about=f"{argument:#x}")


def _refused_by(rule: ArgumentRule) -> list[int]:
    """Return values that a rule refuses: those it names, or the small ones and the single bits that it does not allow."""
    bits = [1 << bit for bit in range(32)]
    others = sorted({*range(64), *bits} - {*rule.allowed}) if rule.allowed else []
    return [*rule.refused, *(bit for bit in bits if bit & rule.refused_bits), *others]


def _of_landlock(isolation: Isolation, machine: str | None) -> Iterator[RefusedCall]:
    """Yield what this kind refuses besides, as it has no namespaces, and no user of its own where `missing` says so."""
    for name in ("socket", *SHARED_MEMORY):
        yield from _made(name, machine, arguments=(1,) * 6, about="any arguments")
    if any(phrase.startswith("file modes and times") for phrase in isolation.missing):
        for name in METADATA:
            yield from _made(name, machine, answer=0)
        for name in OTHERS_OF_THE_USER:
            yield from _made(name, machine, arguments=(_OTHER_PROCESS, *_ODD[1:]), about="another process")


def _made(
    name: str, machine: str | None, *, arguments: tuple[int, ...] = _ODD, about: str = "", answer: int = errno.EPERM
) -> Iterator[RefusedCall]:
    """Yield that call, where the machine has it."""
    number = number_of(name, machine)
    if number is not None:
        yield RefusedCall(name=name, number=number, arguments=arguments, about=about, answer=answer)
