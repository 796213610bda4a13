"""The tiny policy: a Qwen3 of 0.7 million parameters with a byte-level tokenizer of 512 tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from composer_replication.envs.tools import CODING_TOOLS
from composer_replication.quickstart.transcripts import demonstration
from composer_replication.tokens import byte_level_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

VOCABULARY = 512
WINDOW = 1024
_PIECES = r" ?[A-Za-z_]+|[0-9]| *[^A-Za-z_0-9\n]+|\n"
"""A word with the space before it, a digit, a run of punctuation, a line end: JSON's punctuation makes few tokens this way."""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer, always the same: trained on the same thousand demonstrations."""
    untrained = byte_level_tokenizer()

    def texts() -> Iterator[str]:
        rng = random.Random(0)
        for _ in range(1000):
            rendered = untrained.apply_chat_template(demonstration(rng), tools=list(CODING_TOOLS), tokenize=False)  # type: ignore[arg-type]  # Message is a dict of its keys
            yield str(rendered)

    tokenizer = byte_level_tokenizer(texts(), vocab_size=VOCABULARY, pattern=_PIECES)
    tokenizer.model_max_length = WINDOW
    return tokenizer


def tiny_model(tokenizer: PreTrainedTokenizerFast, seed: int, *, hidden: int = 128, layers: int = 3) -> PreTrainedModel:
    """Make an untrained Qwen3; `seed` determines its weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=hidden // 4,
            max_position_embeddings=WINDOW,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
        return Qwen3ForCausalLM(config)
