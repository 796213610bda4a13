"""Policies without a model, speaking through a tokenizer: a script, and noise."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from composer_replication.rollouts.protocol import Sample, SampleRequest
from composer_replication.tokens import ChatRenderer
from composer_replication.types import Message, ToolSchema


class ScriptedEngine:
    """An `Engine` that says what a script says, turn by turn; log-probs are 0. After the script's end it says nothing.

    Args:
        script_for: the assistant messages of a session, by its name (`step/task/sibling`).
    """

    context_window = 1 << 30

    def __init__(self, renderer: ChatRenderer, script_for: Callable[[str], Sequence[Message]]) -> None:
        self._renderer = renderer
        self._script_for = script_for
        self._left: dict[str, list[Message]] = {}

    def sample(self, requests: Sequence[SampleRequest], *, temperature: float) -> list[Sample]:  # noqa: ARG002 (the protocol's)
        return [self._turn(request) for request in requests]

    def close(self, sessions: Sequence[str]) -> None:
        for name in sessions:
            self._left.pop(name, None)

    def _turn(self, request: SampleRequest) -> Sample:
        left = self._left.setdefault(request.session, list(self._script_for(request.session)))
        message = left.pop(0) if left else Message(role="assistant", content="")
        return _cut(self._renderer.assistant_ids(message), request.max_new_tokens)


class RandomEngine:
    """An `Engine` of noise: uniformly random ids, calls with random names and arguments, almost valid markup.

    It is what the loop and the env must survive. The same request gives the same turn.

    Args:
        tools: the tools whose names and argument names are used most of the time.
        words: strings used as arguments in addition to its own awkward ones, e.g. the paths of a task.
    """

    context_window = 1 << 30

    def __init__(self, renderer: ChatRenderer, *, tools: Sequence[ToolSchema], words: Sequence[str] = ()) -> None:
        self._renderer = renderer
        self._vocabulary = len(renderer.tokenizer)
        self._tools = tools
        self._words = (*words, *_AWKWARD)

    def sample(self, requests: Sequence[SampleRequest], *, temperature: float) -> list[Sample]:  # noqa: ARG002 (the protocol's)
        return [self._turn(request) for request in requests]

    def close(self, sessions: Sequence[str]) -> None:
        """Do nothing: nothing is remembered."""

    def _turn(self, request: SampleRequest) -> Sample:
        rng = random.Random(request.seed)
        kind = rng.random()
        if kind < 0.2:
            count = min(rng.randint(1, 64), request.max_new_tokens)
            ids = [rng.randrange(self._vocabulary) for _ in range(count)]
            stops = [i for i, token in enumerate(ids) if token in self._renderer.stop_ids]
            ids = ids[: stops[0] + 1] if stops else [*ids[:-1], self._renderer.end_of_turn_id]
            return Sample(ids=tuple(ids), logprobs=(0.0,) * len(ids), finished=True)
        if kind < 0.4:
            text = "".join(rng.choice(_FRAGMENTS) for _ in range(rng.randint(1, 8)))
            return self._say(Message(role="assistant", content=text), request)
        calls = [self._call(rng) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
        return self._say(Message(role="assistant", content=rng.choice(("", "ok")), tool_calls=calls), request)

    def _call(self, rng: random.Random) -> dict[str, Any]:
        function = rng.choice(self._tools)["function"]
        names = [*function["parameters"].get("properties", {}), "extra"]
        chosen = {n: self._value(rng) for n in names if rng.random() < 0.8 and (n != "extra" or rng.random() < 0.1)}
        name = function["name"] if rng.random() < 0.9 else rng.choice(self._words) or "?"
        return {"id": "call", "type": "function", "function": {"name": name, "arguments": chosen}}

    def _value(self, rng: random.Random) -> Any:
        return rng.choice(self._words) if rng.random() < 0.8 else rng.choice(_VALUES)

    def _say(self, message: Message, request: SampleRequest) -> Sample:
        return _cut(self._renderer.assistant_ids(message), request.max_new_tokens)


_AWKWARD = (
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "~",
    "a\x00b",
    "a\nb",
    "*",
    "(",
    "\\",
    "é" * 300,
    "x" * 5000,
    ".git/config",
    "-rf",
)
_VALUES: tuple[Any, ...] = (0, -1, 10**30, 1e308, True, None, [], ["."], {}, {"path": "."})
_FRAGMENTS = (
    *("<tool_call>", "</tool_call>", '{"name": ', '"submit"', ', "arguments": {', "}}", "\ufffd", "\x00", "submit", "\n"),
    json.dumps({"name": "submit", "arguments": []}),
    json.dumps({"name": 1}),
)


def _cut(ids: tuple[int, ...], limit: int) -> Sample:
    kept = ids[:limit]
    return Sample(ids=kept, logprobs=(0.0,) * len(kept), finished=len(ids) <= limit)
