"""The coarse intent of a call: a kind and a subject. Two calls with different intents are certainly different actions, and two
that only look at the same thing never form a preference pair, whatever else distinguishes them."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from enum import StrEnum

from composer_replication.actions.agreement.calls import path_of
from composer_replication.actions.agreement.shell import arguments_of
from composer_replication.actions.agreement.targets import overlap
from composer_replication.actions.calls import Call
from composer_replication.actions.shell_words import NotUnderstoodError, Simple, read_line
from composer_replication.actions.tool_effects import EffectKind, classify_call, plain_path


class Aim(StrEnum):
    """A kind of intent."""

    READ = "read"
    SEARCH = "search"
    LIST = "list"
    HISTORY = "history"
    """The records of version control."""
    TEST = "test"
    CHANGE = "change"
    SUBMIT = "submit"


_LOOKS = frozenset({Aim.READ, Aim.SEARCH, Aim.LIST, Aim.HISTORY})
_TOOLS = {
    EffectKind.READ: Aim.READ,
    EffectKind.SEARCH: Aim.SEARCH,
    EffectKind.LIST: Aim.LIST,
    EffectKind.TEST: Aim.TEST,
    EffectKind.SUBMIT: Aim.SUBMIT,
    EffectKind.EDIT: Aim.CHANGE,
    EffectKind.WRITE: Aim.CHANGE,
    EffectKind.PATCH: Aim.CHANGE,
}
_PROGRAMS = {
    "cat": Aim.READ,
    "head": Aim.READ,
    "tail": Aim.READ,
    "wc": Aim.READ,
    "sed": Aim.READ,
    "sort": Aim.READ,
    "grep": Aim.SEARCH,
    "ls": Aim.LIST,
    "pytest": Aim.TEST,
    "rm": Aim.CHANGE,
    "mkdir": Aim.CHANGE,
    "cp": Aim.CHANGE,
    "git status": Aim.HISTORY,
    "git diff": Aim.HISTORY,
    "git log": Aim.HISTORY,
}
_FILTERS = frozenset({"head", "tail", "wc", "sort", "uniq", "grep", "cat"})
_PRINTS_LINES = re.compile(r"[0-9$]+(,[0-9$]+)?p")
_ELSEWHERE = frozenset({("2", ">&", "1"), ("2", ">", "/dev/null")})


@dataclass(frozen=True, slots=True)
class Intent:
    """The kind and subject of a call."""

    aim: Aim
    targets: tuple[str, ...]
    """Paths or tests; the empty text is the place where the call is made. Of a CHANGE none: the edits are compared."""


def intent_of(call: Call) -> Intent | None:
    """Return the call's intent; None when it is not known."""
    effect = classify_call(call.name, call.arguments)
    if effect.kind is EffectKind.SHELL:
        return None if effect.cwd else _shell_intent(effect.command)
    aim = _TOOLS.get(effect.kind)
    if aim is None:
        return None
    return Intent(aim, () if aim in (Aim.CHANGE, Aim.SUBMIT) else (path_of(call.arguments).rstrip("/"),))


def _shell_intent(command: str) -> Intent | None:
    """Return the intent of `cd FOLDER && PROGRAM | FILTER | ...`, where the program is known and all its output is shown."""
    try:
        line = read_line(command)
    except NotUnderstoodError:
        return None
    folder = ""
    if len(line) > 1 and line[1].joint == "&&" and (moved := _folder(line[0])) is not None:
        folder, line = moved, line[1:]
    first, *filters = line
    if any(f.joint != "|" or _called(f) not in _FILTERS or _reads_files(f) for f in filters) or not all(map(_only_shows, line)):
        return None
    read = arguments_of(first)
    if read is None:
        return None
    called, program, arguments = read
    aim = _PROGRAMS.get("pytest" if called[-1] == "pytest" else " ".join(called))
    searches = any(_called(f) == "grep" for f in filters)
    if aim is None or (called == ("sed",) and not _PRINTS_LINES.fullmatch(arguments.leading or "")):
        return None
    paths = arguments.operands or ((".",) if aim is not Aim.READ else ())
    if aim is Aim.CHANGE:
        return None if filters else Intent(aim, ())
    if aim is Aim.READ and not paths:
        return None  # reads its standard input
    targets = tuple(sorted(_target(folder, path) for path in paths)) if program.paths else (called[-1], *arguments.operands)
    return Intent(Aim.SEARCH if searches and aim in _LOOKS else aim, targets)


def _folder(simple: Simple) -> str | None:
    words = [word.text for word in simple.words]
    plain = (
        len(words) == 2 and words[0] == "cd" and not simple.words[1].expands and not simple.redirects and not simple.assignments
    )
    return words[1] if plain and words[1] not in ("", "-") else None


def _called(simple: Simple) -> str | None:
    read = arguments_of(simple)
    return None if read is None else read[0][0]


def _reads_files(simple: Simple) -> bool:
    read = arguments_of(simple)
    return read is None or bool(read[2].operands)


def _only_shows(simple: Simple) -> bool:
    return all((r.descriptor, r.operator, r.target.text) in _ELSEWHERE for r in simple.redirects)


def _target(folder: str, path: str) -> str:
    joined = plain_path(posixpath.join(folder, path)).rstrip("/")
    return "" if joined == "." else joined


def look_alike(one: Intent | None, other: Intent | None) -> bool:
    """Return whether both only look at, or test, the same thing."""
    return one is not None and one == other and (one.aim in _LOOKS or one.aim is Aim.TEST)


def surely_differ(one: Intent | None, other: Intent | None) -> bool:
    """Return whether calls with these intents cannot be the same action."""
    if one is None or other is None:
        return False
    if one.aim is not other.aim:
        return {one.aim, other.aim} != {Aim.READ, Aim.SEARCH} or _apart(one, other)
    if one.aim in (Aim.CHANGE, Aim.SUBMIT):
        return False
    return _apart(one, other)


def _apart(one: Intent, other: Intent) -> bool:
    return not any(overlap(a, b) for a in one.targets for b in other.targets)
