"""Each architecture that the examples name, shrunk and with random weights, learns in each precision, whole and by adapters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from composer_replication.config import ModelConfig, OptimizerConfig, RunConfig, TasksConfig
from composer_replication.loss.batch import build_batch
from composer_replication.loss.forward.models import load_policy, save_policy
from composer_replication.quickstart.policy import tiny_tokenizer
from composer_replication.trainer.learning.learner import Learner

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
ARCHITECTURES: Mapping[str, PreTrainedConfig] = {
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, head_dim=16, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32),
    "llama": LlamaConfig(**SIZES),
}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    save_policy(AutoModelForCausalLM.from_config(ARCHITECTURES[request.param]), tiny_tokenizer(), path)
    return path


@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "mixed"}, {"precision": "bfloat16"}, {"precision": "mixed", "lora": {"rank": 4}}],
    ids=["float32", "mixed", "bfloat16", "lora"],
)
def test_it_learns(folder: Path, options: Mapping[str, Any]) -> None:
    config = RunConfig(
        model=ModelConfig(path=str(folder), device="cpu", **options),
        tasks=TasksConfig(train=folder),
        optimizer=OptimizerConfig(learning_rate=1e-3, gradient_checkpointing=True),
    )
    model, tokenizer = load_policy(config.model)
    learner = Learner(model, config)
    assert learner.fallbacks() == {}
    batch = build_batch(tokenizer, device="cpu", model=model)
    losses = [learner.update(batch).metrics["loss/total"] for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]
