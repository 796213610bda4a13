"""Muon with AdamW: one optimizer, whose hooks, schedules and state dicts reach both."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from composer_replication.trainer.learning.muon import make_muon
from composer_replication.types.errors import ConfigError


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def step(net, optimizer, seed):
    optimizer.zero_grad()
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
    net(x).square().sum().backward()
    optimizer.step()


def values(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_it_steps_as_the_two_do_apart():
    one, two = model(), model()
    both = make_muon(one, lr=0.01, weight_decay=0.1)
    muon = torch.optim.Muon([two[0].weight, two[2].weight], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW([two[0].bias, two[2].bias], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    for seed in range(3):
        step(one, both, seed)
        adamw.zero_grad()
        step(two, muon, seed)
        adamw.step()
    assert torch.equal(values(one), values(two))


def test_embeddings_and_head_are_not_muons():
    torch.manual_seed(0)
    net = nn.ModuleDict(
        {"embed": nn.Embedding(5, 4), "layers": nn.ModuleList([nn.Linear(4, 4) for _ in range(2)]), "head": nn.Linear(4, 5)}
    )
    first, second = make_muon(net, lr=0.1).param_groups
    assert [p.shape for p in first["params"]] == [(4, 4), (4, 4)]
    assert len(second["params"]) == 5


def test_hooks_run_once_a_step_and_around_it():
    net, told = model(), []
    optimizer = make_muon(net, lr=0.01)
    before = values(net)
    optimizer.register_step_pre_hook(lambda *_: told.append(torch.equal(values(net), before)))
    optimizer.register_step_post_hook(lambda *_: told.append(torch.equal(values(net), before)))
    step(net, optimizer, 0)
    assert told == [True, False]


def test_a_schedule_reaches_both():
    net = model()
    optimizer = make_muon(net, lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.0)
    before = values(net)
    step(net, optimizer, 0)
    schedule.step()
    assert torch.equal(values(net), before)


def test_a_restored_one_goes_on_as_if_nothing_had_been():
    net = model()
    optimizer = make_muon(net, lr=0.01)
    step(net, optimizer, 0)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(net)
    restored = make_muon(other, lr=0.5)
    restored.load_state_dict(torch.load(file))
    for seed in (1, 2):
        step(net, optimizer, seed)
        step(other, restored, seed)
    assert torch.equal(values(net), values(other))


def test_a_model_without_matrices_is_refused():
    with pytest.raises(ConfigError, match="no trainable matrix"):
        make_muon(nn.Sequential(nn.LayerNorm(4)), lr=0.1)
