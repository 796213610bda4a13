"""The registry of detectors: the built-in ones and those that installed packages add."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Protocol

from composer_replication.hints.detectors import execution, progress, protocol, quality
from composer_replication.hints.detectors.reading import Reading
from composer_replication.types import Finding
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Transcript


class Detector(Protocol):
    """Finds one or more kinds of error in a finished transcript, the same every time, and never raises over what it reads."""

    @property
    def kinds(self) -> tuple[str, ...]: ...

    @property
    def needs(self) -> frozenset[str]:
        """Its needs besides the transcript up to a finding's turn: `next` (the turn after it), `end` (a complete transcript),
        `subprocess`, `judge`."""
        ...

    def detect(self, work: Reading, /) -> Iterable[Finding]:
        """Yield findings. `work` is the `Transcript` with its calls already parsed (`Reading.steps`)."""
        ...


BUILTIN_DETECTORS: Mapping[str, Detector] = {
    "unknown_tool": protocol.unknown_tool,
    "malformed_call": protocol.malformed_call,
    "invalid_arguments": protocol.invalid_arguments,
    "edit_not_applied": execution.edit_not_applied,
    "path_not_found": execution.path_not_found,
    "permission": execution.permission,
    "failed_run": execution.failed_run,
    "failed_grade": execution.failed_grade,
    "repeated_action": progress.repeated_action,
    "malformed_markup": protocol.malformed_markup,
    "no_tool_call": protocol.no_tool_call,
    "cut_off": protocol.cut_off,
    "command_failed": execution.command_failed,
    "oscillation": progress.oscillation,
    "reread": progress.reread,
    "premature_submit": progress.premature_submit,
    "too_long": progress.too_long,
    "syntax_error": quality.syntax_error,
    "test_regression": quality.test_regression,
    "forbidden_path": quality.forbidden_path,
}
"""Detectors by their run-file name. If several find the same turn, the first one that yields a hint counts, so the order matters:
what the environment refused, then what the tests reported, then the rest."""

STANDARD = tuple(BUILTIN_DETECTORS)[:12]
"""The detectors that runs use by default: they repeat what the environment reported, or find that a turn has no call that could
be carried out."""

GROUP = "composer_replication.detectors"


def load_plugins(group: str, *, taken: Container[str], kind: str, method: str, has: str) -> dict[str, Any]:
    """Return the objects that installed packages offer under an entry point group, by name; classes are called without arguments.

    Args:
        taken: names of built-in objects, which no package may take.
        kind: the word for such an object in messages.
        method: a method that each of them must have.
        has: all attributes that one needs, as the fix lists them.

    Raises:
        ConfigError: one of them cannot be loaded, lacks the method, or takes the name of a built-in one.
    """
    found: dict[str, Any] = {}
    for point in entry_points(group=group):
        try:
            loaded = point.load()
            found[point.name] = loaded() if isinstance(loaded, type) else loaded
        except (ImportError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{group}: {point.name} = {point.value!r} cannot be loaded: {error}",
                fix=f"repair or uninstall {point.dist.name if point.dist else 'the package that names it'}",
            ) from error
        if point.name in taken or not callable(getattr(found[point.name], method, None)):
            raise ConfigError(
                f"{group}: {point.name!r} has the name of a built-in {kind}, or no method {method}",
                fix=f"rename it, or give it what a {kind} has: {has}",
            )
    return found


@cache
def all_detectors() -> Mapping[str, Detector]:
    """Return the built-in detectors, then those of installed packages. Raises ConfigError when one of these cannot be loaded."""
    plugins = load_plugins(GROUP, taken=BUILTIN_DETECTORS, kind="detector", method="detect", has="kinds, needs, detect")
    return {**BUILTIN_DETECTORS, **plugins}


def detectors_named(names: Sequence[str]) -> tuple[Detector, ...]:
    """Return the detectors of these names, in this order. Raises ConfigError for an unknown one."""
    known = all_detectors()
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no detector {name!r}", fix=f"choose among: {', '.join(known)}")
    return tuple(known[name] for name in names)


def detect(transcript: Transcript, detectors: Sequence[Detector] | None = None) -> list[Finding]:
    """Return all findings, earliest turn first; findings of one turn keep the order of `detectors`.

    Args:
        transcript: of any agent: a `Trajectory`, a `Trace`, or whatever has what `Transcript` names.
        detectors: by default all that need neither a process nor a judge.
    """
    work = transcript if isinstance(transcript, Reading) else Reading(transcript)
    if detectors is None:
        detectors = [one for one in all_detectors().values() if not one.needs & {"subprocess", "judge"}]
    findings = [finding for detector in detectors for finding in detector.detect(work)]
    return sorted(findings, key=lambda finding: finding.turn)


def first_error(findings: Sequence[Finding], *, limit: int = 1) -> list[Finding]:
    """Return the first finding of each of the `limit` earliest error turns.

    Later errors are often consequences of the first, and a teacher's signal after a wrong turn is unreliable (SOD, arXiv
    2605.07725).
    """
    chosen: dict[int, Finding] = {}
    for finding in sorted(findings, key=lambda f: f.turn):
        if len(chosen) < limit or finding.turn in chosen:
            chosen.setdefault(finding.turn, finding)
    return list(chosen.values())
