"""A byte-level tokenizer with a tool-calling chat template, made from nothing: for scripted policies and tiny models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, TURN_START, TURN_END = "<pad>", "<|im_start|>", "<|im_end|>"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"
_MARKUP = (PAD, TURN_START, TURN_END, CALL_START, CALL_END)

CHAT_TEMPLATE = """\
{%- set names = (tools or []) | map(attribute='function.name') | join(', ') %}
{%- if names and (not messages or messages[0].role != 'system') %}
{{- '<|im_start|>system\\nTools: ' + names + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{- message.content or '' }}
{%- for call in (message.tool_calls or []) %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}</tool_call>' }}
{%- endfor %}{{- '<|im_end|>' }}{%- endgeneration %}
{%- else %}
{{- message.content }}
{%- if names and loop.first and message.role == 'system' %}{{- '\\nTools: ' + names }}{%- endif %}
{{- '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""ChatML with Hermes tool calls. The system message names the tools and nothing more: a model that uses this template was
trained on their schemas' meaning, and a window of a few hundred tokens has no room for them."""


def byte_level_tokenizer(
    train_on: Iterable[str] | None = None, *, vocab_size: int = 512, pattern: str | None = None
) -> PreTrainedTokenizerFast:
    """Build a byte-level BPE tokenizer whose template is `CHAT_TEMPLATE`.

    Ids 0 to 4 are `<pad>`, `<|im_start|>`, `<|im_end|>` (end of turn and EOS), `<tool_call>` and `</tool_call>`; the 256 bytes
    follow. Every text round-trips. The same corpus gives the same tokenizer.

    Args:
        train_on: texts (rendered chats are fine: markup is cut out) to learn merges from; None learns none, one token a byte.
        vocab_size: ids in all, at least 261; used only with `train_on`.
        pattern: regular expression whose matches are the pieces merges stay inside; GPT-2's by default.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    def pieces() -> pre_tokenizers.PreTokenizer:
        if pattern is None:
            return pre_tokenizers.ByteLevel(add_prefix_space=False)
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), to_bytes])

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if train_on is None:
        bpe = models.BPE(vocab={token: i for i, token in enumerate((*_MARKUP, *alphabet))}, merges=[])
    else:
        learner = Tokenizer(models.BPE())
        learner.pre_tokenizer = pieces()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=list(_MARKUP), initial_alphabet=alphabet, show_progress=False
        )
        learner.train_from_iterator(_without_markup(train_on), trainer)
        model = json.loads(learner.to_str())["model"]
        bpe = models.BPE(vocab=model["vocab"], merges=[(left, right) for left, right in model["merges"]])
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pieces()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in _MARKUP[:3]])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in _MARKUP[3:]])
    make: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
    return make(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=TURN_END,
        extra_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def _without_markup(texts: Iterable[str]) -> Iterator[str]:
    """Yield pieces of the texts between the markup tokens, so that no merge learns their spelling."""
    markup = re.compile("|".join(re.escape(token) for token in _MARKUP))
    for text in texts:
        yield from filter(None, markup.split(text))
