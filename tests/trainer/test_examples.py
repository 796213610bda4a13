"""The run files in examples/training: each loads, and a shrunk model of its architecture takes a step as it says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from test_architectures import ARCHITECTURES
from transformers import AutoModelForCausalLM

from composer_replication.config import load_config, resolve_arm
from composer_replication.loss.batch import build_batch
from composer_replication.loss.forward.models import load_policy, save_policy
from composer_replication.quickstart.policy import tiny_tokenizer
from composer_replication.trainer.learning.learner import Learner

RUNS = Path(__file__).parents[2] / "examples" / "training"
OF = {
    "qwen25_05b.toml": "qwen2",
    "qwen3_4b_lora.toml": "qwen3",
    "qwen25_7b_full.toml": "qwen2",
    "qwen3_coder_30b_a3b_lora.toml": "qwen3_moe",
}


def test_every_file_is_named_here_and_in_the_table() -> None:
    names = {path.name for path in RUNS.glob("*.toml")}
    assert names == OF.keys()
    table = (RUNS / "README.md").read_text("utf-8")
    assert all(f"| `{name}` |" in table for name in names)


@pytest.mark.parametrize("name", OF)
def test_a_shrunk_model_takes_a_step(tmp_path: Path, name: str) -> None:
    save_policy(AutoModelForCausalLM.from_config(ARCHITECTURES[OF[name]]), tiny_tokenizer(), tmp_path)
    config = load_config(RUNS / name, ["--model.path", str(tmp_path), "--model.device", "cpu", "--tasks.train", str(tmp_path)])
    for arm in config.arms:
        variant = resolve_arm(config, arm)
        model, tokenizer = load_policy(variant.model)
        learner = Learner(model, variant)
        result = learner.update(build_batch(tokenizer, device="cpu", model=model))
        assert math.isfinite(result.metrics["loss/total"])
        assert result.metrics["optimizer/grad_norm"] > 0
