"""A policy that is a mixture of experts learns with a load-balancing loss, where the substrate can."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mixtures import CHOSEN, EXPERTS, mixture_config

from composer_replication.config import load_config
from composer_replication.config.substrate import SubstrateType
from composer_replication.loss.forward.models import make_policy
from composer_replication.recipes.limits import refuse
from composer_replication.trainer.learning.learner import Learner
from composer_replication.types.errors import ConfigError


def test_a_policy_learns_with_it(run_file: Path) -> None:
    words = [
        "--loss.hint.weight",
        "0",
        "--loss.replay.weight",
        "0",
        "--optimizer.learning_rate",
        "0.001",
        "--model.router_balance",
        "0.3",
    ]
    config = load_config(run_file, words)
    torch.manual_seed(0)
    learner = Learner(make_policy(config.model, mixture_config()), config)
    before = learner.policy.model.layers[0].mlp.gate.weight.detach().clone()
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 11, 12], [20, 21, 22, 23, 0, 0]])
    mask = (ids != 0).long()
    sampled = mask * (mask.cumsum(-1) > 1)
    batch = {"input_ids": ids, "attention_mask": mask, "response_mask": sampled, "rlvr_weights": sampled.float()}
    batch |= {"advantages": torch.tensor([1.0, -1.0, 0.5]), "rlvr_denominator": torch.tensor(13.0)}
    metrics = learner.update(batch).metrics
    assert CHOSEN * 0.9 < metrics["router/balance"] < EXPERTS
    assert not torch.equal(before, learner.policy.model.layers[0].mlp.gate.weight)


@pytest.mark.parametrize("substrate", ["trl", "verl", "prime_rl"])
@pytest.mark.parametrize(("option", "value"), [("router_balance", "0.001"), ("router_replay", "true")])
def test_who_cannot_says_so(run_file: Path, substrate: SubstrateType, option: str, value: str) -> None:
    config = load_config(run_file, [f"--model.{option}", value])
    with pytest.raises(ConfigError, match=rf"model\.{option}"):
        refuse(config, substrate)


def test_compiled_routers_replay_nothing(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="router_replay = true and compile = true"):
        load_config(run_file, ["--model.router_replay", "true", "--model.compile", "true"])
