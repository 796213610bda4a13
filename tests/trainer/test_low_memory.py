"""AdamW for little memory takes AdamW's steps, loses none that are small, and goes on where it stopped."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from composer_replication.trainer.learning.low_memory import (
    OffloadedAdamW,
    StochasticRoundingAdamW,
    stochastically_rounded,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from small_net import net, step, values

OPTIONS: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}
MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "rounded": StochasticRoundingAdamW,
    "host": OffloadedAdamW,
}


@pytest.mark.parametrize("kind", ["rounded", "host"])
def test_float32_weights_take_the_steps_of_adamw(kind: str) -> None:
    """Clipping included, and a rate that a schedule changes."""
    found = []
    for make in (MAKERS[kind], partial(torch.optim.AdamW, fused=True)):
        model = net()
        optimizer = make(model.parameters(), **OPTIONS)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda taken: 1 / (1 + taken))
        for seed in range(4):
            step(model, optimizer, seed)
            schedule.step()
        found.append(values(model))
    assert torch.equal(*found)


def test_rounding_is_right_in_the_mean() -> None:
    between = torch.tensor([1.0 + 2.0**-9, 1.0 + 3 * 2.0**-10, -3.0 - 2.0**-8, 1e-40]).repeat(40_000, 1)
    rounded = stochastically_rounded(between, 0).float()
    assert all(len(column.unique()) <= 2 for column in rounded.T), "one of the two neighbours"
    error = (rounded.mean(0) - between[0]).abs() / between[0].abs().clamp(min=1e-30)
    assert bool((error < 2e-4).all())
    exact = torch.tensor([1.5, -2.0, 0.0, float("inf"), float("-inf"), 3.3895314e38])
    assert torch.equal(stochastically_rounded(exact, 0), exact.bfloat16())
    assert bool(stochastically_rounded(torch.tensor([float("nan")]), 0).isnan())


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_steps_too_small_for_bfloat16_add_up(kind: str) -> None:
    """Plain AdamW over bfloat16 stands still: a step of 1e-4 is a twentieth of what separates two numbers near 1."""
    moved = {}
    for name, make in (("plain", torch.optim.AdamW), (kind, MAKERS[kind])):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
        optimizer = make([weight], lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0)
        for _ in range(200):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        moved[name] = 1.0 - weight.detach().float().mean()
    assert moved["plain"] == 0.0
    assert moved[kind] == pytest.approx(0.02, rel=0.05)


def test_what_was_trained_in_the_machines_memory_is_not_rounded() -> None:
    small, exact = net(torch.bfloat16), net().bfloat16().float()
    host = OffloadedAdamW(small.parameters(), **OPTIONS)
    plain = torch.optim.AdamW(exact.parameters(), fused=True, **OPTIONS)
    for seed in range(5):
        step(small, host, seed)
        for mine, theirs in zip(exact.parameters(), small.parameters(), strict=True):
            assert theirs.grad is not None
            mine.grad = theirs.grad.float()
        plain.step()
    assert torch.equal(values(small), values(exact).bfloat16().float())
    assert not torch.equal(values(small), values(exact))


@pytest.mark.parametrize("kind", sorted(MAKERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_restored_optimizer_goes_on_as_if_nothing_had_happened(kind: str, dtype: torch.dtype) -> None:
    model = net(dtype)
    optimizer = MAKERS[kind](model.parameters(), **OPTIONS)
    for seed in range(2):
        step(model, optimizer, seed)
    file, other = io.BytesIO(), copy.deepcopy(model)
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    restored = MAKERS[kind](other.parameters(), **OPTIONS)
    restored.load_state_dict(torch.load(file, weights_only=True))
    for trained, by in ((model, optimizer), (other, restored)):
        torch.rand(1)  # no generator but their own is read
        step(trained, by, 2)
    assert torch.equal(values(model), values(other))
