"""torchao's AdamW with moments of 8 bits: close to AdamW, a quarter of its state, and restored as it was."""

from __future__ import annotations

import copy
import io
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from composer_replication.config import ModelConfig, OptimizerConfig, RunConfig, TasksConfig
from composer_replication.loss.batch import build_batch
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.learning.low_memory import make_8bit_adamw

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "tools"))
from small_net import net, step, values

OPTIONS = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}


def test_it_is_close_to_adamw_and_a_quarter_of_its_state():
    moved, sizes = [], []
    for make in (make_8bit_adamw, torch.optim.AdamW):
        model = net()
        start = values(model)
        optimizer = make(model.parameters(), **OPTIONS)
        for seed in range(10):
            step(model, optimizer, seed)
        moved.append(values(model) - start)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        sizes.append(len(file.getvalue()))
    assert float((moved[0] - moved[1]).norm() / moved[1].norm()) < 0.1
    assert sizes[0] < 0.4 * sizes[1]


def test_steps_too_small_for_bfloat16_add_up():
    weight = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    optimizer = make_8bit_adamw([weight], lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0)
    for _ in range(200):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert 1.0 - weight.detach().float().mean() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_restored_it_goes_on_as_if_nothing_had_happened(dtype):
    model = net(dtype)
    optimizer = make_8bit_adamw(model.parameters(), **OPTIONS)
    for seed in range(2):
        step(model, optimizer, seed)
    file, other = io.BytesIO(), copy.deepcopy(model)
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    restored = make_8bit_adamw(other.parameters(), **OPTIONS)
    restored.load_state_dict(torch.load(file, weights_only=True))
    for trained, by in ((model, optimizer), (other, restored)):
        torch.rand(1)
        step(trained, by, 2)
    assert torch.equal(values(model), values(other))


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_a_learner_steps_and_changes_its_rate(tmp_path, schedule):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, 0, hidden=32, layers=2)
    config = RunConfig(
        model=ModelConfig(path="none", device="cpu"),
        tasks=TasksConfig(train=tmp_path),
        steps=4,
        optimizer=OptimizerConfig(moments="8bit", learning_rate=1e-3, schedule=schedule),
    )
    learner = Learner(model, config)
    batch = build_batch(tokenizer, device="cpu", model=model)
    losses = [learner.update(batch).metrics["loss/total"] for _ in range(3)]
    assert losses[-1] < losses[0]
    learner.skip_to(1)
    expected = config.optimizer.learning_rate * (2 / 3 if schedule == "constant" else 2 / 3 * 3 / 4)
    assert float(learner.optimizer.param_groups[0]["lr"]) == pytest.approx(expected)
    learner.update(batch)
