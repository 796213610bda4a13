"""The proof that a conversation can be extended token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from composer_replication.tokens.template import ChatTemplate
from composer_replication.types import Message, ToolSchema


class _Renderer(Protocol):
    """The part of `ChatRenderer` that the proof uses."""

    @property
    def template(self) -> ChatTemplate: ...

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]: ...

    def assistant_ids(self, message: Message) -> tuple[int, ...]: ...

    def delta_ids(self, replies: Sequence[Message], *, ended: bool) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class PrefixCase:
    """One conversation, written by the template in one go and by the renderer in pieces."""

    name: str
    whole: str
    """The template's text of the whole conversation."""
    pieces: str
    """The text of prompt, turns and deltas put together."""
    same_ids: bool


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """Result of `check_prefix_preservation`."""

    cases: tuple[PrefixCase, ...]

    @property
    def preserved(self) -> bool:
        """True when every conversation came out the same, token for token."""
        return all(case.same_ids for case in self.cases)

    def difference(self) -> str:
        """Quote both sides where the first failing case diverges; empty when all cases pass."""
        for case in self.cases:
            if not case.same_ids:
                at = _first_difference(case.whole, case.pieces)
                start = max(0, at - 30)
                return (
                    f"{case.name}: the template writes {case.whole[start : at + 60]!r} where its earlier text, continued, "
                    f"reads {case.pieces[start : at + 60]!r}"
                )
        return ""


def _first_difference(left: str, right: str) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def prove_prefix_preservation(renderer: _Renderer) -> PrefixReport:
    """Compare whole renderings with incremental ones over the shapes a rollout meets: tool calls with and without text, one and
    several results, a second round, with and without a system message and tools."""
    return PrefixReport(tuple(_case(renderer, *shape) for shape in _shapes()))


def _case(
    renderer: _Renderer,
    name: str,
    opening: Sequence[Message],
    rounds: Sequence[Sequence[Message]],
    tools: Sequence[ToolSchema],
) -> PrefixCase:
    pieces = list(renderer.prompt_ids(opening, tools))
    for turn, *replies in rounds:
        pieces += renderer.assistant_ids(turn)
        pieces += renderer.delta_ids(replies, ended=True)
    conversation = [*opening, *(m for exchange in rounds for m in exchange)]
    whole = renderer.template.ids(conversation, tools=tools, generation_prompt=True)
    return PrefixCase(name, renderer.template.decode(whole), renderer.template.decode(pieces), tuple(pieces) == whole)


def _shapes() -> list[tuple[str, Sequence[Message], Sequence[Sequence[Message]], Sequence[ToolSchema]]]:
    system, user = Message(role="system", content="Be brief."), Message(role="user", content="Fix  it.\n")
    parameters = {"type": "object", "properties": {"path": {"type": "string", "description": "A path."}}, "required": ["path"]}
    tool: ToolSchema = {"type": "function", "function": {"name": "read", "description": "Read a file.", "parameters": parameters}}

    def call(content: str, i: int) -> Message:
        function = {"name": "read", "arguments": {"path": f"a{i}.py"}}
        return Message(
            role="assistant", content=content, tool_calls=[{"id": f"call_{i}_0", "type": "function", "function": function}]
        )

    def result(i: int, content: str = "def f():\n    return 1\n") -> Message:
        return Message(role="tool", content=content, tool_call_id=f"call_{i}_0", name="read")

    one, two = [call("", 0), result(0)], [call("I look.", 1), result(1, "x"), result(1, "y")]
    three = [call("", 2), result(2, "")]
    return [
        ("one tool call", [user], [one], ()),
        ("one tool call, tools listed", [system, user], [one], [tool]),
        ("text beside a call, two results", [system, user], [two], [tool]),
        ("three rounds", [system, user], [one, two, three], [tool]),
    ]
