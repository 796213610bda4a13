"""Known file contents at every step, from what the agent was shown and what it wrote.

Only what is certain: a text is known after a whole file was shown or written, stays known through edits that can be carried out
here too, and is forgotten at every command that may have changed files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from composer_replication.actions.agreement.edits import NoEditError, apply_edit
from composer_replication.actions.patches import FilePatch, PatchError, added_text, parse_patch, patched
from composer_replication.actions.tool_effects import EffectKind, ToolEffect
from composer_replication.hints.detectors.reading import CallStep

_NUMBERED = re.compile(r"^ *(\d+)(?:\t|→)(.*)$")
_LISTING = re.compile(r"^Here's the result of running `cat -n` on [^\n]*:\n")
_CUT = re.compile(
    r"^(?:\.\.\. \d+ more lines|.*(?:truncated|clipped|omitted).*|<response clipped>.*|<system-reminder>.*)$", re.IGNORECASE
)
_PATCH_FILE = re.compile(r"^\*\*\* (Update|Add|Delete) File: (.+)$|^(?:\+\+\+|---) [ab]/(\S+)", re.MULTILINE)
_ENVELOPE = re.compile(r"^\*\*\* Begin Patch$.*^\*\*\* End Patch$", re.MULTILINE | re.DOTALL)
"""A patch within the shell command that applies it."""


@dataclass(frozen=True, slots=True)
class Change:
    """One file changed by one step."""

    step: CallStep
    path: str
    before: str | None
    """None when it is not known, or the file is new."""
    after: str | None
    """None when it is not known."""


def changes(steps: Sequence[CallStep]) -> Iterator[Change]:
    """Yield every change of a file by an editing tool that was carried out, in order."""
    known: dict[str, str] = {}
    for step in steps:
        effect = step.effect
        if step.command is not None:
            words = step.command.words
            if words[:1] == ("cat",) and len(words) == 2 and len(step.command.programs) == 1 and step.exit_code == 0:
                known[posixpath.normpath(words[1])] = step.content
            elif not step.command.looks and not step.command.checks:
                known.clear()
        elif effect.kind is EffectKind.READ and effect.lines is None and step.refusal is None:
            text = _shown(step.content)
            if text is not None:
                known[effect.path] = text
        elif step.changes:
            for path, after in _after(effect, known):
                before = known.pop(path, None)
                if after is not None:
                    known[path] = after
                yield Change(step, path, before, after)
        elif effect.changes or effect.kind is EffectKind.OTHER:
            for path in patched_paths(effect) if effect.changes else tuple(known):
                known.pop(path, None)


def patched_paths(effect: ToolEffect) -> tuple[str, ...]:
    """Return the files that an editing call changes."""
    if effect.kind is not EffectKind.PATCH:
        return (effect.path,)
    found = (match[2] or match[3] for match in _PATCH_FILE.finditer(effect.content))
    return tuple(dict.fromkeys(posixpath.normpath(path.strip()) for path in found if path))


def _after(effect: ToolEffect, known: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    if effect.kind is EffectKind.WRITE:
        yield effect.path, effect.content
    elif effect.kind is EffectKind.EDIT:
        yield effect.path, _edited(effect, known.get(effect.path))
    else:
        yield from _patched(effect.content, known)


def _edited(effect: ToolEffect, text: str | None) -> str | None:
    try:
        return None if text is None else apply_edit(effect, text)
    except NoEditError:
        return None


def _patched(text: str, known: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    """Yield the files of a `*** Begin Patch`; of another kind of patch only their names are known."""
    found = _ENVELOPE.search(text)
    try:
        patches = parse_patch(found[0] if found else "")
    except PatchError:
        yield from ((path, None) for path in patched_paths(ToolEffect(kind=EffectKind.PATCH, content=text)))
        return
    for patch in patches:
        path = posixpath.normpath(patch.path)
        yield path, added_text(patch) if patch.action == "add" else _updated(patch, known.get(path))


def _updated(patch: FilePatch, text: str | None) -> str | None:
    try:
        return None if text is None or patch.action == "delete" else patched(patch, text)
    except PatchError:
        return None


def _shown(content: str) -> str | None:
    """Return the whole file that an answer shows, without its line numbers; None when it may be only a part."""
    content = _LISTING.sub("", content, count=1)
    lines = content.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines or any(_CUT.match(line) for line in (lines[-1], lines[len(lines) // 2])):
        return None
    if not _NUMBERED.match(lines[0]):
        return content
    matches = [_NUMBERED.match(line) for line in lines]
    numbers = [int(match[1][:9]) if match else -1 for match in matches]
    if numbers != list(range(1, len(lines) + 1)):
        return None
    return "".join(f"{match[2]}\n" for match in matches if match)
