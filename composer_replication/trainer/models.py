"""Loading the policy."""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from composer_replication.config import ModelConfig
from composer_replication.errors import ModelError

__all__ = ["load_policy", "resolve_device"]


def resolve_device(name: str) -> torch.device:
    """The device of a configuration. Raises ModelError when CUDA is asked for and absent."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError("model.device is cuda, but torch finds no CUDA device", fix="set model.device to auto or cpu")
    return torch.device(name)


def load_policy(config: ModelConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a folder or a Hugging Face id.

    Raises:
        ModelError: it cannot be loaded, or its tokenizer has no chat template or EOS token.
    """
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[config.dtype]
    try:
        tokenizer = cast(Any, AutoTokenizer).from_pretrained(config.path)
        model = cast(Any, AutoModelForCausalLM).from_pretrained(config.path, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"model.path: {config.path} cannot be loaded: {first}",
            fix="give a folder written by save_pretrained, or a Hugging Face model id that can be downloaded",
        ) from error
    if getattr(tokenizer, "chat_template", None) is None:
        raise ModelError(
            f"model.path: the tokenizer of {config.path} has no chat template",
            fix="use an instruction-tuned model, or put a chat_template.jinja with tool calls beside its tokenizer",
        )
    if tokenizer.eos_token_id is None:
        raise ModelError(f"model.path: the tokenizer of {config.path} has no EOS token", fix="set eos_token in its configuration")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = tokenizer.eos_token_id
    return model.to(resolve_device(config.device)), tokenizer
