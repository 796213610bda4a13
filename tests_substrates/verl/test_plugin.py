"""What verl has of ours, and when."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

SHOW = """
import verl
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.rollout.replica import RolloutReplicaRegistry
servers = RolloutReplicaRegistry._registry
names = (POLICY_LOSS_REGISTRY, "composer"), (PlatformRegistry._platforms, "cpu"), (servers, "composer_cpu")
print(*(name in registry for registry, name in names))
"""


def shown(**environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("COMPOSER_", "VERL_"))}
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHOW], env=clean | environment, capture_output=True, text=True, check=True
    )
    return found.stdout.splitlines()[-1]


def test_nothing_outside_a_run_and_the_cpu_only_where_it_is_asked_for(planned, tmp_path):
    from composer_replication.recipes.verl.plan import PLAN

    plan = str(planned(tmp_path).path)
    assert shown() == "False False False"
    assert shown(**{PLAN: plan}) == "True False False"
    assert shown(**{PLAN: plan, "VERL_PLATFORM": "cpu"}) == "True True True"


def test_advantages_leave_out_rows_without_a_verdict(planned, tmp_path):
    planned(tmp_path)
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from composer_replication.policy_gradient import group_advantages

    rewards = torch.zeros(5, 3)
    rewards[:, 0] = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0])
    rewards[1, 1] = -0.25
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 1], [1, 1, 1]])
    index = ["a", "a", "a", "b", "b"]
    advantages, returns = get_adv_estimator_fn("composer")(
        token_level_rewards=rewards, response_mask=mask, config=None, index=index
    )
    first = group_advantages([1.0, -0.25, None], "grpo", scaled_by=[1.0, 0.0, None])
    assert advantages[:, 0].tolist() == pytest.approx([first[0], first[1], 0.0, 0.0, 0.0])
    assert torch.equal(advantages, advantages[:, :1] * mask)
    assert torch.equal(advantages, returns)
