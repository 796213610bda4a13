"""Traces of every shape for hypothesis, and small helpers."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import strategies as st

from composer_replication.traces.recorder import assistant
from composer_replication.types import Message, ToolCall, ToolResult, Unscored
from composer_replication.types.transcript import Trace, TraceTurn

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
CALLS = st.builds(ToolCall, call_id=TEXT, name=TEXT, arguments=OBJECT, error=st.none() | TEXT)
RESULTS = st.builds(ToolResult, call_id=TEXT, name=TEXT, content=TEXT, status=st.sampled_from(["ok", "timeout"]), details=OBJECT)
PLAIN = st.builds(Message, role=st.sampled_from(["system", "user"]), content=TEXT)
SPOKEN = st.builds(lambda text, calls: assistant(text, calls, {}), TEXT, st.lists(CALLS, max_size=2))
TOLD = st.builds(Message, role=st.just("tool"), content=TEXT, tool_call_id=TEXT)
MESSAGES = PLAIN | SPOKEN | TOLD
IDS = st.fixed_dictionaries({}, optional={"token_ids": st.lists(st.integers(0, 99)), "logprobs": st.lists(st.floats(-9, 0))})


@st.composite
def traces(draw) -> Trace:
    """Contexts that go on from each other, that lose their middle, and that have nothing to do with each other."""
    context: list[Message] = draw(st.lists(MESSAGES, max_size=3))
    opening, turns = tuple(context), []
    for _ in range(draw(st.integers(0, 4))):
        match draw(st.sampled_from(["go on", "go on", "cut", "anew"])):
            case "cut" if len(context) > 1:
                place = draw(st.integers(0, len(context) - 1))
                context = [*context[:place], *draw(st.lists(MESSAGES, max_size=1)), *context[place + 1 :]]
            case "anew":
                context = draw(st.lists(MESSAGES, max_size=4))
        turn = TraceTurn(
            context=tuple(context),
            text=draw(TEXT),
            tool_calls=tuple(draw(st.lists(CALLS, max_size=2))),
            results=tuple(draw(st.lists(RESULTS, max_size=2))),
            reasoning=draw(st.none() | TEXT.filter(bool)),
            details={**draw(OBJECT), **draw(IDS)},
        )
        turns.append(turn)
        context = [*context, assistant(turn.text, turn.tool_calls, {})]
        context += [Message(role="tool", content=r.content, tool_call_id=r.call_id) for r in turn.results]
        context += draw(st.lists(MESSAGES, max_size=2))
    return Trace(
        trajectory_id=draw(TEXT.filter(bool)),
        format=draw(TEXT.filter(bool)),
        turns=tuple(turns),
        messages=draw(st.sampled_from([turns[0].context if turns else opening, opening])),
        tools=tuple(draw(st.lists(OBJECT, max_size=1))),
        task_id=draw(TEXT),
        agent=draw(TEXT),
        model=draw(TEXT),
        reward=draw(st.none() | st.floats(0, 1) | st.builds(Unscored, TEXT)),
        details=draw(OBJECT),
    )


def write_jsonl(path: Path, records) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path
