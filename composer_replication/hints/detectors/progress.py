"""Turns that bring the work no further: repeats, going round in circles, reading again, ending unproved, being too long."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from composer_replication.actions.tool_effects import EffectKind
from composer_replication.hints.detectors.declared import detector
from composer_replication.hints.detectors.files import patched_paths
from composer_replication.hints.detectors.reading import CallStep, Reading, same_action
from composer_replication.types import Finding


def _same_answer(one: CallStep, other: CallStep) -> bool:
    return one.result is not None and other.result is not None and one.content == other.content


@detector("repeated_action")
def repeated_action(work: Reading) -> Iterator[Finding]:
    """Find a canonical call made twice or more in a row with the same answer, and a command started in the background twice in a
    row: one finding per repeat."""
    previous: CallStep | None = None
    for step in work.steps:
        if step.call is None or step.call.error is not None:
            previous = None
            continue
        if step.result is None:
            continue
        if previous is not None and (
            (same_action(previous, step) and _same_answer(previous, step)) or _started_again(previous, step)
        ):
            yield step.finding("repeated_action")
        previous = step


_BACKGROUND = ("run_in_background", "is_background")


def _started_again(one: CallStep, other: CallStep) -> bool:
    """Return whether both start the same command in the background: the answer names the job, so it differs each time."""
    return one.signature == other.signature and _in_background(one) and _in_background(other)


def _in_background(step: CallStep) -> bool:
    started = step.command is not None and step.call is not None and step.refusal is None
    return started and any(step.call.arguments.get(name) is True for name in _BACKGROUND if step.call)


@detector("oscillation")
def oscillation(work: Reading) -> Iterator[Finding]:
    """Find A, B, A, B with the same answers the second time: one finding per run, at the second B."""
    steps = work.steps
    before = False
    for at in range(3, len(steps)):
        a, b, c, d = steps[at - 3 : at + 1]
        now = a.signature != b.signature and same_action(a, c) and same_action(b, d) and _same_answer(a, c) and _same_answer(b, d)
        if now and not before:
            yield d.finding("oscillation", {"calls": [one.call.name for one in (a, b) if one.call is not None]})
        before = now


_WITHIN = 20
"""Turns after which reading again is fair: contexts are long and get cut."""


@detector("reread_unchanged")
def reread(work: Reading) -> Iterator[Finding]:
    """Find the same look at the files as a short while ago, nothing changed since, and the same answer: no new information.

    Looking again after an edit that did not apply is what one should do, and directly after is a repeat, not this.
    """
    seen: dict[str, CallStep] = {}
    for step in work.steps:
        if not step.looks:
            seen.clear()
            continue
        if step.refusal is not None or not step.signature or step.runs_tests or step.result is None or not step.content.strip():
            continue
        earlier = seen.get(step.signature)
        seen[step.signature] = step
        if earlier is None or step.turn - earlier.turn > _WITHIN or step.index == earlier.index + 1:
            continue
        if earlier.content == step.content and same_action(earlier, step):
            yield step.finding("reread_unchanged", {"first_read": earlier.turn})


_CODE = tuple(
    f".{suffix}"
    for suffix in "py pyx js jsx ts tsx go rs java kt c cc cpp h hpp rb php cs swift scala sh lua pl ex clj hs".split()  # noqa: SIM905
)


@detector("premature_submit", needs={"end"})
def premature_submit(work: Reading) -> Iterator[Finding]:
    """Find work that was handed in although nothing was run after the last change of code.

    Handing in is a call of the tool for it or, for agents without one, the last turn, which calls nothing. Any test run counts,
    and so does any program that may have tried the change.
    """
    untested: CallStep | None = None
    for step in work.steps:
        if step.changes and step.effect.changes:
            code = [path for path in patched_paths(step.effect) if path.endswith(_CODE)]
            untested = step if code else untested
        elif step.runs_tests or (step.command is not None and not step.command.looks):
            untested = None
        elif step.effect.kind is EffectKind.SUBMIT and step.refusal is None and untested is not None:
            yield _handed_in(step.turn, untested)
            return
    last = len(work.turns) - 1
    if untested is not None and not work.turns[last].tool_calls and work.turns[last].text.strip() and last > untested.turn:
        if any("submit" in name or "finish" in name for name in work.tool_names):
            return
        yield _handed_in(last, untested)


def _handed_in(turn: int, untested: CallStep) -> Finding:
    paths = [posixpath.basename(path) for path in patched_paths(untested.effect)]
    return Finding(kind="premature_submit", turn=turn, confidence=0.9, evidence={"changed_at": untested.turn, "paths": paths})


_LONGEST_TEXT = 8_000
"""Characters of a turn's own words; calls do not count."""
_LONGEST_OBSERVATION = 40_000
"""Characters of one answer."""
_CUT = re.compile(r"(?:<returncode>-?\d+</returncode>\s*)?<warning>\s*The output of your last command was too long\b")
"""mini-swe-agent's words above an answer whose middle it left out."""


@detector("long_turn", "long_observation")
def too_long(work: Reading) -> Iterator[Finding]:
    """Find turns with far too much text, and calls that returned far too much to read, by length or by the environment's word."""
    for index, turn in enumerate(work.turns):
        if len(turn.text) > _LONGEST_TEXT and not turn.tool_calls:
            yield Finding(
                kind="long_turn", turn=index, span=(_LONGEST_TEXT, len(turn.text)), evidence={"characters": len(turn.text)}
            )
    for step in work.steps:
        if len(step.content) > _LONGEST_OBSERVATION or _CUT.match(step.content):
            yield step.finding("long_observation", {"characters": len(step.content), "observation": ""})
