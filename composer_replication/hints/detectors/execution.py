"""Calls that were made well and could not be carried out, or that failed through their own fault."""

from __future__ import annotations

import re
from collections.abc import Iterator

from composer_replication.actions.tool_effects import EffectKind
from composer_replication.hints.detectors.declared import detector
from composer_replication.hints.detectors.reading import CallStep, Reading, same_action
from composer_replication.types import Finding


@detector("edit_not_applied")
def edit_not_applied(work: Reading) -> Iterator[Finding]:
    """Find edits that changed nothing: the old text is not there, or not once, or is the new text."""
    for step in work.steps:
        replacements = step.effect.replacements
        if step.refusal == "edit_not_applied":
            yield step.finding("edit_not_applied")
        elif step.refusal is None and replacements and all(one.old == one.new for one in replacements):
            yield step.finding("edit_not_applied", {"reason": "the old text is the new text"})


@detector("path_not_found")
def path_not_found(work: Reading) -> Iterator[Finding]:
    """Find calls that name a file or folder that is not there.

    To list several folders in one turn, of which some are there, is how one asks which there are.
    """
    for step in work.steps:
        if step.refusal == "path_not_found" and not _lists_more(work, step):
            yield step.finding("path_not_found", {"path": step.effect.path} if step.effect.path else {})


def _lists_more(work: Reading, step: CallStep) -> bool:
    """Return whether the same turn lists other folders with the same programs, and finds something."""
    if step.command is None or not step.command.places:
        return False
    programs = step.command.programs
    others = (s for s in work.steps if s.turn == step.turn and s.command is not None and s.command.programs == programs)
    return any(other.refusal is None and other.content.strip() for other in others)


_SANDBOX = re.compile(r"^(bwrap|sandbox-exec): ", re.MULTILINE)
"""The agent's own sandbox that cannot be set up, so that no command runs."""


@detector("path_not_editable", "permission_denied")
def permission(work: Reading) -> Iterator[Finding]:
    """Find what the agent may not do: change a file, run a command.

    That its own sandbox does not work is nothing that it could know in the first turn that shows it.
    """
    broken: int | None = None
    for step in work.steps:
        if step.refusal not in ("path_not_editable", "permission_denied"):
            continue
        sandbox = _SANDBOX.search(step.content) if step.command is not None else None
        if sandbox and step.command is not None and sandbox[1] not in step.command.programs:
            broken = step.turn if broken is None else broken
            if step.turn == broken:
                continue
        yield step.finding(str(step.refusal))


@detector("command_failed", needs={"next"})
def command_failed(work: Reading) -> Iterator[Finding]:
    """Find commands that failed through their own fault, not those whose failing is an answer.

    That is: the shell could not run it (exit status 126 or 127) or it says itself that it was called in a wrong way (a usage
    message, a known error text); or it failed and the next turn makes nearly the same call again, or takes it back. A failing
    test run, linter or build and a search that finds nothing are answers, and so is a program of the agent's own that raises, and
    that a folder is no repository, to the first turn that asks git.
    """
    asked: int | None = None
    for step in work.steps:
        if step.command is None:
            continue
        if asked is None and any(program.partition(" ")[0] == "git" for program in step.command.programs):
            asked = step.turn
        if step.refusal == "command_failed" and not (
            step.turn == asked and step.command.looks and _NO_REPOSITORY in step.content
        ):
            yield step.finding("command_failed", {"exit_code": step.exit_code})
        elif step.refusal is None and _failed_without_saying(step) and (how := _taken_back(work, step)) is not None:
            yield step.finding("command_failed", {"exit_code": step.exit_code, "reason": how}, confidence=0.8)


_NO_REPOSITORY = "fatal: not a git repository"
_RUNS_ANYTHING = frozenset({"python", "node", "ruby", "perl", "bash", "sh", "php", "java", "Rscript"})


def _failed_without_saying(step: CallStep) -> bool:
    command = step.command
    if command is None or not step.exit_code or command.checks or (command.searches and step.exit_code == 1):
        return False
    return not set(command.programs) & _RUNS_ANYTHING and not any(program.startswith("./") for program in command.words[:1])


def _taken_back(work: Reading, step: CallStep) -> str | None:
    """Describe how the next turn corrects or undoes a command; None if it does not."""
    following = next((s for s in work.steps[step.index + 1 :] if s.turn > step.turn), None)
    if following is None or following.turn > step.turn + 1 or following.command is None or step.command is None:
        return None
    if following.command.undoes:
        return "the next turn takes it back"
    same_program = following.command.programs[-1:] == step.command.programs[-1:]
    one, other = set(step.command.words), set(following.command.words)
    if not same_program or same_action(step, following) or len(one & other) < 0.5 * len(one | other):
        return None
    return "the next turn makes nearly the same call"


@detector("tests_failed", "timeout", "out_of_memory")
def failed_run(work: Reading) -> Iterator[Finding]:
    """Find failing runs of code: the last change of the workspace before them went wrong.

    A failing run before any change shows how the task began and is not an error; a call that timed out or ran out of memory
    before any change, or without running code, is its own turn's error. Only a test tool's own status counts as failed tests: to
    run tests that fail by a command is work in progress.
    """
    changed: int | None = None
    found: set[tuple[str, int]] = set()
    for step in work.steps:
        if step.changes:
            changed = step.turn
        kind = step.refusal
        if kind not in ("tests_failed", "timeout", "out_of_memory") or (
            kind == "tests_failed" and (changed is None or step.effect.kind is not EffectKind.TEST)
        ):
            continue
        turn = step.turn if changed is None or step.effect.kind is not EffectKind.TEST else changed
        if (kind, turn) not in found:
            found.add((kind, turn))
            yield step.finding(kind, turn=turn)


@detector("tests_failed", needs={"end"})
def failed_grade(work: Reading) -> Iterator[Finding]:
    """Blame the last change when the grader gave 0 and the agent never saw it fail.

    The evidence holds nothing the grader knows beyond the zero; the agent could not have seen it.
    """
    if work.reward != 0.0:
        return
    last: CallStep | None = None
    seen_failing = False
    for step in work.steps:
        if step.changes:
            last, seen_failing = step, False
        elif step.runs_tests and (step.refusal is not None or bool(step.exit_code)):
            seen_failing = True
    if last is not None and not seen_failing:
        yield Finding(kind="tests_failed", turn=last.turn, evidence={"revealed_by": len(work.turns) - 1})
