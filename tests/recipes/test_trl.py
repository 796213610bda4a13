"""What a run file becomes for TRL, what cannot, and the batch as rows; TRL itself is in tests_substrates/trl."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import composer_replication
from composer_replication.config import (
    HintConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    PrmRewardConfig,
    RewardConfig,
    RlvrConfig,
    RolloutConfig,
    RunConfig,
    SubstrateConfig,
    TasksConfig,
)
from composer_replication.loss.batch import collate
from composer_replication.recipes.substrates import check_substrate
from composer_replication.recipes.trl.options import grpo_options
from composer_replication.recipes.trl.per_sample import PREFIX, gathered, spread
from composer_replication.types import HintedTurn, Pair, StopReason, Trajectory, Turn
from composer_replication.types.errors import ConfigError, MissingExtraError

HERE = Path(__file__).resolve().parent


def run(**given: object) -> RunConfig:
    options = {"substrate": SubstrateConfig(type="trl"), **given}
    return RunConfig(model=ModelConfig(path="policy"), tasks=TasksConfig(train=HERE), **options)


REFUSED = [
    ({"loss": LossConfig(rlvr=RlvrConfig(objective="dppo"))}, "loss.rlvr.objective = dppo: TRL has no such surrogate"),
    (
        {"loss": LossConfig(rlvr=RlvrConfig(objective="cispo", epsilon_low=0.0))},
        "loss.rlvr.epsilon_low sets one",
    ),
    ({"loss": LossConfig(hint=HintConfig(useful_only=True))}, "loss.hint.useful_only"),
    ({"rollout": RolloutConfig(refills=2)}, "rollout.refills = 2"),
    ({"rollout": RolloutConfig(timeout_s=60.0)}, "rollout.timeout_s = 60.0"),
    ({"reward": RewardConfig(kl_weight=0.1)}, "reward.kl_weight = 0.1"),
    ({"reward": RewardConfig(prm=PrmRewardConfig(path=HERE, weight=0.1))}, "reward.prm.weight = 0.1"),
    ({"optimizer": OptimizerConfig(epochs=2)}, "optimizer.epochs = 2: a step of the run is an optimizer step of TRL's"),
    ({"loss": LossConfig(rlvr=RlvrConfig(entropy_bonus=0.1))}, "loss.rlvr.entropy_bonus = 0.1"),
    ({"loss": LossConfig(rlvr=RlvrConfig(entropy_target=0.0))}, "loss.rlvr.entropy_target = 0.0"),
    (
        {"loss": LossConfig(rlvr=RlvrConfig(kl_beta=0.1, kl_estimator="unbiased", objective="gspo"))},
        "TRL's ratio in it is not the token's",
    ),
    ({"loss": LossConfig(rlvr=RlvrConfig(kl_beta=0.1, kl_estimator="k2"))}, "loss.rlvr.kl_estimator = k2"),
    ({"substrate": SubstrateConfig(type="trl", options={"use_vllm": True})}, "substrate.options.use_vllm is not free"),
    ({"substrate": SubstrateConfig(type="trl", options={"vllm_mode": "server"})}, "substrate.options.vllm_mode is not free"),
    ({"substrate": SubstrateConfig(type="trl", options={"warmup_steps": 9})}, "substrate.options.warmup_steps is not free"),
    (
        {"substrate": SubstrateConfig(type="trl", options={"scale_rewards": "none"})},
        "substrate.options.scale_rewards is not free",
    ),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_expressed_names_field_and_substrate(given, message):
    with pytest.raises(ConfigError, match=r"substrate(\.type =)? trl") as caught:
        check_substrate(run(**given))
    assert message in caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize("option", ["loss_type", "importance_sampling_level"])
def test_a_word_that_trl_would_read_only_in_the_first_update(option):
    with pytest.raises(ConfigError, match=rf"substrate\.options\.{option} = 'bogus'") as caught:
        check_substrate(run(substrate=SubstrateConfig(type="trl", options={option: "bogus"})))
    assert caught.value.fix


@pytest.mark.parametrize("option", ["data_seed", "eval_on_start", "fp16", "label_smoothing_factor", "neftune_noise_alpha"])
def test_an_option_that_nothing_reads_or_that_changes_the_policy_is_refused(option):
    with pytest.raises(ConfigError, match=rf"substrate\.options\.{option} is not free"):
        check_substrate(run(substrate=SubstrateConfig(type="trl", options={option: 1})))


def test_what_is_off_is_not_refused():
    check_substrate(run(loss=LossConfig(hint=HintConfig(weight=0.0, useful_only=True))))
    check_substrate(run())


@pytest.mark.parametrize(
    ("rlvr", "expected"),
    [
        ({}, {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "importance_sampling_level": "token"}),
        ({"objective": "bnpo"}, {"loss_type": "dapo"}),
        (
            {"objective": "gspo"},
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        ),
        ({"objective": "cispo"}, {"loss_type": "cispo", "epsilon_high": 5.0}),
        ({"kl_beta": 0.1}, {"beta": 0.1, "use_bias_correction_kl": False}),
    ],
)
def test_the_loss_in_trl_s_words(rlvr, expected):
    found = grpo_options(run(loss=LossConfig(rlvr=RlvrConfig(**rlvr))), HERE)
    assert {name: found[name] for name in expected} == expected


def test_a_step_is_one_generation_and_options_come_last():
    options = {"loss_type": "sapo"}
    found = grpo_options(run(substrate=SubstrateConfig(type="trl", options=options)), HERE)
    assert found["per_device_train_batch_size"] * found["gradient_accumulation_steps"] == 64
    assert "steps_per_generation" not in found, "by default it is gradient_accumulation_steps"
    assert found["loss_type"] == "sapo"
    assert found["bf16"] is False


@pytest.mark.parametrize("precision", ["mixed", "bfloat16"])
def test_trl_computes_in_the_precision_of_the_run(precision):
    model = ModelConfig(path="policy", precision=precision)
    config = RunConfig(model=model, tasks=TasksConfig(train=HERE), substrate=SubstrateConfig(type="trl"))
    assert grpo_options(config, HERE)["bf16"] is True


def test_without_trl_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "composer_replication.recipes.trl.composer_trainer", raising=False)
    with pytest.raises(MissingExtraError, match="needs trl") as caught:
        _ = composer_replication.ComposerReplicationTrainer
    assert "composer-replication[trl]" in str(caught.value.fix)
    assert "ComposerReplicationTrainer" not in composer_replication.__all__, "`import *` works without extras"


def trajectory(i: int) -> Trajectory:
    turn = Turn(action_ids=(10 + i, 20 + i), logprobs=(-1.0, -1.0), text="")
    return Trajectory(
        trajectory_id=f"1/t/{i}",
        task_id="t",
        policy_version=0,
        messages=(),
        tools=(),
        prompt_ids=(1, 2, 3),
        turns=(turn,),
        stop_reason=StopReason.SUBMITTED,
        temperature=1.0,
        reward=1.0,
    )


def hint(i: int, *extra: int) -> HintedTurn:
    teacher = (1, 2, *extra, 3, 10 + i, 20 + i)
    return HintedTurn(
        trajectory_id=f"1/t/{i}",
        turn=0,
        student_start=3,
        teacher_ids=teacher,
        teacher_start=len(teacher) - 2,
        action_ids=(10 + i, 20 + i),
    )


def test_rows_in_any_order_and_cut_hold_the_same_hints_and_pairs():
    hinted = [hint(2, 7), hint(0, 8, 9), hint(2, 5, 6, 4)]
    pairs = [Pair(pair_id=str(i), prompt_ids=(1,), chosen_ids=(2, i), rejected_ids=(3,), confidence=0.5) for i in range(7)]
    whole = collate([trajectory(i) for i in range(4)], None, hinted, pairs, pad_id=0)
    rows = spread(whole, 4)
    assert {len(value) for value in rows.values() if value.dim()} == {4}
    order = torch.tensor([2, 0, 3, 1])
    shuffled = {key: value[order] if value.dim() else value for key, value in rows.items()}
    taught, paired = [], []
    for part in (slice(0, 2), slice(2, 4)):
        found = gathered({key: value[part] if value.dim() else value for key, value in shuffled.items()})
        assert float(found["hint_denominator"]) == 6.0
        assert float(found["replay_denominator"]) == 7.0
        mine = order[part]
        keys = ("student_row", "ctx_teacher_input_ids", "ctx_teacher_attention_mask")
        for row, ids, mask in zip(*(found.get(key, ()) for key in keys), strict=True):
            taught.append((int(mine[row]), tuple(ids[mask != 0].tolist())))
        paired += found.get("dpo_chosen_input_ids", torch.zeros(0, 3))[:, -1].tolist()
    assert sorted(taught) == sorted((int(h.trajectory_id[-1]), h.teacher_ids) for h in hinted)
    assert sorted(paired) == list(range(7))


def test_a_batch_without_hints_and_pairs_adds_nothing():
    assert spread(collate([trajectory(0)], None, pad_id=0), 1) == {}
    assert gathered({PREFIX + "hint_denominator": torch.tensor(2.0)}) == {"hint_denominator": torch.tensor(2.0)}
