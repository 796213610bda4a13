"""The pairs of `loss.replay.pairs`: other agents' states and actions in the policy's own chat template, as token ids."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.actions.calls import action_message
from composer_replication.config import RunConfig
from composer_replication.replaysim.pairs_file import read_pairs
from composer_replication.tokens import ChatRenderer
from composer_replication.traces.recorder import native_call, wire_call
from composer_replication.types import Message, Pair
from composer_replication.types.errors import ConfigError, ModelError

_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class FilePairs:
    """The pairs that a file gives a policy."""

    path: Path
    pairs: tuple[Pair, ...]
    """In the order of the file."""
    dropped: Mapping[str, int]
    """Number of pairs left out, by reason."""

    def __str__(self) -> str:
        left_out = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
        return f"{len(self.pairs)} pairs of {self.path.name}" + (f" (left out: {left_out})" if left_out else "")


def read_file(path: Path) -> list[dict[str, Any]]:
    """Return the pairs of a file. Raises ConfigError when it has none, or a line is not a pair."""
    pairs, bad = read_pairs(path)
    problem = f"{bad[0]}" + (f" (and {len(bad) - 1} more lines)" if len(bad) > 1 else "") if bad else ""
    if not problem and not pairs:
        problem = f"{path} has no pairs"
    if not problem:
        problem = next((f"{path}, pair {i}: {p}" for i, p in enumerate(map(_problem_of, pairs), start=1) if p), "")
    if problem:
        raise ConfigError(f"loss.replay.pairs: {problem}", fix="name a file that `composer pairs` wrote, or correct it")
    return pairs


def file_digest(path: Path) -> str:
    """Return the SHA-256 of the file, as 64 hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fits(pair: Pair, tokens: int) -> bool:
    """Return whether both sides, the prompt before them, have at most so many tokens."""
    return len(pair.prompt_ids) + max(len(pair.chosen_ids), len(pair.rejected_ids)) <= tokens


def shuffled(pairs: Sequence[Pair], seed: int) -> list[Pair]:
    """Return the pairs in an order that follows from the seed, so that early steps see pairs of every source."""
    return random.Random(f"{seed}/pairs").sample(pairs, len(pairs))


def file_pairs(config: RunConfig, renderer: ChatRenderer, context_window: int) -> FilePairs | None:
    """Return the pairs of a run's file in the policy's tokens; None when the run names no file or the channel's weight is 0.

    A pair is as long as a trajectory may be: `rollout.context_tokens`, or `context_window` if that is less.

    Raises:
        ConfigError: see `read_file`; or no pair is left.
    """
    path = config.loss.replay.pairs
    if path is None or config.loss.replay.weight == 0:
        return None
    most = min(context_window, config.rollout.context_tokens)
    kept: list[Pair] = []
    dropped: Counter[str] = Counter()
    for line in read_file(path):
        try:
            pair = _rendered(line, renderer)
        except ModelError:
            dropped["refused by the chat template"] += 1
            continue
        if pair.chosen_ids == pair.rejected_ids:
            dropped["with two equal sides"] += 1
        elif fits(pair, most):
            kept.append(pair)
        else:
            dropped[f"longer than {most} tokens"] += 1
    found = FilePairs(path, tuple(kept), dict(dropped))
    if not kept:
        raise ConfigError(
            f"loss.replay.pairs: {found}", fix="raise rollout.context_tokens, or give pairs that this model can read"
        )
    return found


def _rendered(line: Mapping[str, Any], renderer: ChatRenderer) -> Pair:
    messages = [_message(message, place) for place, message in enumerate(line["state_messages"])]
    turn = sum(message["role"] == "assistant" for message in messages)
    chosen, rejected = (renderer.assistant_ids(action_message(line[side], turn=turn)) for side in ("chosen", "rejected"))
    return Pair(
        pair_id=line["state_id"],
        prompt_ids=renderer.prompt_ids(messages, list(_extra(line, "tools", None) or ())),
        chosen_ids=chosen,
        rejected_ids=rejected,
        confidence=_extra(line, "confidence", 1.0),
    )


def _extra(line: Mapping[str, Any], key: str, default: Any) -> Any:
    """Return an additional field of a pair, which `composer pairs normalize` moves into `metadata`."""
    return line.get(key, line.get("metadata", {}).get(key, default))


def _problem_of(line: Mapping[str, Any]) -> str | None:
    """Return what keeps a `DPOPair` from being rendered; None when nothing does."""
    confidence, tools = _extra(line, "confidence", 1.0), _extra(line, "tools", None) or ()
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 < confidence <= 1:
        return f"confidence is {confidence!r}, not above 0 and at most 1"
    if not isinstance(tools, list | tuple) or not all(isinstance(t, dict) and isinstance(t.get("function"), dict) for t in tools):
        return "tools are no list of tool schemas in the OpenAI form"
    if not line["state_messages"]:
        return "state_messages is empty"
    for place, message in enumerate(line["state_messages"]):
        if message.get("role") not in _ROLES:
            return f"state_messages.{place}.role is {message.get('role')!r}, none of {', '.join(_ROLES)}"
        if not isinstance(message.get("content"), str | None):
            return f"state_messages.{place}.content is no text"
        calls = message.get("tool_calls") or ()
        functions = (
            [call.get("function") if isinstance(call, dict) else None for call in calls]
            if isinstance(calls, list | tuple)
            else [None]
        )
        if not all(isinstance(function, dict) and isinstance(function.get("name"), str) for function in functions):
            return f"state_messages.{place}.tool_calls has a call without its function"
    return None


def _message(raw: Mapping[str, Any], place: int) -> Message:
    """Return a message in the form that templates read: an empty text for an API's null, arguments as an object."""
    message = Message(role=raw["role"], content=raw.get("content") or "")
    wire = []
    for number, call in enumerate(raw.get("tool_calls") or ()):
        function = call["function"]
        wire.append(
            wire_call(*native_call(call.get("id") or f"call_{place}_{number}", function["name"], function.get("arguments")))
        )
    if wire:
        message["tool_calls"] = wire
    if isinstance(raw.get("tool_call_id"), str):
        message["tool_call_id"] = raw["tool_call_id"]
    if isinstance(raw.get("name"), str):
        message["name"] = raw["name"]
    return message
