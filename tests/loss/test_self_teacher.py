from __future__ import annotations

import copy

import pytest
import torch

from composer_replication.distillation import EMATeacher, make_self_teacher
from composer_replication.loss.forward import evaluating
from composer_replication.types.errors import CheckpointError

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=MASK).logits


def taught(teacher, model):
    """The teacher's logits as the hint channel reads them."""
    with torch.no_grad():
        logits = []
        for part in teacher.parts(model):
            with evaluating(part.model), part.context():
                logits.append(part.share * part.model(input_ids=IDS, attention_mask=MASK).logits)
        return torch.stack(logits).sum(0)


def step(model):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))


@pytest.mark.parametrize("kind", ["live", "frozen", "ema", "trust_region"])
def test_starts_as_the_student_and_has_no_gradient(model, kind):
    teacher = make_self_teacher(kind, model)
    got = taught(teacher, model)
    torch.testing.assert_close(got, logits_of(model))
    assert not got.requires_grad


def test_what_each_kind_does_after_a_step(model):
    torch.manual_seed(0)
    before = logits_of(model)
    start = copy.deepcopy(model)
    teachers = {kind: make_self_teacher(kind, model, rate=0.25) for kind in ("live", "frozen", "ema", "trust_region")}
    step(model)
    for teacher in teachers.values():
        teacher.update(model)
    after = logits_of(model)
    assert not torch.allclose(before, after)
    average = copy.deepcopy(start)
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters(), strict=True):
            a.copy_(0.75 * a + 0.25 * p)
    expected = {"live": after, "frozen": before, "ema": logits_of(average), "trust_region": 0.75 * before + 0.25 * after}
    for kind, teacher in teachers.items():
        torch.testing.assert_close(taught(teacher, model), expected[kind], rtol=1e-4, atol=1e-4)


def test_training_the_student_never_touches_a_frozen_copy(model):
    teacher = make_self_teacher("frozen", model)
    before = taught(teacher, model).clone()
    model(input_ids=IDS).logits.sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert torch.equal(taught(teacher, model), before)


def test_dropout_is_off_for_the_teacher_and_modes_come_back(model):
    dropout = torch.nn.Dropout(0.5)
    model.model.embed_tokens = torch.nn.Sequential(model.model.embed_tokens, dropout)
    model.train()
    model.lm_head.eval()
    live = make_self_teacher("live", model)
    assert torch.equal(taught(live, model), taught(live, model))
    assert model.training
    assert dropout.training
    assert not model.lm_head.training


def test_ema_of_a_half_precision_model_is_kept_in_float32(new_model):
    student = new_model(dtype=torch.bfloat16)
    teacher = EMATeacher(student, rate=0.001)
    before = taught(teacher, student).clone()
    assert before.dtype == torch.float32
    step(student)
    for _ in range(3):
        teacher.update(student)
    assert not torch.equal(taught(teacher, student), before)


@pytest.mark.parametrize("kind", ["live", "frozen", "ema", "trust_region"])
def test_state_round_trip(model, new_model, kind):
    torch.manual_seed(1)
    teacher = make_self_teacher(kind, model)
    step(model)
    teacher.update(model)
    expected = taught(teacher, model)
    state = copy.deepcopy(teacher.state_dict())
    start = new_model(99) if kind in ("live", "ema") else new_model()  # a frozen copy is made again from where the run began
    resumed = make_self_teacher(kind, start)
    resumed.load_state_dict(state)
    assert torch.equal(taught(resumed, model), expected)
    if kind in ("frozen", "trust_region"):
        assert "model" not in state
        with pytest.raises(CheckpointError, match=f"the {kind} self-teacher of the checkpoint has other weights"):
            make_self_teacher(kind, new_model(99)).load_state_dict(state)
        with pytest.raises(CheckpointError, match="other weights"):
            make_self_teacher(kind, start).load_state_dict({"kind": kind})  # without norms


def test_a_checkpoint_of_another_kind_is_refused(model):
    state = make_self_teacher("live", model).state_dict()
    with pytest.raises(CheckpointError, match=r"'live'.*'ema'"):
        make_self_teacher("ema", model).load_state_dict(state)


def test_bad_arguments_raise(model):
    with pytest.raises(ValueError, match="unknown self-teacher"):
        make_self_teacher("dead", model)
    for kind in ("ema", "trust_region"):
        with pytest.raises(ValueError, match="rate"):
            make_self_teacher(kind, model, rate=0.0)
