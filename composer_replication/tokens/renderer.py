"""Chat messages to token ids through any tokenizer's own chat template, one turn at a time.

A rollout never renders a conversation twice. It renders the opening once (`prompt_ids`), and after each sampled turn only what is
new (`delta_ids`); the sampled ids in between stay what they are. That is sound when the template, given a longer conversation,
would have written the same tokens before the new ones. `ChatRenderer` proves this for its template when it is made, and refuses
a template for which it does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from composer_replication.tokens.template import ChatTemplate
from composer_replication.types import Message, ToolSchema
from composer_replication.types.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ASK, _ANSWER = Message(role="user", content="alpha"), Message(role="assistant", content="beta")


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
    """Result of `ChatRenderer.check_prefix_preservation`."""

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


class ChatRenderer:
    """Renders prompts, replies and hints as token ids for one tokenizer.

    Raises:
        ModelError: the tokenizer has no chat template or no end-of-turn token, or its template rewrites earlier messages when
            later ones are added; the message shows the text that differs.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer)
        report = self.check_prefix_preservation()
        if not report.preserved:
            raise ModelError(
                f"the chat template cannot be extended turn by turn: {report.difference()}",
                fix="give the tokenizer a chat template that leaves earlier messages as they are when new ones follow",
            )

    # --- tokens with a role ---------------------------------------------------------------------------------------------

    @cached_property
    def end_of_turn_id(self) -> int:
        """The token that ends an assistant turn, e.g. `<|im_end|>`."""
        return self.template.end_of_turn_id

    @cached_property
    def end_of_thinking(self) -> int | None:
        """The token that ends a turn's thinking, where the vocabulary has `</think>`; else None."""
        return self.tokenizer.get_vocab().get("</think>")

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a turn when sampled: the template's and the tokenizer's own EOS."""
        return tuple(sorted({self.end_of_turn_id, self.template.eos_id}))

    @cached_property
    def generation_prompt_ids(self) -> tuple[int, ...]:
        """Ids between the last message and the assistant's first sampled token, e.g. `<|im_start|>assistant\\n`."""
        closed, opened = self.template.ids([_ASK]), self.template.ids([_ASK], generation_prompt=True)
        if opened[: len(closed)] != closed:
            raise ModelError("the chat template's generation prompt changes the message before it")
        return opened[len(closed) :]

    # --- messages to ids ------------------------------------------------------------------------------------------------

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> tuple[int, ...]:
        """Render the opening of a conversation, generation prompt included."""
        return self.template.ids(messages, tools=tools, generation_prompt=True)

    def delta_ids(self, messages: Sequence[Message], *, ended: bool) -> tuple[int, ...]:
        """Render what to append after a sampled assistant turn: `messages` (tool or user) and the next generation prompt.

        Args:
            ended: whether the turn's last sampled id was `end_of_turn_id`; if not, the returned ids begin by closing the turn.
        """
        delta = self._after_turn([*messages], generation_prompt=True)
        return delta if ended else (self.end_of_turn_id, *delta)

    def assistant_ids(self, message: Message) -> tuple[int, ...]:
        """Render one assistant message as the template writes it after the generation prompt, up to and including the end of the
        turn.

        It is rendered as a turn that another message follows, which is how the policy's own turns are read later.
        """
        follow_up = Message(role="tool", content="gamma") if message.get("tool_calls") else Message(role="user", content="gamma")
        conversation = [_ASK, message, follow_up]
        prompt, ids = self.template.ids([_ASK], generation_prompt=True), self.template.ids(conversation)
        if ids[: len(prompt)] == prompt:
            turn = ids[len(prompt) :]
        else:  # the answer's first characters merged with the prompt's last token: encode it alone, as the policy would sample it
            opening = self.template.text([_ASK], generation_prompt=True)
            turn = self.template.encode(self.template.text(conversation).removeprefix(opening))
        return turn[: self._turn_end(turn, 0) + 1]

    def hint_ids(self, text: str) -> tuple[int, ...]:
        """Render one more user message, to be inserted before a generation prompt (see `strip_generation_prompt`)."""
        separator, after_turn = self._after_turn([]), self._after_turn([Message(role="user", content=text)])
        if after_turn[: len(separator)] != separator:
            raise ModelError("the chat template joins a user message to the turn before it, so a hint cannot be inserted")
        return after_turn[len(separator) :]

    def strip_generation_prompt(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return `ids` without the generation prompt at their end. Raises ValueError when they do not end with it."""
        prompt = self.generation_prompt_ids
        kept = len(ids) - len(prompt)
        if kept < 0 or tuple(ids[kept:]) != prompt:
            raise ValueError("the ids do not end with the chat template's generation prompt")
        return tuple(ids[:kept])

    def _after_turn(self, messages: list[Message], *, generation_prompt: bool = False) -> tuple[int, ...]:
        """Return ids that follow the end-of-turn token of an assistant turn answered by `messages`."""
        ids = self.template.ids([_ASK, _ANSWER, *messages], generation_prompt=generation_prompt)
        position = -1
        for _ in range(self._turns_ended):
            position = self._turn_end(ids, position + 1)
        return ids[position + 1 :]

    @cached_property
    def _turns_ended(self) -> int:
        """End-of-turn tokens in the shortest exchange, a default system message's included."""
        return self.template.ids([_ASK, _ANSWER]).count(self.end_of_turn_id)

    def _turn_end(self, ids: tuple[int, ...], start: int) -> int:
        """Return the position of the first end-of-turn token from `start` on."""
        if self.end_of_turn_id not in ids[start:]:
            raise ModelError(
                f"the chat template does not end every assistant turn with {self.template.decode([self.end_of_turn_id])!r}",
                fix="use a model whose template ends all turns, with and without tool calls, with one token",
            )
        return ids.index(self.end_of_turn_id, start)

    # --- ids to text ----------------------------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int]) -> str:
        """Decode a turn's text without its end-of-turn token, for reading only; invalid UTF-8 becomes U+FFFD."""
        body = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return self.template.decode(body)

    def visible_text(self, ids: Sequence[int]) -> str:
        """Return what a turn says to its reader: without special tokens and without the thinking before the answer."""
        ids = list(ids)
        if self.end_of_thinking is not None and self.end_of_thinking in ids:
            ids = ids[len(ids) - ids[::-1].index(self.end_of_thinking) :]
        return str(self.tokenizer.decode(ids, skip_special_tokens=True)).strip()

    def check_prefix_preservation(self) -> PrefixReport:
        """Render conversations of growing length and compare each with what this class puts together from pieces.

        They have the shapes a rollout meets: tool calls with and without text, one and several results, a second round, with and
        without a system message and tools.
        """
        return PrefixReport(tuple(_case(self, *shape) for shape in _shapes()))


def _case(
    renderer: ChatRenderer,
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
