"""peft models: only adapters learn, the head that is frozen costs three products, and the model beneath teaches."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model, inject_adapter_in_model

from composer_replication.config import HintConfig, LossConfig, ReplayConfig, RlvrConfig
from composer_replication.distillation import (
    AdapterEMATeacher,
    AdaptersOffTeacher,
    EMATeacher,
    FrozenTeacher,
    TrustRegionTeacher,
    make_self_teacher,
)
from composer_replication.kernels import one_pass
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.forward import set_compute_dtype
from composer_replication.types.errors import CheckpointError, ModelError

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
GSPO = LossConfig(rlvr=RlvrConfig(objective="gspo"), hint=HintConfig(weight=0.0), replay=ReplayConfig(weight=0.0))
ALL_ON = {"alpha_sdpo": 0.5, "beta_replay": 0.3, "strict": True}
LAYERS = ["q_proj", "v_proj", "down_proj"]


@pytest.fixture
def batch(new_maker):
    return collate(*new_maker(0).everything(), pad_id=0)


@pytest.fixture
def new_lora(new_model):
    """Factory: a float64 model whose adapters have learnt something."""

    def make(targets=LAYERS):
        model = new_model(dtype=torch.float64, tied=False)
        torch.manual_seed(1)
        return get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False)).double()

    return make


@pytest.mark.parametrize("targets", [LAYERS, [*LAYERS, "embed_tokens"], [*LAYERS, "lm_head"]], ids=str)
def test_only_adapters_have_gradients_and_the_loss_is_that_of_the_merged_model(new_lora, batch, targets):
    model = new_lora(targets)
    loss = compose_loss(model, batch, **ALL_ON)
    loss.total.backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {
        name for name, p in model.named_parameters() if "lora_" in name
    }
    assert all(p.grad.abs().max() > 0 for p in model.parameters() if p.grad is not None)
    merged = compose_loss(copy.deepcopy(model).merge_and_unload(), batch, **ALL_ON)
    torch.testing.assert_close(loss.total, merged.total, rtol=1e-6, atol=1e-9)
    on_the_head = {"head": "its output head is a peft.tuners.lora.layer.Linear, not a plain linear layer"}
    assert loss.fallbacks == (on_the_head if "lm_head" in targets else {})


@pytest.mark.parametrize(
    ("options", "products"),
    [({}, 2), ({"options": GSPO}, 3), ({"alpha_sdpo": 1.0}, 2 + 3 + 1), ({"beta_replay": 1.0}, 2 + 3)],
    ids=str,
)
def test_the_weight_of_a_frozen_head_costs_nothing(new_lora, batch, monkeypatch, options, products):
    """Student, teacher and the hidden states' gradient for a divergence; a projection and that gradient for log-probs, with one
    more projection where the derivative is known late, and one for the teacher's entropy over a few rows."""
    formed, real = [], one_pass._mm
    monkeypatch.setattr(one_pass, "_mm", lambda a, b, *, out: formed.append(b.shape) or real(a, b, out=out))
    monkeypatch.setattr(one_pass, "_add_outer", lambda *_: pytest.fail("the gradient of a frozen weight was formed"))
    compose_loss(new_lora(), batch, **options).total.backward()
    assert len(formed) == products


def test_adapters_that_come_later_are_seen(new_model, batch):
    model = new_model(tied=False)
    assert compose_loss(model, batch, **ALL_ON).fallbacks == {}
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["lm_head"]), model)
    assert "peft" in compose_loss(model, batch, **ALL_ON).fallbacks["head"]


