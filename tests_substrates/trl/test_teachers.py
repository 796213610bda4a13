"""Self-teachers, adapters, and what is refused."""

from __future__ import annotations

import math
import shutil

import fixed
import one_gradient
import pytest
import torch
from one_gradient import LOSS, relative_error
from peft import LoraConfig

from composer_replication.config import HintConfig, LossConfig, ReplayConfig, RlvrConfig
from composer_replication.distillation import AdapterEMATeacher, AdaptersOffTeacher, EMATeacher, FrozenTeacher
from composer_replication.types.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def case():
    return one_gradient.case()


def channels(**hint):
    return LossConfig(rlvr=LOSS.rlvr, hint=HintConfig(**{**LOSS.hint.model_dump(exclude_unset=True), **hint}), replay=LOSS.replay)


def test_a_frozen_teacher_stays(case, tmp_path):
    """TRL patches its model's forward; a copy that kept the patch would read by the student's weights."""
    trainer, _ = fixed.make_trainer(case, tmp_path)
    assert isinstance(trainer.self_teacher, FrozenTeacher)
    (part,) = trainer.self_teacher.parts(trainer.model)
    ids = torch.tensor([[5, 6, 7]])
    before = part.model(input_ids=ids).logits.detach().clone()
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(1.0)
    assert torch.equal(part.model(input_ids=ids).logits, before)
    assert "forward" in vars(trainer.model)


def test_an_average_follows_and_is_in_the_checkpoint(case, tmp_path):
    given = {
        "channels": channels(self_teacher="ema", rate=0.5),
        "config": {"save_strategy": "steps", "save_steps": 1, "max_steps": 2},
    }
    trainer, _ = fixed.make_trainer(case, tmp_path, **given)
    assert isinstance(trainer.self_teacher, EMATeacher)
    start = {k: v.clone() for k, v in trainer.self_teacher.state_dict()["model"].items()}
    trainer.train()
    moved = trainer.self_teacher.state_dict()["model"]
    assert any(not torch.equal(start[k], moved[k]) for k in start)

    again, look = fixed.make_trainer(case, tmp_path, **given)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
    assert look.found, "one step was left"
    for key, value in again.self_teacher.state_dict()["model"].items():
        assert torch.equal(value, moved[key]), key


def test_the_checkpoint_that_is_named_is_the_one_that_is_read(case, tmp_path):
    """Not the one of the same step below `output_dir`."""
    given = {
        "channels": channels(self_teacher="ema", rate=0.5),
        "config": {"save_strategy": "steps", "save_steps": 1, "max_steps": 2},
    }
    trainer, _ = fixed.make_trainer(case, tmp_path, **given)
    trainer.train()
    moved = {k: v.clone() for k, v in trainer.self_teacher.state_dict()["model"].items()}
    beside, other = tmp_path / "out" / "checkpoint-1", tmp_path / "kept" / "other"
    shutil.copytree(beside, other)
    state = torch.load(beside / "composer.pt", weights_only=True)
    for value in state["self_teacher"]["model"].values():
        value.zero_()
    torch.save(state, beside / "composer.pt")
    shutil.rmtree(tmp_path / "out" / "checkpoint-2")

    found = {}
    for asked in (str(other), other, True):
        again, _ = fixed.make_trainer(case, tmp_path, **given)
        again.train(resume_from_checkpoint=asked)
        found[asked] = again.self_teacher.state_dict()["model"]
        shutil.rmtree(tmp_path / "out" / "checkpoint-2")
    for key, value in moved.items():
        assert torch.equal(found[str(other)][key], value), key
        assert torch.equal(found[other][key], value), key
    assert any(not torch.equal(found[True][key], value) for key, value in moved.items()), "that is the one below output_dir"


