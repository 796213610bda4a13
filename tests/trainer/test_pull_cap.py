"""The cap on a channel: it brings the pull down to what was asked for, and never switches the channel off."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from composer_replication.config import RunConfig, load_config
from composer_replication.loss.batch import collate
from composer_replication.loss.forward.models import load_policy
from composer_replication.trainer.learning.controls import Controls
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.learning.pull_cap import LEAST, PullCap
from composer_replication.types import Pair, StopReason, Trajectory, Turn
from composer_replication.types.errors import ConfigError


def step(policy: float, channel: float) -> dict[str, float]:
    return {"rlvr/pull": policy, "hint/pull": channel}


def test_the_share_brings_the_pull_down_to_the_cap() -> None:
    """A channel whose whole weight pulls 12 times as hard as the policy gradient, under a cap of 3."""
    cap = PullCap("hint", 3.0)
    for _ in range(40):
        cap.follow(step(0.5, cap.share * 12 * 0.5))
    assert cap.share == pytest.approx(3 / 12)


def test_a_channel_below_the_cap_keeps_its_weight_and_one_far_above_a_tenth() -> None:
    weak, strong = PullCap("hint", 3.0), PullCap("hint", 3.0)
    for _ in range(40):
        weak.follow(step(1.0, weak.share * 2.0))
        strong.follow(step(1.0, strong.share * 1000.0))
    assert weak.share == 1.0
    assert strong.share == LEAST


def test_one_step_among_many_changes_little_and_one_without_a_gradient_nothing() -> None:
    cap = PullCap("hint", 3.0)
    for _ in range(20):
        cap.follow(step(1.0, cap.share * 2.9))
    cap.follow(step(0.01, cap.share * 2.9))
    assert cap.share > 0.2, "a policy gradient that is weak once is a hundredth of the others"
    before = cap.share
    for metrics in (step(0.0, 5.0), step(1.0, 0.0), {}):
        cap.follow(metrics)
    assert cap.share == before


def test_a_resumed_cap_goes_on_as_it_would_have() -> None:
    one, other = PullCap("hint", 1.0), PullCap("hint", 1.0)
    for pull in (2.0, 5.0, 3.0):
        one.follow(step(1.0, one.share * pull))
    other.load_state_dict(one.state_dict())
    for cap in (one, other):
        cap.follow(step(1.0, 4.0))
    assert one.state_dict() == other.state_dict()
    assert one.share < 1.0


def test_both_caps_act_on_the_weights_and_beside_the_brake(run_file: Path) -> None:
    words = [
        "--loss.hint.max_pull",
        "2",
        "--loss.replay.max_pull",
        "2",
        "--loss.replay.variant",
        "dpo",
        "--loss.hint.weight",
        "3",
        "--loss.replay.weight",
        "1",
    ]
    config = load_config(run_file, words)
    controls = Controls.of(config)
    assert controls.brake is not None
    controls.brake.share, controls.caps["hint"].share, controls.caps["replay"].share = 0.5, 0.25, 0.2
    loss = controls.options(config.loss)
    assert loss.hint.weight == pytest.approx(0.25 * 3)
    assert loss.replay.weight == pytest.approx(0.2 * 0.5)
    assert loss.replay.weight * loss.replay.anchor == pytest.approx(0.2), "the anchor is capped, and not braked"
    again = Controls.of(config)
    again.load_state_dict(controls.state_dict())
    assert again.options(config.loss) == loss
    assert Controls.of(load_config(run_file)).caps == {}


def test_pairs_with_steps_of_their_own_have_no_cap(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="max_pull and learning_rate are both set"):
        load_config(run_file, ["--loss.replay.max_pull", "2", "--loss.replay.learning_rate", "1e-4"])


def rollout(number: int) -> Trajectory:
    ids = tuple(range(10 + number, 16 + number))
    turn = Turn(action_ids=ids, logprobs=(-5.0,) * len(ids), text="")
    return Trajectory(
        trajectory_id=f"0/t/{number}", task_id="t", policy_version=0, messages=(), tools=(), prompt_ids=(5, 6, 7 + number),
        turns=(turn,), stop_reason=StopReason.SUBMITTED, temperature=1.0, reward=0.0,
    )  # fmt: skip


def pulls_after(config: RunConfig, steps: int) -> list[float]:
    """The replay channel's pull over the policy gradient's, in each step."""
    torch.manual_seed(0)
    trained = Learner(load_policy(config.model)[0], config)
    pairs = [Pair(pair_id=f"{n}", prompt_ids=(5, 6, n), chosen_ids=(30 + n, 8), rejected_ids=(50 + n,)) for n in range(4)]
    inputs = collate([rollout(n) for n in range(4)], [0.01, -0.01, 0.01, -0.01], [], pairs, pad_id=0)
    found = [trained.update(inputs).metrics for _ in range(steps)]
    assert all(math.isclose(one.get("replay/weight_share", 1.0), 1.0) for one in found[:1])
    return [one["replay/pull"] / one["rlvr/pull"] for one in found]


def test_a_learner_holds_its_channels_to_the_cap(run_file: Path) -> None:
    words = ["--loss.hint.weight", "0", "--optimizer.learning_rate", "1e-6", "--optimizer.warmup_steps", "0"]
    free = pulls_after(load_config(run_file, words), 3)
    most = free[0] / 4
    held = pulls_after(load_config(run_file, [*words, "--loss.replay.max_pull", str(most)]), 3)
    assert held[0] == pytest.approx(free[0], rel=1e-4)
    assert held[1] == pytest.approx(most, rel=0.05)
