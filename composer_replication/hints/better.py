"""Better actions at an error turn: a successful sibling's action in the same place, or the teachers' choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from composer_replication.actions.calls import Call, canonical_action, parse_action, render_action, too_deep
from composer_replication.hints.context import HintContext
from composer_replication.types.transcript import Transcript, TranscriptTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class Better:
    """An action that is known to be better than the one that was taken."""

    source: str
    """`sibling` or `consensus`."""
    text: str
    """The action as `actions.render_action` writes it."""
    calls: tuple[Call, ...]
    turn: TranscriptTurn | None = None
    """The sibling's."""


def better_actions(transcript: Transcript, turn: int, context: HintContext) -> Iterator[Better]:
    """Yield the actions known to be better at turn `turn`, siblings first; only those that differ from the action taken.

    A sibling's turn stands in the same place when the same actions, in canonical form, come before it.
    """
    taken = _canonical(transcript.turns[turn])
    prefix = [_canonical(earlier) for earlier in transcript.turns[:turn]]
    for sibling in context.siblings:
        if sibling.trajectory_id == transcript.trajectory_id or len(sibling.turns) <= turn or None in prefix:
            continue
        there = sibling.turns[turn]
        if [_canonical(earlier) for earlier in sibling.turns[:turn]] == prefix and _canonical(there) not in (taken, None):
            calls = _calls(there)
            yield Better(source="sibling", text=render_action(there.text, calls), calls=calls, turn=there)
    chosen = context.consensus.get(f"{transcript.trajectory_id}#{turn}")
    if chosen is not None:
        content, calls = parse_action(chosen)
        if canonical_action(content, calls) != taken:
            yield Better(source="consensus", text=chosen, calls=calls)


def _calls(turn: TranscriptTurn) -> tuple[Call, ...]:
    return tuple(Call(call.name, call.arguments) for call in turn.tool_calls if call.error is None)


def _canonical(turn: TranscriptTurn) -> str | None:
    """Return the canonical form; None for a turn that cannot be compared: a call in it could not be read."""
    calls = _calls(turn)
    if len(calls) != len(turn.tool_calls) or any(too_deep(dict(call.arguments)) for call in calls):
        return None
    return canonical_action(turn.text, calls)
