"""A run's own batches take no more than is planned: ragged rollouts, siblings with a common beginning, hints in any of them."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import Qwen3Config

from composer_replication.config import RunConfig
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward.models import make_policy
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.planning.live_bytes import LiveBytes
from composer_replication.trainer.planning.update_memory import largest_passes, plan_update
from composer_replication.types import HintedTurn, StopReason, Trajectory, Turn

pytestmark = pytest.mark.usefixtures("one_thread")
CONTEXT, TOKENS, GROUPS, SIZE = 900, 1400, 3, 6
WIDE = Qwen3Config(
    vocab_size=3000,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    dtype="float32",
)
SETTINGS = {
    "as it is": {},
    "checkpointing": {"optimizer": {"gradient_checkpointing": True}},
    "no hints": {"loss": {"hint": {"weight": 0.0}}},
    "moving average": {"loss": {"hint": {"self_teacher": "ema"}}},
    "eager": {"model": {"attention": "eager"}},
}


def run(name: str) -> RunConfig:
    options = SETTINGS[name]
    return RunConfig.model_validate(
        {
            **options,
            "model": {"path": "made", "device": "cpu", "precision": "float32", **options.get("model", {})},
            "rollout": {"context_tokens": CONTEXT, "groups": GROUPS, "group_size": SIZE},
            "optimizer": {"micro_batch_tokens": TOKENS, "channel_gradients_every": 0, **options.get("optimizer", {})},
        }
    )


def trajectory(name: str, prompt: tuple[int, ...], drawn: random.Random, most: int) -> Trajectory:
    """Some turns of an agent, with tool results between them."""
    turns, left = [], most
    while left > 8 and len(turns) < 4:
        action, result = (drawn.randint(1, max(1, left // 3)) for _ in range(2))
        turns.append(
            Turn(
                action_ids=tuple(drawn.randrange(3000) for _ in range(action)),
                logprobs=(-1.0,) * action,
                text="",
                observation_ids=tuple(drawn.randrange(3000) for _ in range(result)),
            )
        )
        left -= action + result
    return Trajectory(
        trajectory_id=name,
        task_id=name.partition("/")[0],
        policy_version=0,
        messages=(),
        tools=(),
        prompt_ids=prompt,
        turns=tuple(turns),
        stop_reason=StopReason.NO_TOOL_CALL,
        temperature=1.0,
        reward=float(drawn.random() < 0.5),
    )


def hint_in(one: Trajectory, drawn: random.Random) -> HintedTurn:
    """A hint of 32 tokens before one of its turns."""
    number = drawn.randrange(len(one.turns))
    before = list(one.prompt_ids)
    for turn in one.turns[:number]:
        before += [*turn.action_ids, *turn.observation_ids]
    action = one.turns[number].action_ids
    return HintedTurn(
        trajectory_id=one.trajectory_id,
        turn=number,
        student_start=len(before),
        teacher_ids=(*before, *[1] * 32, *action),
        teacher_start=len(before) + 32,
        action_ids=action,
    )


def drawn_batch(config: RunConfig, seed: int) -> Batch:
    drawn = random.Random(seed)
    found: list[Trajectory] = []
    for group in range(GROUPS):
        prompt = tuple(drawn.randrange(3000) for _ in range(drawn.randint(20, CONTEXT - 60)))
        found += [trajectory(f"{group}/{n}", prompt, drawn, CONTEXT - len(prompt)) for n in range(SIZE)]
    found = [one for one in found if one.turns]
    share = drawn.choice((0.3, 1.0))
    hints = [hint_in(one, drawn) for one in found if drawn.random() < share] if config.loss.hint.weight else []
    advantages = [drawn.choice((-1.0, 1.0)) for _ in found]
    return collate(found, advantages, hints, pad_id=0, objective=config.loss.rlvr.objective)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_no_batch_takes_more_than_is_planned(name: str) -> None:
    config = run(name)
    planned = max(plan_update(config, WIDE, size).peak for size in largest_passes(config, 10_000))
    found = []
    with LiveBytes(torch.device("cpu")) as live:
        learner = Learner(make_policy(config.model, WIDE), config)
        for seed in range(8):
            batch = drawn_batch(config, seed)
            live.forget_peak()
            learner.update(batch)
            found.append(live.peak)
    assert max(found[1:]) <= 1.02 * planned
    assert max(found[1:]) >= 0.4 * planned, "and the plan is no wild guess"
