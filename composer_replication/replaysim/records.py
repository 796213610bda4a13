"""Preference pairs in the two shapes that data tools want side by side: flat strings and chat messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, cast

from composer_replication.actions.calls import action_message
from composer_replication.replaysim.recipe import FIELDS
from composer_replication.teacher_replay import DPOPair


class NormalizedDPOPair(TypedDict):
    """A `DPOPair` that passed normalisation, with both actions as messages too."""

    state_id: str
    state_messages: list[dict[str, Any]]
    chosen: str
    rejected: str
    n_teachers_agreeing: int
    chosen_messages: list[dict[str, Any]]
    """The action as one assistant message in the OpenAI form."""
    rejected_messages: list[dict[str, Any]]
    metadata: dict[str, Any]
    """Whatever else the pair carried."""


_KEYS = frozenset(NormalizedDPOPair.__annotations__)
_TYPES: Mapping[str, tuple[type, str]] = {
    "state_id": (str, "a string"),
    "state_messages": (list, "a list of messages"),
    "chosen": (str, "a string"),
    "rejected": (str, "a string"),
    "n_teachers_agreeing": (int, "a whole number"),
}


def problem_of(pair: Any) -> str | None:
    """Return what keeps a value from being a `DPOPair`, in a sentence; None when nothing does."""
    if not isinstance(pair, Mapping):
        return "no object"
    for key, (wanted, called) in _TYPES.items():
        if key not in pair:
            return f"no {key}"
        if not isinstance(pair[key], wanted) or isinstance(pair[key], bool):
            return f"{key} is not {called}"
    if not all(isinstance(message, Mapping) for message in pair["state_messages"]):
        return "state_messages is not a list of messages"
    if not isinstance(pair.get("metadata", {}), Mapping):
        return "metadata is no object"
    for field in FIELDS:
        try:
            pair[field].encode()
        except UnicodeEncodeError:
            return f"{field} has half a surrogate pair, which is no character"
    return None


def dpo_pair_to_dj_record(pair: DPOPair | Mapping[str, Any]) -> dict[str, Any]:
    """Convert the pair to one data-juicer record; keys a `DPOPair` does not have go to `metadata`.

    Raises:
        KeyError: the pair lacks a key of `DPOPair`.
    """
    data: Mapping[str, Any] = pair
    return {
        **{key: data[key] for key in DPOPair.__annotations__},
        "chosen_messages": [dict(action_message(data["chosen"]))],
        "rejected_messages": [dict(action_message(data["rejected"]))],
        "metadata": {**data.get("metadata", {}), **{k: v for k, v in data.items() if k not in _KEYS}},
    }


def dj_record_to_normalized(record: Mapping[str, Any]) -> NormalizedDPOPair:
    """Invert `dpo_pair_to_dj_record`; keys that data-juicer added (`__dj__...`) are left out.

    Raises:
        KeyError: the record lacks a key of `NormalizedDPOPair`.
    """
    return cast(NormalizedDPOPair, {key: record[key] for key in NormalizedDPOPair.__annotations__})
