"""Equality of edits: apply both to the current files and compare the results."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Mapping, Sequence

from composer_replication.actions.agreement.calls import path_of
from composer_replication.actions.agreement.verdict import ActionComparison, SameAction
from composer_replication.actions.calls import Call
from composer_replication.actions.patches import PatchError, added_text, parse_patch, patched
from composer_replication.actions.tool_effects import EffectKind, ToolEffect, classify_call, plain_path
from composer_replication.types.syntax import parse_module

DOES_NOT_APPLY = "one of the edits does not apply"

Files = Mapping[str, str | None]
"""Path relative to the root -> text, or None for a file that is known not to be there."""
_READ_BY_TOOLS = re.compile(
    r"#[!:%]|#\s*(?:///|%%|-\*-|[A-Za-z][\w.-]*(?: [A-Za-z][\w.-]*)?\s*[:=])"
    r"|.*\b(?:no-?qa|nosec|nosonar|pragma|coding|type|pylint|mypy|pyright|ruff|flake8|fmt|isort|yapf|noinspection)\b",
    re.IGNORECASE | re.DOTALL,
)
"""A comment that an interpreter, a checker or a formatter may obey; what looks like `key: value` may be for one too."""


class NoEditError(Exception):
    """An edit does not fit the file: it changes nothing and says so."""


class UnknownFileError(Exception):
    """The content of the file is not known."""


def compare_edits(one: Sequence[Call], other: Sequence[Call], files: Files, *, complete: bool = False) -> ActionComparison:
    """Compare calls that all change files. Python files are the same when their syntax trees and tool-read comments are; others
    when their texts are. Texts that differ only in such comments, or in trailing blanks, are undecided: what is known of a file
    may lack its last line break. So are edits of paths that may be one file.

    Args:
        files: as they are before; of a path without an entry nothing is known.
        complete: such a path is not a file.
    """
    after: list[dict[str, str | None] | None] = []
    for calls in (one, other):
        try:
            after.append(edited(calls, files, complete=complete))
        except NoEditError:
            after.append(None)
        except UnknownFileError:
            return _from_paths(one, other)
    left, right = after
    if any(a != b and may_be_one(a, b) for a in _targets(one) | _targets(other) for b in _targets(one) | _targets(other)):
        return ActionComparison(SameAction.UNDECIDED, "edits", "two of the paths may be one file")
    if left is None and right is None:
        return ActionComparison(SameAction.UNDECIDED, "edits", "neither edit applies")
    if left is None or right is None:
        if len(one if left is None else other) > 1:
            return ActionComparison(SameAction.UNDECIDED, "edits", "some of the edits do not apply")
        return ActionComparison(SameAction.DIFF, "edits", DOES_NOT_APPLY)
    paths = left.keys() | right.keys()
    ends = [tuple(after_it.get(path, files.get(path)) for after_it in (left, right)) for path in sorted(paths)]
    answers = {_compare_texts(path, *texts) for path, texts in zip(sorted(paths), ends, strict=True)}
    if answers <= {SameAction.SAME}:
        return ActionComparison(SameAction.SAME, "edits", "the files are the same afterwards")
    if SameAction.DIFF in answers:
        return ActionComparison(SameAction.DIFF, "edits", "the files differ afterwards")
    return ActionComparison(
        SameAction.UNDECIDED, "edits", "the files differ in comments that tools read, or in blanks at their end"
    )


def _from_paths(one: Sequence[Call], other: Sequence[Call]) -> ActionComparison:
    left, right = _targets(one), _targets(other)
    if left and right and not left & right and not any(may_be_one(a, b) for a in left for b in right):
        return ActionComparison(SameAction.DIFF, "edits", "they change different files")
    return ActionComparison(SameAction.UNDECIDED, "edits", "what the files hold is not known")


def _targets(calls: Sequence[Call]) -> frozenset[str]:
    """Return paths that are changed; none where a patch cannot be read."""
    found: set[str] = set()
    for call in calls:
        effect = classify_call(call.name, call.arguments)
        if effect.kind is not EffectKind.PATCH:
            found.add(path_of(call.arguments))
            continue
        try:
            found |= {plain_path(patch.path) for patch in parse_patch(effect.content)}
        except PatchError:
            return frozenset()
    return frozenset(found)


def may_be_one(one: str, other: str) -> bool:
    """Return whether two paths may lead to one file: equal ones, one with `..`, or an absolute one (`/` or `~`) and a relative
    one that is its end."""
    if one == other or ".." in one.split("/") or ".." in other.split("/"):
        return True
    if one[:1] == other[:1] == "/" or not (_elsewhere(one) or _elsewhere(other)):
        return False
    if _elsewhere(one) and _elsewhere(other):
        return one.rpartition("/")[2] == other.rpartition("/")[2]
    rooted, relative = (one, other) if _elsewhere(one) else (other, one)
    return rooted.endswith("/" + relative)


def _elsewhere(path: str) -> bool:
    """Return whether a path does not say where below the root it is."""
    return path[:1] in ("/", "~") or ".." in path.split("/")


def edited(calls: Sequence[Call], files: Files, *, complete: bool = False) -> dict[str, str | None]:
    """Return the files that the calls change, as they are afterwards.

    Raises:
        NoEditError: one of them does not apply.
        UnknownFileError: whether it does is not known.
    """
    changed: dict[str, str | None] = {}

    def text_of(path: str) -> str | None:
        if path in changed:
            return changed[path]
        if path not in files and (not complete or _elsewhere(path)):
            raise UnknownFileError(path)
        return files.get(path)

    for call in calls:
        effect = classify_call(call.name, call.arguments)
        if effect.kind is EffectKind.PATCH:
            changed |= _apply_patch(effect.content, text_of)
            continue
        path = path_of(call.arguments)
        if effect.kind is EffectKind.WRITE:
            if "command" in call.arguments and text_of(path) is not None:
                raise NoEditError(path)  # an editor's `create` refuses to replace a file
            changed[path] = effect.content
        else:
            text = text_of(path)
            if text is None:
                raise NoEditError(path)
            changed[path] = apply_edit(effect, text)
    return changed


def apply_edit(effect: ToolEffect, text: str) -> str:
    """Return the text of a file after an EDIT. Raises NoEditError."""
    if effect.insert_after is not None:
        line, inserted = effect.insert_after
        lines = text.split("\n")
        if not 0 <= line <= len(lines):
            raise NoEditError(effect.path)
        return "\n".join([*lines[:line], *inserted.split("\n"), *lines[line:]])
    for part in effect.replacements:
        count = text.count(part.old) if part.old else 0
        if count == 0 or (count > 1 and not part.everywhere):
            raise NoEditError(effect.path)
        text = text.replace(part.old, part.new)
    return text


def _apply_patch(text: str, text_of: Callable[[str], str | None]) -> dict[str, str | None]:
    """Return the files a patch changes, each of which it names once."""
    made: dict[str, str | None] = {}
    try:
        for patch in parse_patch(text):
            path = plain_path(patch.path)
            before = text_of(path)
            if (before is None) != (patch.action == "add"):
                raise NoEditError(path)
            if patch.action == "update":
                made[path] = patched(patch, before or "")
            else:
                made[path] = added_text(patch) if patch.action == "add" else None
    except PatchError as error:
        raise NoEditError(str(error)) from error
    return made


def same_text(path: str, one: str | None, other: str | None) -> bool:
    """Return whether two contents of a file are certainly the same: for Python by syntax tree and the comments that tools read,
    else by text."""
    return _compare_texts(path, one, other) is SameAction.SAME


def _compare_texts(path: str, one: str | None, other: str | None) -> SameAction:
    if one == other:
        return SameAction.SAME
    if one is None or other is None:
        return SameAction.DIFF
    if path.endswith((".py", ".pyi")):
        left, right = _tree(one), _tree(other)
        if left is not None or right is not None:
            if left != right:
                return SameAction.DIFF
            return SameAction.SAME if _obeyed(one) == _obeyed(other) else SameAction.UNDECIDED
    return SameAction.UNDECIDED if one.rstrip() == other.rstrip() else SameAction.DIFF


def _obeyed(source: str) -> list[tuple[str, ...]]:
    """Return the comments that tools may read: each with its line, the code line after one that stands alone, and whether it is
    on the first or second line, where Python reads the encoding."""
    if "#" not in source:
        return []
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return [(source,)]
    found: list[tuple[str, ...]] = []
    lines = source.splitlines()
    for token in tokens:
        number = token.start[0]
        if token.type != tokenize.COMMENT or not _READ_BY_TOOLS.match(token.string):
            continue
        line = " ".join(token.line.split())
        after = next((" ".join(text.split()) for text in lines[number:] if text.strip()), "") if line[:1] == "#" else ""
        early = str(min(number, 3)) if token.string.startswith("#!") or "coding" in token.string else ""
        found.append((line, after, early))
    return found


def _tree(source: str) -> str | None:
    """Return the syntax tree without positions and comments, or None when the source does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.dump(parse_module(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
