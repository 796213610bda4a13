"""Tiny models that see pictures, with image processors that need no torchvision: it is not in the environment of these tests.

For want of it TRL's tests with Qwen's, Gemma 4's and SmolVLM's processors, which also read videos, fail with either trainer.
"""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from local_tokenizers import make_tokenizer
from transformers import PreTrainedTokenizerFast

_PATCH, _SIDE = 14, 28
_TEXT = {
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "head_dim": 4,
    "initializer_range": 0.1,
}
_VISION = {
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "image_size": _SIDE,
    "patch_size": _PATCH,
}


def _text(tokenizer: PreTrainedTokenizerFast) -> dict[str, object]:
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {**_TEXT, "vocab_size": len(tokenizer), **ids}


def make_gemma3(folder: Path) -> None:
    """Save a tiny Gemma 3 and its processor: four tokens a picture."""
    tokenizer = make_tokenizer("gemma3")
    size = {"height": _SIDE, "width": _SIDE}
    images = transformers.Gemma3ImageProcessorPil(size=size)
    transformers.Gemma3Processor(images, tokenizer, image_seq_length=4, chat_template=tokenizer.chat_template).save_pretrained(
        folder
    )
    config = transformers.Gemma3Config(
        text_config=_text(tokenizer),
        vision_config={**_VISION, "vision_use_head": False},
        mm_tokens_per_image=4,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        image_token_index=tokenizer.image_token_id,
        initializer_range=0.1,
    )
    _save(transformers.Gemma3ForConditionalGeneration, config, folder)


def make_llava_next(folder: Path) -> None:
    """Save a tiny LLaVA-NeXT and its processor."""
    tokenizer = make_tokenizer("llava")
    grid = [[_SIDE, 2 * _SIDE], [2 * _SIDE, _SIDE]]
    images = transformers.LlavaNextImageProcessorPil(
        size={"shortest_edge": _SIDE}, crop_size={"height": _SIDE, "width": _SIDE}, image_grid_pinpoints=grid
    )
    transformers.LlavaNextProcessor(
        images,
        tokenizer,
        patch_size=_PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    ).save_pretrained(folder)
    config = transformers.LlavaNextConfig(
        text_config={"model_type": "mistral", **_text(tokenizer)},
        vision_config={"model_type": "clip_vision_model", **_VISION},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=grid,
        image_seq_length=4,
    )
    _save(transformers.LlavaNextForConditionalGeneration, config, folder)


def _save(architecture: type[transformers.PreTrainedModel], config: transformers.PreTrainedConfig, folder: Path) -> None:
    torch.manual_seed(0)
    architecture(config).save_pretrained(folder)


VISION_MODELS = {
    "tiny-Gemma3ForConditionalGeneration": make_gemma3,
    "tiny-LlavaNextForConditionalGeneration": make_llava_next,
}