def test_adapters_that_add_tokens_are_refused(new_model, batch):
    model = get_peft_model(new_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(ModelError, match=r"reads 6 tokens where it is given 3(.|\n)*such as LoRA"):
        compose_loss(model, batch)


# --- the model beneath as the teacher ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", ["none", "taid"])
def test_the_frozen_teacher_is_the_model_without_its_adapters(new_lora, batch, wrapper):
    model = new_lora()
    teacher = make_self_teacher("frozen", model)
    assert isinstance(teacher, AdaptersOffTeacher)
    assert [part.model for part in teacher.parts(model)] == [model]  # no copy
    beneath = FrozenTeacher(copy.deepcopy(model).unload())
    adapters = [p for p in model.parameters() if p.requires_grad]
    found = []
    for one in (teacher, beneath, None):
        loss = compose_loss(
            model, batch, **ALL_ON, self_teacher=one, sdpo_wrapper=wrapper, taid_t=0.6 if wrapper == "taid" else None
        )
        found.append((loss.sdpo_jsd, torch.autograd.grad(loss.total, adapters)))
    (ours, gradients), (expected, expected_gradients), (live, _) = found
    torch.testing.assert_close(ours, expected)
    for a, b in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(a, b)
    assert abs(ours - live) > 1e-2


def test_what_can_be_trained_stays_so(new_lora):
    """peft thaws every adapter when it switches them on again, and freezes them while they are off."""
    model = new_lora()
    next(p for p in model.parameters() if p.requires_grad).requires_grad_(False)
    before = [p.requires_grad for p in model.parameters()]
    (part,) = make_self_teacher("frozen", model).parts(model)
    with part.context():
        assert [p.requires_grad for p in model.parameters()] == before
    assert [p.requires_grad for p in model.parameters()] == before
    with pytest.raises(RuntimeError, match="in the middle"), part.context():
        raise RuntimeError("in the middle")
    assert [p.requires_grad for p in model.parameters()] == before


def test_state(new_lora):
    model = new_lora()
    teacher = make_self_teacher("frozen", model)
    teacher.update(model)
    make_self_teacher("frozen", model).load_state_dict(teacher.state_dict())
    with pytest.raises(CheckpointError, match=r"'adapters_off'.*'frozen'"):
        FrozenTeacher(model).load_state_dict(teacher.state_dict())
    with pytest.raises(CheckpointError, match=r"'ema'.*'adapters_off'"):
        teacher.load_state_dict(EMATeacher(model).state_dict())


# --- averages and mixtures of adapters --------------------------------------------------------------------------------


def hint_part(model, batch, teacher):
    loss = compose_loss(model, batch, alpha_sdpo=1.0, self_teacher=teacher)
    return loss.sdpo_jsd, torch.autograd.grad(loss.total, [p for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("computed", [None, torch.bfloat16], ids=str)
def test_an_average_of_adapters_teaches_as_a_model_with_them(new_lora, batch, computed):
    """Under autocast too, which keeps casts of weights and does not see that others are lent."""
    model = new_lora()
    if computed is not None:
        model = model.float()
        set_compute_dtype(model, computed)
    teacher = make_self_teacher("ema", model, rate=0.25)
    assert isinstance(teacher, AdapterEMATeacher)
    averaged = copy.deepcopy(model)
    for _ in range(3):
        with torch.no_grad():
            for parameter in (p for p in model.parameters() if p.requires_grad):
                parameter.mul_(1.3)
            for average, now in zip(averaged.parameters(), model.parameters(), strict=True):
                average.lerp_(now, 0.25)
        teacher.update(model)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    (found, gradients), (expected, expected_gradients) = (hint_part(model, batch, t) for t in (teacher, FrozenTeacher(averaged)))
    close = {} if computed is None else {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(found, expected, **close)
    assert abs(hint_part(model, batch, None)[0] - found) > 0.1 * found, "a live teacher says something else"
    for a, b in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(a, b, **close)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters()), "they were lent"
    again = make_self_teacher("ema", model, rate=0.25)
    assert abs(hint_part(model, batch, again)[0] - found) > 1e-3
    again.load_state_dict(teacher.state_dict())
    assert hint_part(model, batch, again)[0] == found


def test_a_trust_region_of_adapters_is_that_of_a_copy(new_lora, batch):
    model = new_lora()
    teacher = make_self_teacher("trust_region", model, rate=0.3)
    assert [part.model for part in teacher.parts(model)] == [model, model]
    beneath = TrustRegionTeacher(copy.deepcopy(model).unload(), rate=0.3)
    (found, gradients), (expected, expected_gradients) = (hint_part(model, batch, t) for t in (teacher, beneath))
    torch.testing.assert_close(found, expected)
    for a, b in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(a, b)
