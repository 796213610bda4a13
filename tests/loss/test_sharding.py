"""One optimizer step, however it is cut: into micro-batches, between processes, with weights in pieces."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from ranks import in_trouble, mixed, on_ranks, refused, step, teach_twice

from composer_replication.config import HintConfig, LossConfig, ReplayConfig, RlvrConfig
from composer_replication.distillation import make_self_teacher
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.forward import enable_checkpointing, update_mode, weights_digest
from composer_replication.loss.micro_batches import split

ALL_ON = {"alpha_sdpo": 0.5, "beta_replay": 0.3}
GSPO = {"options": LossConfig(rlvr=RlvrConfig(objective="gspo"), hint=HintConfig(weight=0.5), replay=ReplayConfig(weight=0.3))}
ROUNDING = {"rtol": 1e-9, "atol": 1e-12}
"""For float64 models: only the order of additions differs."""


@pytest.fixture
def batch(new_maker):
    return collate(*new_maker(0).everything(), pad_id=0)


def alone(model, batch, options, teacher="live"):
    """The weights after one step of SGD by one process with the whole batch."""
    model = copy.deepcopy(model)
    compose_loss(model, batch, **options, self_teacher=make_self_teacher(teacher, model)).total.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def assert_same_step(seen, model, expected):
    """On every rank, from weights that have all moved; by the same passes on one as on the other, all of them by the wrapper."""
    for rank in seen:
        assert rank["weights"].keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(rank["weights"][name], value, **ROUNDING)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.detach(), expected[name]) != parameter.requires_grad
    assert seen[0]["passes"] == seen[1]["passes"]
    assert all(rank["through_wrapper"] == len(rank["passes"]) for rank in seen)


WRAPPERS = ["ddp", "ddp, unused", "ddp, static", "fsdp2", "fsdp2, root only", "fsdp2, resharded"]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("how", WRAPPERS)
def test_two_ranks_take_the_step_of_one(new_model, batch, tmp_path, how, tied):
    """Of five rows in parts of two, one rank has rows 0, 1 and 4, the other 2 and 3 and then none."""
    model = new_model(dtype=torch.float64, tied=tied)
    seen = on_ranks(tmp_path, step, model, batch, how, 2, ALL_ON)
    assert_same_step(seen, model, alone(model, batch, ALL_ON))
    assert all(loss["fallbacks"] == {} for rank in seen for loss in rank["losses"])
    assert sum(loss["total"] for rank in seen for loss in rank["losses"]) == pytest.approx(
        compose_loss(model, batch, **ALL_ON).total.item(), rel=1e-9
    )


LACKING = {
    "hint": lambda rows, advantages, hints, pairs: (rows, advantages, hints, pairs),
    "hint rlvr": lambda rows, advantages, hints, pairs: (rows, [*advantages[:3], None, None], hints, pairs),
    "hint replay": lambda rows, advantages, hints, pairs: (rows, advantages, hints, pairs[:1]),
    "hint replay rlvr": lambda rows, advantages, hints, pairs: (rows[:3], advantages[:3], hints, pairs),
    "hint rlvr, as the other": lambda rows, advantages, hints, pairs: ([], [], [], 2 * pairs),
}
"""Channels that the second rank has nothing for, and what is left of a batch then."""


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("how", ["ddp", "fsdp2, resharded"])
def test_a_rank_without_inputs_makes_the_passes_of_the_other(new_model, new_maker, tmp_path, how, lacking):
    """The first rank has rows 0 to 2 and all hints, the second rows 3 and 4."""
    model = new_model(dtype=torch.float64, tied=False)
    batch = collate(*LACKING[lacking](*new_maker(0).everything()), pad_id=0)
    seen = on_ranks(tmp_path, step, model, batch, how, 3, ALL_ON)
    assert_same_step(seen, model, alone(model, batch, ALL_ON))
    assert " ".join(sorted(seen[1]["losses"][0]["off"])) == lacking.partition(",")[0]
    for rank in range(2):
        (loss,), (part,) = seen[rank]["losses"], mixed(batch, 3, rank=rank, ranks=2)
        by_itself = compose_loss(model, part, **ALL_ON)
        assert loss["off"] == by_itself.off
        assert loss["metrics"] == pytest.approx(by_itself.metrics, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        GSPO,
        ALL_ON | {"dpo_variant": "simpo", "sdpo_wrapper": "taid", "taid_t": 0.6},
        {"alpha_sdpo": 1.0},
        {"beta_replay": 1.0},
        {},
    ],
    ids=str,
)
def test_every_combination_of_channels(new_model, batch, tmp_path, options):
    model = new_model(dtype=torch.float64, tied=False)
    seen = on_ranks(tmp_path, step, model, batch, "fsdp2, resharded", 1, options)
    assert_same_step(seen, model, alone(model, batch, options))


def test_a_head_that_is_sharded_apart_keeps_its_own_logits(new_model, batch, tmp_path):
    model = new_model(dtype=torch.float64, tied=False)
    seen = on_ranks(tmp_path, step, model, batch, "fsdp2, head apart", 2, ALL_ON)
    assert_same_step(seen, model, alone(model, batch, ALL_ON))
    said = [loss["fallbacks"] for rank in seen for loss in rank["losses"]]
    assert said == [{"head": "FSDP2 shards its output head apart from the whole model"}] * 4


def test_fsdp1_is_refused_before_ranks_wait_for_each_other(new_model, batch, tmp_path):
    assert all("fully_shard" in said for said in on_ranks(tmp_path, refused, new_model(), batch))


def test_the_error_of_one_rank_ends_the_other(tmp_path):
    with pytest.raises(torch.multiprocessing.ProcessRaisedException):  # its own or the other's, who lost it
        on_ranks(tmp_path, in_trouble)


@pytest.mark.parametrize("how", ["ddp", "fsdp2, resharded"])
def test_layers_that_are_computed_again(new_model, batch, tmp_path, how):
    model = new_model(dtype=torch.float64, tied=False)
    seen = on_ranks(tmp_path, step, model, batch, how, 3, ALL_ON, "live", True)
    enable_checkpointing(model)
    update_mode(model)
    assert_same_step(seen, model, alone(model, batch, ALL_ON))
    assert all(loss["fallbacks"] == {} for rank in seen for loss in rank["losses"])


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("how", ["ddp", "fsdp2", "fsdp2, resharded"])
def test_adapters_and_the_model_beneath_them(new_model, batch, tmp_path, how):
    """The self-teacher is the wrapped model itself with its adapters off, also while the weights are in pieces."""
    torch.manual_seed(0)
    options = LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    model = get_peft_model(new_model(dtype=torch.float64, tied=False), options).double()
    seen = on_ranks(tmp_path, step, model, batch, how, 3, ALL_ON, "frozen")
    assert_same_step(seen, model, alone(model, batch, ALL_ON, "frozen"))


@pytest.mark.parametrize("kind", ["ema", "trust_region", "frozen"])
def test_a_copy_made_before_sharding_follows_and_teaches_after_it(new_model, batch, tmp_path, kind):
    model = new_model(dtype=torch.float64, tied=False)
    seen = on_ranks(tmp_path, teach_twice, model, batch, kind)
    student = copy.deepcopy(model)
    teacher = make_self_teacher(kind, student, rate=0.3)
    losses = []
    for _ in range(2):
        loss = compose_loss(student, batch, alpha_sdpo=1.0, self_teacher=teacher)
        losses.append(loss.sdpo_jsd.item())
        loss.total.backward()
        with torch.no_grad():
            for parameter in student.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        teacher.update(student)
    for rank in seen:
        assert rank["losses"] == pytest.approx(losses, rel=1e-9)
        assert rank["digests"] == [weights_digest(model)] * 2
        for name, value in teacher.parts(student)[0].model.state_dict().items():
            torch.testing.assert_close(rank["weights"][name], value, **ROUNDING)
    assert all("before `fully_shard`" in rank["too late"] for rank in seen)


@pytest.mark.parametrize(
    "options",
    [
        LossConfig(hint=HintConfig(weight=0.5), replay=ReplayConfig(weight=0.3)),
        LossConfig(hint=HintConfig(weight=0.5, form="entropy_opd"), replay=ReplayConfig(weight=0.3)),
        LossConfig(
            rlvr=RlvrConfig(objective="gspo"), hint=HintConfig(weight=0.5), replay=ReplayConfig(weight=0.3, variant="simpo")
        ),
    ],
    ids=["plain", "entropy_opd", "gspo, simpo"],
)
def test_micro_batches_of_any_size_give_one_gradient(new_model, new_maker, options):
    model, maker = new_model(dtype=torch.float64), new_maker(4)
    rows = [maker.trajectory(f"t{i}", turns=1 + i % 3) for i in range(8)]
    hints = [maker.hint(rows[i], 0) for i in (0, 1, 5, 7)]
    batch = collate(rows, [0.7, -1.2, 0.3, None, 1.1, -0.4, 0.9, -0.2], hints, [maker.pair(f"p{i}") for i in range(5)], pad_id=0)

    def gradient(parts):
        total = sum(compose_loss(model, part, options).total for part in parts)
        return torch.autograd.grad(total, list(model.parameters()))

    whole = gradient([batch])
    assert all(x.abs().max() > 1e-6 for x in whole)
    cuts = [split(batch, tokens) for tokens in (10**6, 100, 50, 1)] + [mixed(batch, size) for size in (8, 3)]
    assert [len(parts) for parts in cuts[:1]] + [len(cuts[3])] == [2, 13]
    for parts in cuts:
        for cut, expected in zip(gradient(parts), whole, strict=True):
            torch.testing.assert_close(cut, expected, **ROUNDING)
