"""Patches over several files in the form that models know as `apply_patch`: found by their text, without line numbers.

    *** Begin Patch
    *** Update File: shop/basket.py
    @@ def total(prices):
         result = 0
    -    return None
    +    return sum(prices, result)
    *** Add File: shop/vat.py
    +RATE = 0.2
    *** Delete File: shop/old.py
    *** End Patch

A hunk is replaced where its lines without the added ones stand; what follows `@@` is a line above it, to tell equal places apart.
The format is documented at https://cookbook.openai.com/examples/gpt4-1_prompting_guide; renaming (`Move to`) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_ACTIONS = {"*** Update File: ": "update", "*** Add File: ": "add", "*** Delete File: ": "delete"}
_END_OF_FILE = "*** End of File"


class PatchError(Exception):
    """The patch cannot be read or does not fit; the message is for the agent."""


@dataclass(slots=True)
class _Hunk:
    above: str = ""
    """A line to start looking after; empty: where the hunk before ended."""
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FilePatch:
    """The change a patch makes to one file."""

    action: str
    """`update`, `add` or `delete`."""
    path: str
    hunks: list[_Hunk] = field(default_factory=list)
    """One with the new file's lines for `add`."""


def parse_patch(text: str) -> list[FilePatch]:
    """Parse the files a patch touches, each once. Raises PatchError."""
    lines = text.strip("\n").split("\n")
    if lines[0].strip() != _BEGIN or lines[-1].strip() != _END or len(lines) < 3:
        raise PatchError(f"a patch starts with {_BEGIN}, ends with {_END}, and has something between")
    found: list[FilePatch] = []
    for line in lines[1:-1]:
        action = next((start for start in _ACTIONS if line.startswith(start)), None)
        if action is not None:
            found.append(FilePatch(_ACTIONS[action], line.removeprefix(action).strip()))
        elif not found:
            raise PatchError(f"a file's line is missing before {line[:80]!r}, e.g. *** Update File: PATH")
        else:
            _add_line(found[-1], line)
    paths = [patch.path for patch in found]
    if len(set(paths)) != len(paths):
        raise PatchError("a file is named twice")
    for patch in found:
        if patch.action == "update" and not any(hunk.old or hunk.new for hunk in patch.hunks):
            raise PatchError(f"nothing is changed in {patch.path}")
    return found


def _add_line(patch: FilePatch, line: str) -> None:
    mark, rest = line[:1], line[1:]
    if line == _END_OF_FILE:
        return
    if patch.action == "update" and line.startswith("@@"):
        patch.hunks.append(_Hunk(above=line[2:].strip()))
        return
    if mark not in ("+", "-", " ", "") or (patch.action != "update" and mark != "+") or patch.action == "delete":
        allowed = {"update": "@@, +, - or a space", "add": "+", "delete": "a new file"}[patch.action]
        raise PatchError(f"a line after {patch.action.title()} File must start with {allowed}: {line[:80]!r}")
    if not patch.hunks:
        patch.hunks.append(_Hunk())
    if mark != "+":
        patch.hunks[-1].old.append(rest)
    if mark != "-":
        patch.hunks[-1].new.append(rest)


def patched(patch: FilePatch, text: str) -> str:
    """Return the text of a file after an `update`. Raises PatchError where a hunk fits nowhere or in several places."""
    lines = text.split("\n")
    at = 0
    for number, hunk in enumerate(patch.hunks, 1):
        where = f"hunk {number} of {patch.path}"
        if hunk.above:
            at = 1 + next(_places(lines, [hunk.above], at, stripped=True), len(lines))
            if at > len(lines):
                raise PatchError(f"{where}: no line {hunk.above[:80]!r} follows")
        found = list(_places(lines, hunk.old, at)) if hunk.old else [at if hunk.above else len(lines) - lines[-1:].count("")]
        if not found:
            raise PatchError(f"{where}: its lines are not there; read the file again")
        if len(found) > 1 and not hunk.above:
            raise PatchError(f"{where}: its lines stand in {len(found)} places; add lines around them, or a line above after @@")
        lines[found[0] : found[0] + len(hunk.old)] = hunk.new
        at = found[0] + len(hunk.new)
    return "\n".join(lines)


def _places(lines: list[str], wanted: list[str], start: int, *, stripped: bool = False) -> Iterator[int]:
    """Yield the positions where the wanted lines appear consecutively, from `start` on."""
    for place in range(start, len(lines) - len(wanted) + 1):
        there = lines[place : place + len(wanted)]
        if (there if not stripped else [line.strip() for line in there]) == wanted:
            yield place


def added_text(patch: FilePatch) -> str:
    """Return the content of a file that an `add` makes."""
    return "".join(f"{line}\n" for hunk in patch.hunks for line in hunk.new)
