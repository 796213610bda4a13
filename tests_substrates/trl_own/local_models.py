"""Tiny random models of the architectures that TRL's GRPO tests train, in a hub cache that the hub's client reads offline."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from local_tokenizers import QWEN_VOCABULARY, make_tokenizer
from local_vision import VISION_MODELS

ORGANIZATION = "trl-internal-testing"
_REVISION = "0" * 39 + "1"
_TINY = {
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}


@dataclass(frozen=True, slots=True)
class Tiny:
    """A tiny model: the class in transformers, the tokenizer's family, and options of its configuration over the common ones."""

    architecture: str
    family: str
    options: Mapping[str, Any] = field(default_factory=dict)


_TIED = {"tie_word_embeddings": True}
_SCORES = {"num_labels": 1}

MODELS = {
    "tiny-Qwen2ForCausalLM-2.5": Tiny("Qwen2ForCausalLM", "qwen2_5"),
    "tiny-Qwen2ForSequenceClassification-2.5": Tiny("Qwen2ForSequenceClassification", "qwen2_5", _SCORES),
    "tiny-Qwen3ForCausalLM": Tiny("Qwen3ForCausalLM", "qwen3", {"head_dim": 4}),
    "tiny-Qwen3ForSequenceClassification": Tiny("Qwen3ForSequenceClassification", "qwen3", {"head_dim": 4, **_SCORES}),
    "tiny-Qwen3MoeForCausalLM": Tiny("Qwen3MoeForCausalLM", "qwen3", {"head_dim": 4, "num_experts": 4, **_EXPERTS}),
    "tiny-LlamaForCausalLM-3.2": Tiny("LlamaForCausalLM", "llama", _TIED),
    "tiny-LlamaForSequenceClassification-3.2": Tiny("LlamaForSequenceClassification", "llama", _SCORES),
    "tiny-MistralForCausalLM-0.2": Tiny("MistralForCausalLM", "mistral"),
    "tiny-Gemma2ForCausalLM": Tiny("Gemma2ForCausalLM", "gemma", {"head_dim": 4, **_TIED}),
    "tiny-Cohere2ForCausalLM": Tiny("Cohere2ForCausalLM", "cohere", {"logit_scale": 1.0, **_TIED}),
    "tiny-Glm4MoeForCausalLM": Tiny(
        "Glm4MoeForCausalLM", "glm", {"head_dim": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, **_EXPERTS}
    ),
    "tiny-GptOssForCausalLM": Tiny(
        "GptOssForCausalLM", "gpt_oss", {"head_dim": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "tiny-NemotronHForCausalLM-nano": Tiny(
        "NemotronHForCausalLM",
        "nemotron",
        {
            **{"layers_block_type": ["mamba", "attention", "moe"], "num_hidden_layers": 3},
            **{"mamba_num_heads": 8, "mamba_head_dim": 4, "mamba_n_groups": 1, "ssm_state_size": 16},
            **{"n_routed_experts": 4, "moe_shared_expert_intermediate_size": 32, **_EXPERTS},
        },
    ),
    "tiny-RemoteForCausalLM": Tiny("LlamaForCausalLM", "llama", _TIED),
}
_REMOTE = "tiny-RemoteForCausalLM"
_REMOTE_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM


class RemoteConfig(LlamaConfig):
    model_type = "remote"


class RemoteForCausalLM(LlamaForCausalLM):
    config_class = RemoteConfig
"""


def make_hub(cache: Path) -> None:
    """Fill a cache of the hub with every model of `MODELS` and `VISION_MODELS`, and its tokenizer."""
    transformers.utils.logging.disable_progress_bar()
    makers = {name: functools.partial(_make, tiny) for name, tiny in MODELS.items()} | VISION_MODELS
    for name, make in makers.items():
        folder = cache / f"models--{ORGANIZATION}--{name}"
        snapshot = folder / "snapshots" / _REVISION
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(_REVISION, "utf-8")
        make(snapshot)
        if name == _REMOTE:
            _add_remote_code(snapshot)


def _make(tiny: Tiny, folder: Path) -> None:
    tokenizer = make_tokenizer(tiny.family)
    tokenizer.save_pretrained(folder)
    architecture = getattr(transformers, tiny.architecture)
    size = QWEN_VOCABULARY if tiny.family.startswith("qwen") else len(tokenizer)
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": padding}
    config = architecture.config_class(**{**_TINY, "vocab_size": size, **ids, **tiny.options})
    torch.manual_seed(0)
    architecture(config).save_pretrained(folder)


def _add_remote_code(folder: Path) -> None:
    (folder / "remote.py").write_text(_REMOTE_CODE, "utf-8")
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config |= {
        "model_type": "remote",
        "architectures": ["RemoteForCausalLM"],
        "auto_map": {"AutoConfig": "remote.RemoteConfig", "AutoModelForCausalLM": "remote.RemoteForCausalLM"},
    }
    path.write_text(json.dumps(config), "utf-8")
