"""A tokenizer's chat template, with the differences between models' templates ironed out.

Templates disagree about the `tool` and `system` roles, about tool calls and about the form of their arguments. What a template
cannot express is detected once, by rendering probes, and expressed in a form that it supports.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

from composer_replication.types import Message, ToolSchema
from composer_replication.types.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "zqprobe"
_ASK = Message(role="user", content="alpha")
_CALL_MESSAGE = Message(
    role="assistant",
    content="",
    tool_calls=[{"id": "call_0_0", "type": "function", "function": {"name": _MARK, "arguments": {"path": "beta"}}}],
)
_TOOL: ToolSchema = {
    "type": "function",
    "function": {"name": _MARK, "description": "gamma", "parameters": {"type": "object", "properties": {}}},
}


class ChatTemplate:
    """Renders conversations in the OpenAI form with one tokenizer.

    Raises:
        ModelError: there is no chat template, or no token that ends a turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer: Any = tokenizer
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        if getattr(tokenizer, "chat_template", None) is None:
            raise ModelError(
                f"the tokenizer of {name} has no chat template, so messages cannot be turned into tokens",
                fix="use an instruction-tuned model, or set `tokenizer.chat_template` and save the tokenizer",
            )
        eos = tokenizer.eos_token_id
        if not isinstance(eos, int):
            raise ModelError(
                f"the tokenizer of {name} has no EOS token, so a turn would never end",
                fix="set `tokenizer.eos_token` and save it",
            )
        self.eos_id: int = eos
        self._name = name

    # --- rendering ------------------------------------------------------------------------------------------------------

    def ids(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), generation_prompt: bool = False
    ) -> tuple[int, ...]:
        """Render the conversation as token ids. Raises ModelError when the template refuses it."""
        return self.encode(self.text(messages, tools=tools, generation_prompt=generation_prompt))

    def text(self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), generation_prompt: bool = False) -> str:
        """Render the conversation as text. Raises ModelError when the template refuses it."""
        prepared = self._prepare(messages, tools)
        try:
            return self._render(prepared, list(tools) or None, generation_prompt)
        except (TemplateError, TypeError, KeyError) as error:
            roles = ", ".join(m["role"] for m in messages)
            raise ModelError(
                f"the chat template of {self._name} refuses the roles {roles}: {error}",
                fix="use a model with a tool-calling template",
            ) from error

    def encode(self, text: str) -> tuple[int, ...]:
        """Return token ids of rendered text; markup becomes its own tokens and nothing is added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, markup included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _render(self, messages: list[dict[str, Any]], tools: list[ToolSchema] | None, generation_prompt: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=generation_prompt)
        )

    def _prepare(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[dict[str, Any]]:
        """Return `messages` in the form this template supports."""
        spoken = [self._speak(m) for m in messages]
        if tools and not self.renders_tools:
            described = "Tools:\n" + "\n".join(json.dumps(t["function"], ensure_ascii=False) for t in tools)
            if spoken and spoken[0]["role"] == "system":
                spoken[0]["content"] += "\n" + described
            else:
                spoken.insert(0, {"role": "system", "content": described})
        if spoken and spoken[0]["role"] == "system" and not self.takes_system:
            spoken[0]["role"] = "user"
        return _merge_users(spoken) if not (self.takes_tool_role and self.takes_system) else spoken

    def _speak(self, message: Message) -> dict[str, Any]:
        spoken: dict[str, Any] = {**message, "content": self._defuse(message["content"])}
        if message["role"] == "tool" and not self.takes_tool_role:
            return {"role": "user", "content": spoken["content"]}
        calls = spoken.pop("tool_calls", None)
        if calls and not self.takes_tool_calls:
            markup = "".join(f"<tool_call>{json.dumps(c['function'], ensure_ascii=False)}</tool_call>" for c in calls)
            spoken["content"] += self._defuse(markup)
        elif calls:
            spoken["tool_calls"] = [{**c, "function": self._speak_function(c["function"])} for c in calls]
        return spoken

    def _speak_function(self, function: dict[str, Any]) -> dict[str, Any]:
        arguments = self._defuse_value(function["arguments"])
        return {**function, "arguments": arguments if self.takes_dict_arguments else json.dumps(arguments, ensure_ascii=False)}

    def _defuse(self, text: str) -> str:
        """Return `text` with a zero-width space in each control markup, which keeps it from becoming a token."""
        for markup in self._control_markup:
            text = text.replace(markup, markup[0] + "\u200b" + markup[1:])
        return text

    def _defuse_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._defuse(value)
        if isinstance(value, dict):
            return {k: self._defuse_value(v) for k, v in value.items()}
        return [self._defuse_value(v) for v in value] if isinstance(value, list) else value

    @cached_property
    def _control_markup(self) -> tuple[str, ...]:
        added = self._tokenizer.added_tokens_decoder.values()
        return tuple(sorted((t.content for t in added if t.special and len(t.content) > 1), key=len, reverse=True))

    # --- what the template knows ----------------------------------------------------------------------------------------

    @cached_property
    def takes_dict_arguments(self) -> bool:
        """True when a call's arguments are rendered from a mapping; otherwise they are rendered from their JSON text."""
        return self._renders([_ASK, _CALL_MESSAGE, _ASK], "beta") or not self._renders([_ASK, _text_call(), _ASK], "beta")

    @cached_property
    def takes_tool_calls(self) -> bool:
        """True when `tool_calls` of an assistant message are rendered; otherwise they are written out as Hermes markup."""
        call = _CALL_MESSAGE if self.takes_dict_arguments else _text_call()
        return self._renders([_ASK, call, _ASK], _MARK) or self._renders([_ASK, call, Message(role="tool", content="x")], _MARK)

    @cached_property
    def takes_tool_role(self) -> bool:
        """True when `tool` messages are rendered; otherwise they are sent as `user`."""
        call = _CALL_MESSAGE if self.takes_dict_arguments else _text_call()
        answer = Message(role="tool", content="delta", name=_MARK, tool_call_id="call_0_0")
        return self._renders([_ASK, call if self.takes_tool_calls else Message(role="assistant", content="x"), answer], "delta")

    @cached_property
    def takes_system(self) -> bool:
        """True when a `system` message is rendered; otherwise it is put at the head of the first user message."""
        return self._renders([Message(role="system", content=_MARK), _ASK], _MARK)

    @cached_property
    def renders_tools(self) -> bool:
        """True when the template shows the tools it is given; otherwise they are listed in the system message."""
        return self._renders([_ASK], _MARK, tools=[_TOOL])

    def _renders(self, messages: Sequence[Message], needle: str, *, tools: list[ToolSchema] | None = None) -> bool:
        try:
            return needle in self._render([dict(m) for m in messages], tools, False)
        except (TemplateError, TypeError, KeyError):
            return False

    @cached_property
    def end_of_turn_id(self) -> int:
        """The first token after an assistant message's content: the same whatever the content, and no part of any text.

        Raises ModelError when turns end in plain text.
        """
        first, second = (self.ids([_ASK, Message(role="assistant", content=c)]) for c in ("beta", "omega"))
        shared = 0
        while shared < min(len(first), len(second)) and first[-1 - shared] == second[-1 - shared]:
            shared += 1
        added = set(self._tokenizer.added_tokens_decoder) | {self.eos_id}
        for token in first[len(first) - shared :]:
            if token in added:
                return token
        raise ModelError(
            f"the chat template of {self._name} does not end an assistant turn with a dedicated token",
            fix="use a template that writes an end-of-turn token (such as `<|im_end|>`) after each assistant message",
        )


def _text_call() -> Message:
    """Return the probe call with its arguments as JSON text."""
    calls = _CALL_MESSAGE["tool_calls"]
    return Message(
        role="assistant",
        content="",
        tool_calls=[{**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}} for c in calls],
    )


def _merge_users(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge neighbouring user messages, for templates in which roles alternate."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        if merged and message["role"] == merged[-1]["role"] == "user":
            merged[-1]["content"] += "\n" + message["content"]
        else:
            merged.append(dict(message))
    return merged
