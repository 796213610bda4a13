"""The containment self-test: every probe against one sandbox, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from composer_replication.sandbox.attempt import open_attempt
from composer_replication.sandbox.doctor.probe import Probe
from composer_replication.sandbox.doctor.probes import PROBES
from composer_replication.sandbox.protocol import Sandbox
from composer_replication.types.errors import SandboxError


class ProbeVerdict(StrEnum):
    """The verdict on a probe."""

    BLOCKED = "blocked"
    ADMITTED = "not blocked, as admitted"
    """It got through where `Isolation.missing` says that nothing is enforced."""
    OPEN = "NOT blocked"
    BROKEN = "not tested"
    """The sandbox broke, so nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One probe's result."""

    probe: str
    tries: str
    verdict: ProbeVerdict
    detail: tuple[str, ...] = ()
    """The attacks that got through, with the reason where it is admitted; or why nothing is known."""


@runtime_checkable
class Elsewhere(Protocol):
    """A sandbox on another machine, where the bait must be laid out: nothing here would be in its reach."""

    def escapes(self, probe: str) -> list[str]:
        """Return what the probe of that name obtains there. Raises SandboxError."""
        ...


def self_test(sandbox: Sandbox, probes: Sequence[Probe] = PROBES) -> Iterator[ProbeResult]:
    """Run each probe and yield its result."""
    for probe in probes:
        yield _try_out(sandbox, probe)


def escapes(sandbox: Sandbox, probe: Probe) -> list[str]:
    """Return what a probe obtains as a started program and, where the sandbox supports it, as one forked from a running
    interpreter. Raises SandboxError."""
    got: list[str] = []
    for warm in (False, True):
        with open_attempt(sandbox, warm=warm) as attempt:
            got += probe.run(attempt)
    return got


def _try_out(sandbox: Sandbox, probe: Probe) -> ProbeResult:
    try:
        got = sandbox.escapes(probe.name) if isinstance(sandbox, Elsewhere) else escapes(sandbox, probe)
    except SandboxError as error:
        return ProbeResult(probe=probe.name, tries=probe.tries, verdict=ProbeVerdict.BROKEN, detail=(error.message,))
    verdict, reasons = ProbeVerdict.BLOCKED, []
    if got:
        reasons = [phrase for phrase in sandbox.isolation.missing if probe.excuses and phrase.startswith(probe.excuses)]
        verdict = ProbeVerdict.ADMITTED if reasons else ProbeVerdict.OPEN
    detail = dict.fromkeys([*got, *(f"not enforced: {phrase}" for phrase in reasons)])
    return ProbeResult(probe=probe.name, tries=probe.tries, verdict=verdict, detail=tuple(detail))
