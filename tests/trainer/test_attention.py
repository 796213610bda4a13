"""Attention by the name of a kernel: all three channels learn the same with each that this machine can run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer_replication.config import ModelConfig, RunConfig, load_config
from composer_replication.loss.batch import build_batch
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward import why_no_tree
from composer_replication.loss.forward.models import load_policy
from composer_replication.trainer.learning.learner import Learner
from composer_replication.types.errors import ConfigError

WORDS = ["--optimizer.learning_rate", "0.01", "--optimizer.warmup_steps", "0"]


def a_batch(config: RunConfig) -> Batch:
    model, tokenizer = load_policy(ModelConfig(path=config.model.path, device="cpu"))
    return build_batch(tokenizer, device="cpu", model=model)


def after_a_step(run_file: Path, kernel: str) -> tuple[Learner, dict[str, float]]:
    config = load_config(run_file, [*WORDS, "--model.attention", kernel])
    torch.manual_seed(0)
    trained = Learner(load_policy(config.model)[0], config)
    return trained, trained.update(a_batch(config)).metrics


@pytest.mark.parametrize("kernel", ["auto", "eager"])
def test_a_kernel_changes_no_weight_and_no_loss(run_file: Path, kernel: str) -> None:
    """`auto` and `sdpa` read a tree of prefixes, `eager` padded rows: the step is the same to rounding."""
    expected, losses = after_a_step(run_file, "sdpa")
    trained, found = after_a_step(run_file, kernel)
    assert trained.policy.config._attn_implementation == (
        "eager" if kernel == "eager" else expected.policy.config._attn_implementation
    )
    assert (why_no_tree(trained.policy) is None) == (kernel != "eager")
    for channel in ("hint", "replay"):
        assert losses[f"{channel}/loss"] > 0
        assert found[f"{channel}/loss"] == pytest.approx(losses[f"{channel}/loss"], rel=1e-5)
    assert found["optimizer/grad_norm"] == pytest.approx(losses["optimizer/grad_norm"], rel=1e-5)
    for (name, a), b in zip(expected.policy.state_dict().items(), trained.policy.state_dict().values(), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=2e-4, msg=name)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [("flash_attention_2", "flash attention computes in bfloat16"), ("fast", "attention")],
)
def test_a_kernel_that_cannot_be_is_refused(run_file: Path, kernel: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(run_file, ["--model.precision", "float32", "--model.attention", kernel])
