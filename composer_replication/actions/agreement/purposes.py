"""Tell the purpose of a shell command, as far as its programs show it.

Commands with nothing in common there are different actions: removing files is not restoring them, committing is not looking, and
installing one package is not installing another.

It says less than `intent.py` about a single command whose options it knows, and something about many more lines: several
commands, unknown options, here-documents. It never says that two commands are the same.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence

from composer_replication.actions.agreement.program_purposes import (
    EVERYTHING,
    INSTALLS,
    LOOK,
    PATCH,
    REMOVE,
    SUBMIT,
    TEST,
    WRITE,
    Purpose,
    purpose_of,
)
from composer_replication.actions.agreement.targets import overlap
from composer_replication.actions.calls import Call
from composer_replication.actions.shell_words import NotUnderstoodError, Redirect, Word, read_line
from composer_replication.actions.tool_effects import EffectKind, classify_call, plain_path

_MAY_BE_ONE = frozenset(
    frozenset(pair)
    for pair in (
        *((PATCH, kind) for kind in (WRITE, REMOVE, "git restore", "git stash pop")),
        *((kind, "git restore") for kind in (WRITE, REMOVE)),
        (WRITE, "git stash pop"),
        (WRITE, "fetch"),
        ("install", "apt install"),
    )
)
"""Kinds of which one may be the other: a restored file may also be written again, and a patch may remove."""
_BY_TARGET = frozenset({WRITE, REMOVE, "git restore", "git stage"}) | INSTALLS
"""Kinds of which two are different actions where they have no target in common."""
_SCRATCH = ("/tmp/", "/var/tmp/", "/dev/shm/")
"""Folders in which a written file is only a way to look."""


def purposes_differ(left: Sequence[Call], right: Sequence[Call]) -> bool:
    """Return whether two actions certainly do different things: no kind of either is a kind of the other, or both are one kind of
    thing done to different targets. False where the purpose of any call is not known."""
    one, other = _of_calls(left), _of_calls(right)
    if not one or not other:
        return False
    if all(_kinds_differ(a.kind, b.kind) for a in one for b in other):
        return True
    kinds = {purpose.kind for purpose in (*one, *other)}
    return len(kinds) == 1 and kinds <= _BY_TARGET and not any(_share_a_target(a, b) for a in one for b in other)


def _kinds_differ(one: str, other: str) -> bool:
    return one != other and frozenset((one, other)) not in _MAY_BE_ONE


def _share_a_target(one: Purpose, other: Purpose) -> bool:
    if one.kind in INSTALLS:
        return EVERYTHING in (*one.targets, *other.targets) or not set(one.targets).isdisjoint(other.targets)
    return any(overlap(a, b) for a in one.targets for b in other.targets)


def _of_calls(calls: Sequence[Call]) -> frozenset[Purpose]:
    """Return the purposes of an action, without its looks where it does something besides; none where one is not known."""
    found: set[Purpose] = set()
    for call in calls:
        purposes = _of_call(call)
        if not purposes:
            return frozenset()
        found |= purposes
    return frozenset(purpose for purpose in found if purpose.kind != LOOK) or frozenset(found)


def _of_call(call: Call) -> frozenset[Purpose]:
    effect = classify_call(call.name, call.arguments)
    match effect.kind:
        case EffectKind.SHELL:
            return frozenset() if effect.cwd else purposes_of(effect.command)
        case EffectKind.READ | EffectKind.SEARCH | EffectKind.LIST:
            return frozenset({Purpose(LOOK)})
        case EffectKind.EDIT | EffectKind.WRITE:
            return frozenset({Purpose(WRITE)})  # which files two edits change is compared in `edits.py`
        case EffectKind.PATCH:
            return frozenset({Purpose(PATCH)})
        case EffectKind.TEST:
            return frozenset({Purpose(TEST)})
        case EffectKind.SUBMIT:
            return frozenset({Purpose(SUBMIT)})
    return frozenset()


# --- a line -----------------------------------------------------------------------------------------------------------

_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*(?P<quote>['\"]?)(?P<tag>\w+)(?P=quote)")
_NEUTRAL = frozenset({"export", "set", "unset", "ulimit", "umask", "sleep"})
"""Commands that only prepare for others."""
_NOWHERE = frozenset({"/dev/null", "/dev/stderr", "/dev/stdout", "&1", "1", "2"})
_SUBMISSION = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""Printed by mini-swe-agent's command of submission (its default configuration)."""


