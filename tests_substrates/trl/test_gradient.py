"""The trainer's gradient is that of `compose_loss`, whatever carries the batch to it."""

from __future__ import annotations

from dataclasses import replace

import fixed
import one_gradient
import pytest
import torch
from one_gradient import LOSS, relative_error

from composer_replication.config import (
    HintConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    ReplayConfig,
    RlvrConfig,
    RolloutConfig,
    RunConfig,
    TasksConfig,
)
from composer_replication.loss.batch import collate
from composer_replication.recipes.trl import composer_trainer
from composer_replication.recipes.trl.options import grpo_options

CLOSE = 1e-5
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo")


@pytest.fixture(scope="module")
def case():
    return one_gradient.case()


@pytest.mark.parametrize("ga", [1, 2, 4])
def test_one_gradient(case, tmp_path, ga):
    trainer, look = fixed.make_trainer(case, tmp_path, ga=ga)
    trainer.train()
    assert relative_error(look.found, one_gradient.local_gradient(case)) < CLOSE
    for name in ("hint/loss", "hint/jsd/mean", "replay/loss", "replay/accuracy", "rlvr/loss"):
        assert look.logs[name] != 0, name
    assert look.logs["hint/tokens"] == sum(len(h.action_ids) for h in case.hinted)
    assert look.logs["replay/pairs"] == len(case.pairs)
    weighted = look.logs["rlvr/loss"] + 0.7 * look.logs["hint/loss"] + 0.4 * look.logs["replay/loss"]
    assert look.logs["loss"] == pytest.approx(weighted, rel=1e-5)


def test_the_student_is_read_once(case, tmp_path, monkeypatch):
    """TRL's own forward pass serves the hint channel; where it cannot, the gradient is the same and the rows are read again."""
    passes = []

    def count(trainer):
        trainer.model.base_model.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
        trainer.train()
        return passes.count(True), passes.clear()

    hints_only = LossConfig(rlvr=LOSS.rlvr, hint=LOSS.hint, replay=ReplayConfig(weight=0.0))
    trainer, look = fixed.make_trainer(case, tmp_path / "shared", channels=hints_only)
    assert count(trainer)[0] == 1
    monkeypatch.setattr(composer_trainer, "overheard", lambda model: _nothing())
    trainer, again = fixed.make_trainer(case, tmp_path / "again", channels=hints_only)
    assert count(trainer)[0] == 2
    assert relative_error(again.found, look.found) < CLOSE


class _nothing:  # noqa: N801 - stands for a function
    def __enter__(self):
        return []

    def __exit__(self, *_):
        return None