def test_a_checkpoint_without_the_average_is_named(case, tmp_path):
    given = {
        "channels": channels(self_teacher="ema", rate=0.5),
        "config": {"save_strategy": "steps", "save_steps": 1, "max_steps": 2},
    }
    trainer, _ = fixed.make_trainer(case, tmp_path, **given)
    trainer.train()
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "out" / "checkpoint-1", other)
    (other / "composer.pt").unlink()
    again, look = fixed.make_trainer(case, tmp_path, **given)
    with pytest.raises(CheckpointError) as refused:
        again.train(resume_from_checkpoint=str(other))
    assert refused.value.message == f"{other / 'composer.pt'} is missing: the self-teacher cannot go on"
    assert not look.found, "no step was taken"


def test_taid_moves_with_the_run(case, tmp_path):
    loss = LossConfig(rlvr=LOSS.rlvr, hint=HintConfig(weight=0.7, form="taid"), replay=LOSS.replay)
    trainer, look = fixed.make_trainer(case, tmp_path, channels=loss, config={"max_steps": 3})
    before = trainer.taid.t
    trainer.train()
    assert trainer.taid.t > before
    assert look.logs["hint/loss"] != 0


@pytest.mark.parametrize("kind", ["frozen", "ema"])
def test_adapters(case, tmp_path, kind):
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    trainer, look = fixed.make_trainer(case, tmp_path, ga=2, channels=channels(self_teacher=kind), peft_config=lora)
    teacher = AdaptersOffTeacher if kind == "frozen" else AdapterEMATeacher
    assert isinstance(trainer.self_teacher, teacher)
    trainer.train()
    assert look.found
    assert all("lora_" in name for name in look.found)
    for name in ("rlvr/loss", "hint/loss", "replay/loss"):
        assert look.logs[name] != 0, name

    whole, single = fixed.make_trainer(case, tmp_path / "one", channels=channels(self_teacher=kind), peft_config=lora)
    whole.train()
    assert relative_error(look.found, single.found) < 1e-4, "however the batch is cut"


def test_pairs_without_reference_get_the_start_s(case, tmp_path):
    from dataclasses import replace

    bare = [replace(pair, ref_chosen_logprob=None, ref_rejected_logprob=None) for pair in case.pairs]
    trainer, look = fixed.make_trainer(case, tmp_path, pairs=bare)
    assert all(pair.ref_chosen_logprob < 0 for pair in trainer.pairs)
    first = sum(p.confidence * (math.log(2) - p.ref_chosen_logprob) for p in trainer.pairs)  # no margin yet, and the anchor
    trainer.train()
    tokens = sum(p.confidence * len(p.chosen_ids) for p in bare)
    assert look.logs["replay/loss"] == pytest.approx(first / tokens, rel=1e-3)


def test_off_by_default_where_nothing_feeds_it(case, tmp_path):
    trainer, look = fixed.make_trainer(case, tmp_path, channels=None, signals=None)
    trainer.train()
    assert trainer.channels.hint.weight == trainer.channels.replay.weight == 0
    assert "hint/loss" not in look.logs


REFUSED = [
    ({"signals": None}, "nothing finds hints"),
    ({"pairs": ()}, "there are no pairs"),
    ({"config": {"mask_truncated_completions": True}}, "mask_truncated_completions"),
    ({"channels": channels(form="taid", beta=0.5), "config": {"max_steps": -1, "num_train_epochs": 1}}, "max_steps"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refusals(case, tmp_path, given, message):
    with pytest.raises(ConfigError, match=message):
        fixed.make_trainer(case, tmp_path, **given)


def test_a_correction_needs_what_was_sampled(case, tmp_path):
    loss = LossConfig(rlvr=RlvrConfig(importance="tis"), hint=HintConfig(weight=0.0), replay=ReplayConfig(weight=0.0))
    trainer, _ = fixed.make_trainer(case, tmp_path, channels=loss, rollout_func=fixed.rollouts(case, logprobs=False))
    with pytest.raises(ConfigError, match="importance = tis needs the log-probs"):
        trainer.train()
