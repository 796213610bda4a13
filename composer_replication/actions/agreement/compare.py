"""Decide whether two actions at one state are the same, from cheap and certain methods to expensive ones.

    identical   the same text
    validity    one can be carried out, the other cannot
    canonical   tool names, arguments, paths and shell words written in another way (`calls.py`, `shell.py`)
    edits       both change files: which files are there afterwards (`edits.py`)
    state       both are carried out where the student stood: files, then tests (`Scene.run_both`, a sandbox)
    intent      a read is not an edit, and reading one file is not reading another (`intent.py`); nor is removing files
                restoring them (`purposes.py`)
    judge       a teacher says so whichever action it is shown first (`Scene.judge`)

What none of them decides stays undecided: it is neither a vote nor a pair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from composer_replication.actions.agreement.calls import call_form, same_json
from composer_replication.actions.agreement.edits import DOES_NOT_APPLY, Files, compare_edits
from composer_replication.actions.agreement.intent import Aim, intent_of, look_alike, surely_differ
from composer_replication.actions.agreement.purposes import purposes_differ
from composer_replication.actions.agreement.validity import problem_of
from composer_replication.actions.agreement.verdict import ActionComparison, SameAction
from composer_replication.actions.calls import Call, canonical_text, command_in, parse_action
from composer_replication.actions.tool_effects import classify_call
from composer_replication.types import ToolSchema

_CHOICE = re.compile(r"\(([a-z0-9])\)\s")
"""A text that begins with one of several options, `(b) Delete the test`."""

Calls = Sequence[Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The known facts about the state at which two actions are compared."""

    files: Files = field(default_factory=dict)
    complete: bool = False
    """`files` are all there are."""
    tools: Sequence[ToolSchema] = ()
    text_actions: bool = False
    """The agent calls no tools: it writes a shell command in its text, as its only fenced block."""
    run_both: Callable[[Calls, Calls], ActionComparison] | None = None
    """Executes both actions in the sandbox; called only for actions that change files."""
    judge: Callable[[str, str], ActionComparison | None] | None = None
    """A teacher's verdict on two actions; None for none."""


def compare(one: str, other: str, scene: Scene | None = None) -> ActionComparison:
    """Decide whether two actions, given as text (`actions.render_action`), are the same. Symmetric in the two.

    Raises:
        SandboxError: `scene.run_both` raised it.
    """
    one, other = sorted((one, other))
    scene = scene or Scene()
    if one == other:
        return ActionComparison(SameAction.SAME, "identical", "the same text")
    if scene.text_actions:
        return _compare_commands(one, other, scene)
    (left_text, left), (right_text, right) = parse_action(one), parse_action(other)
    if not left and not right:
        if canonical_text(left_text) == canonical_text(right_text):
            return ActionComparison(SameAction.SAME, "canonical", "the same words")
        choices = [_CHOICE.match(canonical_text(text)) for text in (left_text, right_text)]
        if all(choices) and len({choice[1] for choice in choices if choice}) > 1:
            return ActionComparison(SameAction.DIFF, "intent", "they choose another option")
        return _judged(one, other, scene, "two texts in other words")
    if not left or not right:
        if command_in(left_text if right else right_text) is not None:
            return _judged(one, other, scene, "one calls a tool, the other writes a command")
        return ActionComparison(SameAction.DIFF, "intent", "one calls a tool, the other does not")
    return _compare_calls(left, right, scene) or _judged(one, other, scene, "nothing tells them apart or makes them one")


def _compare_commands(one: str, other: str, scene: Scene) -> ActionComparison:
    """Compare the commands in two texts; surrounding prose does not count."""
    left, right = command_in(one), command_in(other)
    if left is None or right is None or left[0] != right[0]:
        return _judged(one, other, scene, "which command a text stands for cannot be told")
    one_call, other_call = (Call("bash", {"command": command}) for _, command in (left, right))
    verdict = _compare_calls([one_call], [other_call], replace(scene, tools=()))
    return verdict or _judged(one, other, scene, "nothing tells them apart or makes them one")


def _compare_calls(left: Calls, right: Calls, scene: Scene) -> ActionComparison | None:
    together = list(zip(left, right, strict=False)) if len(left) == len(right) else []
    if together and all(same_json([a.name, a.arguments], [b.name, b.arguments]) for a, b in together):
        return ActionComparison(SameAction.SAME, "canonical", "the same calls")
    problems = [[problem_of(call, scene.tools) for call in calls] for calls in (left, right)]
    if any(problems[0]) != any(problems[1]):
        return ActionComparison(SameAction.DIFF, "validity", "one of them cannot be carried out")
    if any(problems[0]):
        return ActionComparison(SameAction.UNDECIDED, "validity", "neither can be carried out")
    if together and all(_same_form(a, b, scene) for a, b in together):
        return ActionComparison(SameAction.SAME, "canonical", "the same calls")
    changed = _compare_changes(left, right, scene)
    if changed is not None:
        return changed
    intents = [[intent_of(call) for call in calls] for calls in (left, right)]
    if all(surely_differ(a, b) for a in intents[0] for b in intents[1]):
        return ActionComparison(SameAction.DIFF, "intent", "they are for different things")
    if len(left) == len(right) and all(look_alike(a, b) for a, b in zip(*intents, strict=True)):
        return ActionComparison(SameAction.UNDECIDED, "intent", "both look at the same thing")
    if purposes_differ(left, right):
        return ActionComparison(SameAction.DIFF, "intent", "they are for different things")
    return None


def _same_form(one: Call, other: Call, scene: Scene) -> bool:
    if same_json([one.name, one.arguments], [other.name, other.arguments]):
        return True  # also where no form is known
    folders = _Folders(scene.files)
    left, right = (call_form(call, scene.tools, folders) for call in (one, other))
    return left is not None and left == right


@dataclass(frozen=True, slots=True)
class _Folders:
    """The parent folders of known files. Queried only for paths that end with a slash."""

    files: Files

    def __contains__(self, folder: object) -> bool:
        return any(path.startswith(f"{folder}/") for path in self.files if self.files[path] is not None)


def _compare_changes(left: Calls, right: Calls, scene: Scene) -> ActionComparison | None:
    """Compare two actions that change files; None when they may do something else, or it cannot be decided."""
    verdict = None
    if all(classify_call(c.name, c.arguments).changes for c in (*left, *right)):
        verdict = compare_edits(left, right, scene.files, complete=scene.complete)
        if verdict.same or verdict.why == DOES_NOT_APPLY:
            return verdict
    if scene.run_both is not None and all(_may_change(c) for c in (*left, *right)):
        verdict = scene.run_both(left, right)
    return verdict if verdict is not None and (verdict.diff or verdict.same or verdict.method == "state") else None


def _may_change(call: Call) -> bool:
    """Return whether the call changes files, or is a command with unknown effect."""
    intent = intent_of(call)
    return intent.aim is Aim.CHANGE if intent is not None else bool(classify_call(call.name, call.arguments).command)


def _judged(one: str, other: str, scene: Scene, why: str) -> ActionComparison:
    said = None if scene.judge is None else scene.judge(one, other)
    return said or ActionComparison(SameAction.UNDECIDED, "none", why)