@pytest.mark.parametrize("objective", ["grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo"])
def test_every_objective_of_a_run_file(case, tmp_path, objective):
    """With one trajectory unscored, which is in no denominator."""
    loss = LossConfig(
        rlvr=RlvrConfig(objective=objective, epsilon_low=None, epsilon_high=None), hint=LOSS.hint, replay=LOSS.replay
    )
    run = RunConfig(
        model=ModelConfig(path="policy"),
        tasks=TasksConfig(train=tmp_path),
        loss=loss,
        rollout=RolloutConfig(groups=2, group_size=2, trajectory_tokens=20, context_tokens=100),
        optimizer=OptimizerConfig(micro_batch_tokens=200, max_grad_norm=1e9),
    )
    keep = ("loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "max_completion_length", "beta")
    config = {name: value for name, value in grpo_options(run, tmp_path).items() if name in keep}
    trainer, look = fixed.make_trainer(case, tmp_path, ga=2, channels=loss, config=config)
    trainer.train()
    batch = collate(case.trajectories, case.advantages, case.hinted, case.pairs, pad_id=0, objective=objective, max_tokens=20)
    own = fixed.own_gradient(case, batch, objective=objective, epsilon_low=None, epsilon_high=None)
    assert relative_error(look.found, own) < CLOSE


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_type_of_trl_has_the_channels_beside_it(case, tmp_path, loss_type):
    config = {"loss_type": loss_type, "importance_sampling_level": "sequence" if loss_type == "luspo" else "token"}
    off = LossConfig(rlvr=LOSS.rlvr, hint=HintConfig(weight=0.0), replay=ReplayConfig(weight=0.0))
    alone, stock = fixed.make_trainer(case, tmp_path / "alone", ga=2, channels=off, config=config)
    alone.train()
    both, look = fixed.make_trainer(case, tmp_path / "both", ga=2, config=config)
    both.train()
    extra = {key: value for key, value in case.batch.items() if key not in ("response_mask", "rlvr_weights", "advantages")}
    expected = fixed.own_gradient(case, extra)
    added = {name: look.found[name] - stock.found[name] for name in expected}
    assert relative_error(added, expected) < 1e-4
    assert any(float(g.abs().max()) > 0 for g in stock.found.values())


@pytest.mark.parametrize("kind", ["tis", "icepop"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("ga", [1, 2])
def test_importance_correction(case, tmp_path, kind, level, ga):
    """The recorded log-probs are up to 0.4 nats off: weights cut at 1.2, or tokens or rows outside [0.5, 1.2] left out."""
    rlvr = RlvrConfig(
        objective="dapo", epsilon_low=0.2, epsilon_high=0.28, importance=kind, importance_level=level,
        importance_high=1.2, **({"importance_low": 0.5} if kind == "icepop" else {}),
    )  # fmt: skip
    trainer, look = fixed.make_trainer(case, tmp_path, ga=ga, channels=LossConfig(rlvr=rlvr, hint=LOSS.hint, replay=LOSS.replay))
    trainer.train()
    batch = {**case.batch, "sampler_logprobs": case.batch["old_logprobs"]}
    del batch["old_logprobs"]
    low = {"importance_low": 0.5} if kind == "icepop" else {}
    own = fixed.own_gradient(case, batch, importance=kind, importance_level=level, importance_high=1.2, **low)
    assert relative_error(look.found, own) < CLOSE
    assert relative_error(look.found, one_gradient.local_gradient(case)) > 0.01, "the weights matter"
    assert 0 < look.logs["rlvr/importance/mean"] <= look.logs["rlvr/importance/max"] <= 1.2 + 1e-6


def test_log_probs_of_another_policy_are_not_ignored(case, tmp_path):
    """TRL alone takes such rollouts for its own: then every ratio is 1."""
    given, ours = fixed.make_trainer(case, tmp_path / "given")
    given.train()
    without, blind = fixed.make_trainer(case, tmp_path / "without", rollout_func=fixed.rollouts(case, logprobs=False))
    without.train()
    assert relative_error(blind.found, ours.found) > 0.01
    on_policy = {key: value for key, value in case.batch.items() if key != "old_logprobs"}
    assert relative_error(blind.found, fixed.own_gradient(case, on_policy)) < CLOSE


def test_a_token_without_a_log_prob_leaves_numerator_and_denominator(case, tmp_path):
    first, *others = case.trajectories
    turn = replace(first.turns[0], logprobs=(float("nan"), *first.turns[0].logprobs[1:]))
    broken = replace(first, turns=(turn, *first.turns[1:]))
    groups = [replace(case.groups[0], trajectories=(broken, others[0])), case.groups[1]]
    case = replace(case, groups=groups)
    trainer, look = fixed.make_trainer(case, tmp_path, ga=2)
    trainer.train()
    assert relative_error(look.found, one_gradient.local_gradient(case)) < CLOSE


@pytest.mark.parametrize("objective", ["dapo", "grpo", "dr_grpo"])
def test_kl_to_the_reference(case, tmp_path, objective):
    """The reference is the policy's start, so the term is 0 and so is its gradient; a moved policy has another. A trajectory that
    is not scored is in no denominator here either."""
    config = {"beta": 0.3, "use_bias_correction_kl": False, "loss_type": objective, "max_completion_length": 20}
    policy = case.save(tmp_path / "reference")
    trainer, look = fixed.make_trainer(case, tmp_path, ga=2, config=config)
    assert trainer.ref_model is not None
    trainer.ref_model.load_state_dict(type(case.model).from_pretrained(policy).state_dict())
    with torch.no_grad():
        trainer.ref_model.lm_head.weight.mul_(1.1)
    trainer.train()
    from composer_replication.loss import sequence_logprobs

    batch = collate(case.trajectories, case.advantages, case.hinted, case.pairs, pad_id=0, objective=objective, max_tokens=20)
    with torch.no_grad():
        reference = sequence_logprobs(trainer.ref_model, batch["input_ids"], batch["attention_mask"], batch["response_mask"])
    own = fixed.own_gradient(case, {**batch, "ref_logprobs": reference}, kl_beta=0.3)
    assert relative_error(look.found, own) < CLOSE
    assert trainer.beta == 0.3


@pytest.mark.parametrize(("ga", "per_generation"), [(1, 2), (4, 2)])
def test_a_generation_for_several_steps_or_several_for_one(case, tmp_path, ga, per_generation):
    """The logged parts still add up to the loss."""
    config = {"gradient_accumulation_steps": ga, "steps_per_generation": per_generation, "per_device_train_batch_size": 2}
    trainer, look = fixed.make_trainer(case, tmp_path, config={**config, "max_steps": 2, "num_iterations": 1})
    trainer.train()
    for name in ("rlvr/loss", "replay/loss"):
        assert look.logs[name] != 0, name
    weighted = look.logs["rlvr/loss"] + 0.7 * look.logs["hint/loss"] + 0.4 * look.logs["replay/loss"]
    assert look.logs["loss"] == pytest.approx(weighted, rel=1e-5)
    assert look.logs["replay/pairs"] == len(case.pairs), "each once in a step"
