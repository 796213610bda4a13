"""Between messages and token ids: chat templates turn by turn, tool calls in a turn's text, a byte-level tokenizer. No torch."""

from __future__ import annotations

from composer_replication.tokens.byte_tokenizer import byte_level_tokenizer
from composer_replication.tokens.renderer import ChatRenderer, PrefixCase, PrefixReport
from composer_replication.tokens.tool_calls import assistant_message, parse_tool_calls

__all__ = ["ChatRenderer", "PrefixCase", "PrefixReport", "assistant_message", "byte_level_tokenizer", "parse_tool_calls"]