def purposes_of(command: str) -> frozenset[Purpose]:
    """Return what a shell command does; none where it is not understood or calls a program that is not known here."""
    if _SUBMISSION in command:
        return frozenset({Purpose(SUBMIT)})
    try:
        line = read_line(_without_here_documents(command))
    except NotUnderstoodError:
        return frozenset()
    found: set[Purpose] = set()
    folder: str | None = ""
    for simple in line:
        if simple.joint == "||" and [word.text for word in simple.words] != ["true"]:
            return frozenset()  # one of two runs, and it cannot be told which
        words = _without_wrappers(simple.words)
        if [posixpath.basename(word.text) for word in words[1:]] == ["activate"] and words[0].text in ("source", "."):
            continue
        if words and words[0].text in ("cd", "pushd", "popd"):
            folder = _moved(folder, words)
        elif not words or words[0].text not in _NEUTRAL:
            purpose = purpose_of(words)
            if purpose is None:
                return frozenset()
            scratch = purpose.kind == WRITE and all(path.startswith(_SCRATCH) for path in purpose.targets)
            found.add(Purpose(LOOK) if scratch else _in_folder(purpose, folder))
        written = [path for path in _written(simple.redirects) if not path.startswith(_SCRATCH)]
        found |= {_in_folder(Purpose(WRITE, (path,)), folder) for path in written}
    others = {purpose for purpose in found if purpose.kind != LOOK}
    return frozenset(others or found)


def _without_here_documents(command: str) -> str:
    """Return a command without the texts of its here-documents and without the redirections to them."""
    kept: list[str] = []
    lines = command.split("\n")
    while lines:
        line = lines.pop(0)
        here = [*_HERE_DOCUMENT.finditer(line)]
        ends = [place for place, text in enumerate(lines) if here and text.strip() == here[0]["tag"]]
        if len(here) == 1 and ends:  # what looks like one, and has no end, may be a quoted text
            line, lines = _HERE_DOCUMENT.sub(" ", line), lines[ends[0] + 1 :]
        kept.append(line)
    return "\n".join(kept)


def _without_wrappers(words: Sequence[Word]) -> Sequence[Word]:
    """Return a command without programs that run another one as it is."""
    while words and words[0].text in ("sudo", "time", "nohup", "env", "timeout", "exec"):
        takes = 1 if words[0].text == "timeout" else 0
        rest = list(words[1:])
        while rest and (rest[0].text.startswith("-") or (words[0].text == "env" and "=" in rest[0].text)):
            rest.pop(0)
        words = rest[takes:]
    return words


def _moved(folder: str | None, words: Sequence[Word]) -> str | None:
    """Return the folder after `cd` or `pushd`; None where it cannot be told."""
    if folder is None or len(words) != 2 or words[1].expands or words[1].text in ("", "-"):
        return None
    return posixpath.join(folder, words[1].text)


def _in_folder(purpose: Purpose, folder: str | None) -> Purpose:
    if purpose.kind in INSTALLS:
        return purpose
    if folder is None:
        return Purpose(purpose.kind)
    targets = (path if path == EVERYTHING else _plain(posixpath.join(folder, path)) for path in purpose.targets)
    return Purpose(purpose.kind, tuple(sorted(set(targets))))


def _plain(path: str) -> str:
    short = plain_path(path).rstrip("/")
    return EVERYTHING if short in (".", "") else short


def _written(redirects: Iterable[Redirect]) -> Iterator[str]:
    """Yield the files that a command's output goes to."""
    for redirect in redirects:
        if redirect.operator.startswith((">", "&>")) and redirect.target.text not in _NOWHERE:
            yield EVERYTHING if redirect.target.expands else redirect.target.text
