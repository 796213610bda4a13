from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_replication.config import LossConfig
from composer_replication.loss import compose_loss, sequence_logprobs
from composer_replication.loss.batch import build_batch, collate
from composer_replication.loss.micro_batches import split
from composer_replication.types.errors import ModelError

CHANNELS = ("rlvr", "hint", "replay")
WEIGHTS = {"hint": {"weight": 0.5}, "replay": {"weight": 0.3}}
ROUNDING = {"rtol": 1e-9, "atol": 1e-12}
"""For float64 models: only the order of additions differs."""


@pytest.fixture(scope="module")
def model64(new_model):
    return new_model(dtype=torch.float64)


def loss_and_gradients(model, batches, taid_t=None, **channels):
    """`channels`: what differs from WEIGHTS and the defaults, by channel."""
    options = LossConfig.model_validate({name: WEIGHTS.get(name, {}) | channels.get(name, {}) for name in CHANNELS})
    total = sum(compose_loss(model, batch, options, taid_t=taid_t).total for batch in batches)
    return total.detach(), torch.autograd.grad(total, list(model.parameters()))


def assert_same(model, batches, other, **options):
    loss, gradients = loss_and_gradients(model, batches, **options)
    other_loss, other_gradients = loss_and_gradients(model, other, **options)
    torch.testing.assert_close(loss, other_loss, **ROUNDING)
    assert max(g.abs().max() for g in gradients) > 1e-3
    for a, b in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(a, b, **ROUNDING)


# --- invariance ------------------------------------------------------------------------------------------------------

INVARIANCE = settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])


@INVARIANCE
@given(seed=st.integers(0, 10**6), tokens=st.integers(1, 120), objective=st.sampled_from(["grpo", "dr_grpo", "dapo"]))
def test_micro_batches_add_up(model64, new_maker, seed, tokens, objective):
    batch = collate(*new_maker(seed).everything(), pad_id=0, objective=objective, max_tokens=30)
    assert_same(model64, [batch], split(batch, tokens))


@pytest.mark.parametrize(
    "options",
    [
        {"replay": {"variant": "simpo"}},
        {"hint": {"form": "taid"}, "taid_t": 0.6},
        {"hint": {"form": "entropy_opd"}},
        {"hint": {"beta": 0.5}},
    ],
)
@pytest.mark.parametrize("reduction", ["turn", "token"])
def test_micro_batches_add_up_for_every_variant(model64, new_maker, options, reduction):
    batch = collate(*new_maker(1).everything(), pad_id=0, hint_reduction=reduction)
    assert_same(model64, [batch], split(batch, 40), **options)


def test_imitation_micro_batches_add_up(model64, new_maker):
    trajectories, _, hints, pairs = new_maker(2).everything()
    batch = collate(trajectories, None, hints, pairs, pad_id=0)
    assert_same(model64, [batch], split(batch, 60))


def test_split_of_a_split_adds_up(model64, new_maker):
    batch = collate(*new_maker(3).everything(), pad_id=0)
    assert_same(model64, [batch], [part for half in split(batch, 60) for part in split(half, 1)])


@INVARIANCE
@given(seed=st.integers(0, 10**6), order=st.permutations(range(5)))
def test_the_order_of_rows_hints_and_pairs_does_not_count(model64, new_maker, seed, order):
    trajectories, advantages, hints, pairs = new_maker(seed).everything()
    shuffled = collate([trajectories[i] for i in order], [advantages[i] for i in order], hints[::-1], pairs[::-1], pad_id=0)
    assert_same(model64, [collate(trajectories, advantages, hints, pairs, pad_id=0)], [shuffled])


def test_padding_does_not_count(model64, new_maker):
    batch = collate(*new_maker(4).everything(), pad_id=0)
    widened = {}
    for key, value in batch.items():
        filler = 77 if key.endswith("input_ids") else 0
        widened[key] = torch.nn.functional.pad(value, (0, 3), value=filler) if value.dim() == 2 else value
    assert_same(model64, [batch], [widened])
    assert_same(model64, [batch], [collate(*new_maker(4).everything(), pad_id=200)])


def test_whatever_is_masked_has_exactly_no_influence(model64, new_maker):
    """Garbage in every place that no weight selects, with the same ids to read."""
    batch = collate(*new_maker(5).everything(), pad_id=0)
    garbage = dict(batch)
    off = batch["rlvr_weights"] == 0
    for key in ("advantages", "old_logprobs"):
        garbage[key] = torch.where(off, float("nan"), batch[key])
    unselected = batch["sdpo_loss_mask"] == 0
    for key in ("student_response_idx", "teacher_response_idx"):
        garbage[key] = torch.where(unselected, 10**6, batch[key])
    (loss, gradients), (other, others) = (loss_and_gradients(model64, [b]) for b in (batch, garbage))
    assert torch.equal(loss, other)
    assert all(torch.equal(a, b) for a, b in zip(gradients, others, strict=True))


# --- collate ---------------------------------------------------------------------------------------------------------


def test_rows_hold_exactly_what_was_sampled(new_maker):
    trajectories, advantages, hints, _ = new_maker(9).everything()
    batch = collate(trajectories, advantages, hints, pad_id=0)
    for i, (trajectory, advantage) in enumerate(zip(trajectories, advantages, strict=True)):
        ids = trajectory.context_ids(len(trajectory.turns))
        assert batch["input_ids"][i, : len(ids)].tolist() == list(ids)
        assert batch["attention_mask"][i].sum() == len(ids)
        sampled = batch["response_mask"][i].nonzero().flatten()
        assert batch["input_ids"][i, sampled].tolist() == [token for turn in trajectory.turns for token in turn.action_ids]
        assert batch["old_logprobs"][i, sampled].tolist() == pytest.approx(
            [x for turn in trajectory.turns for x in turn.logprobs]
        )
        assert batch["advantages"][i, sampled].tolist() == pytest.approx([advantage or 0.0] * len(sampled))
        elsewhere = batch["response_mask"][i] == 0
        assert not batch["advantages"][i, elsewhere].any()
        assert not batch["old_logprobs"][i, elsewhere].any()
        assert bool(batch["rlvr_weights"][i].any()) == (advantage is not None)
    assert batch["rlvr_denominator"] == sum(
        t.num_sampled_tokens() for t, a in zip(trajectories, advantages, strict=True) if a is not None
    )
    assert batch["hint_denominator"] == sum(len(hint.action_ids) for hint in hints)
    assert batch["dropped_tokens"] == 0


def test_hint_positions_hold_the_same_tokens_on_both_sides(new_maker):
    trajectories, advantages, hints, _ = new_maker(10).everything()
    batch = collate(trajectories, advantages, hints, pad_id=0, hint_reduction="token")
    assert batch["hint_denominator"] == sum(len(h.action_ids) for h in hints)
    for h, hint in enumerate(hints):
        k = batch["sdpo_loss_mask"][h] > 0
        student = batch["input_ids"][batch["student_row"][h], batch["student_response_idx"][h, k]]
        teacher = batch["ctx_teacher_input_ids"][h, batch["teacher_response_idx"][h, k]]
        assert student.tolist() == teacher.tolist() == list(hint.action_ids)


def test_pairs(new_maker):
    maker = new_maker(11)
    pairs = [maker.pair("a"), maker.pair("b")]
    batch = collate([], None, [], pairs, pad_id=0)
    for i, pair in enumerate(pairs):
        response = batch["dpo_rejected_response_mask"][i] != 0
        assert batch["dpo_rejected_input_ids"][i, response].tolist() == list(pair.rejected_ids)
        assert batch["dpo_rejected_attention_mask"][i].sum() == len(pair.prompt_ids + pair.rejected_ids)
    assert batch["dpo_chosen_ref_logprobs"].tolist() == pytest.approx([p.ref_chosen_logprob for p in pairs])
    assert batch["dpo_weights"].tolist() == [p.confidence for p in pairs]
    assert float(batch["replay_denominator"]) == pytest.approx(sum(p.confidence * len(p.chosen_ids) for p in pairs))
    assert "dpo_chosen_ref_logprobs" not in collate([], None, [], [maker.pair("c", reference=False)], pad_id=0)


def test_dr_grpo_denominator(new_maker):
    trajectories, advantages, _, _ = new_maker(12).everything()
    assert collate(trajectories, advantages, pad_id=0, objective="dr_grpo", max_tokens=64)["rlvr_denominator"] == 4 * 64
    with pytest.raises(ValueError, match="more than max_tokens=3"):
        collate(trajectories, advantages, pad_id=0, objective="dr_grpo", max_tokens=3)


def test_collate_refuses_inconsistent_input(new_maker):
    maker = new_maker(13)
    trajectories, advantages, hints, pairs = maker.everything()
    change = dataclasses.replace
    with pytest.raises(ValueError, match="4 advantages for 5"):
        collate(trajectories, advantages[:4], pad_id=0)
    with pytest.raises(ValueError, match="same trajectory_id"):
        collate([trajectories[1], trajectories[1]], [1.0, 1.0], hints[:1], pad_id=0)
    with pytest.raises(ValueError, match="no such trajectory"):
        collate(trajectories[:1], [1.0], hints, pad_id=0)
    with pytest.raises(ValueError, match="compares no token"):
        collate(trajectories, advantages, [change(hints[0], action_ids=())], pad_id=0)
    with pytest.raises(ValueError, match="student_start"):
        collate(trajectories, advantages, [change(hints[0], student_start=hints[0].student_start + 1)], pad_id=0)
    with pytest.raises(ValueError, match="teacher_start"):
        collate(trajectories, advantages, [change(hints[0], teacher_start=hints[0].teacher_start - 1)], pad_id=0)
    with pytest.raises(ValueError, match="hint_reduction"):
        collate(trajectories, advantages, hints, pad_id=0, hint_reduction="mean")
    with pytest.raises(ValueError, match="has no prompt"):
        collate([change(trajectories[0], prompt_ids=())], [1.0], pad_id=0)
    short = change(trajectories[0].turns[0], logprobs=())
    with pytest.raises(ValueError, match="0 log-probs"):
        collate([change(trajectories[0], turns=(short,))], [1.0], pad_id=0)
    for side in ("prompt_ids", "chosen_ids"):
        with pytest.raises(ValueError, match="at least one token"):
            collate([], [], [], [change(pairs[0], **{side: ()})], pad_id=0)


def test_log_probs_of_a_reference_that_only_some_pairs_have_are_nan_for_the_others(new_maker):
    maker = new_maker(0)
    known, unknown = maker.pair("x"), maker.pair("y", reference=False)
    both = collate([], [], [], [known, unknown], pad_id=0)
    assert both["dpo_chosen_ref_logprobs"].isnan().tolist() == both["dpo_rejected_ref_logprobs"].isnan().tolist() == [False, True]
    half = collate([], [], [], [dataclasses.replace(known, ref_chosen_logprob=None)], pad_id=0)
    assert (half["dpo_chosen_ref_logprobs"].isnan().item(), half["dpo_rejected_ref_logprobs"].isnan().item()) == (True, False)
    assert "dpo_chosen_ref_logprobs" not in collate([], [], [], [unknown], pad_id=0)


# --- build_batch -----------------------------------------------------------------------------------------------------


def test_build_batch_makes_all_three_channels_live(model, tokenizer):
    batch = build_batch(tokenizer, device="cpu", model=model)
    got = compose_loss(model, batch, alpha_sdpo=0.1, beta_replay=0.05, strict=True)
    assert not got.off
    assert got.sdpo_jsd.item() > 0
    assert got.trace_replay_dpo.item() == pytest.approx(math.log(2), abs=1e-5)  # the policy is its own reference
    answer = tokenizer.decode(batch["input_ids"][batch["response_mask"] != 0])
    assert answer.startswith("def clamp")
    assert answer.endswith("<|im_end|>")
    assert batch["labels"][batch["response_mask"] == 0].eq(-100).all()


def test_build_batch_reference_is_the_models(model, tokenizer):
    model.train()
    batch = build_batch(tokenizer, model=model)
    assert model.training
    with torch.no_grad():
        logps = sequence_logprobs(
            model, batch["dpo_chosen_input_ids"], batch["dpo_chosen_attention_mask"], batch["dpo_chosen_response_mask"]
        )
    torch.testing.assert_close(batch["dpo_chosen_ref_logprobs"], logps.sum(-1))


def test_build_batch_without_a_model_uses_the_uniform_policy(tokenizer):
    batch = build_batch(tokenizer)
    tokens = int(batch["dpo_chosen_response_mask"].sum())
    assert batch["dpo_chosen_ref_logprobs"].item() == pytest.approx(-tokens * math.log(len(tokenizer)))


def test_build_batch_needs_a_chat_template(tokenizer):
    class Bare:
        chat_template = None
        eos_token_id = 1

    with pytest.raises(ModelError, match="chat template"):
        build_batch(Bare())


def test_compose_loss_refuses_what_nothing_reads(new_model, new_maker):
    """Packed rows would attend to each other: their `position_ids` start anew within a row."""
    batch = collate(*new_maker(6).everything(), pad_id=0)
    with pytest.raises(ValueError, match=r"a batch has no position_ids \(rows are padded, not packed\): leave it out"):
        compose_loss(new_model(), batch | {"position_ids": torch.zeros_like(batch["input_ids"])})


@pytest.mark.parametrize("channel", ["hint", "replay"])
def test_rows_that_share_a_prefix_are_padded_on_the_right(new_model, new_maker, channel):
    batch = collate(*new_maker(6).everything(), pad_id=0)
    weights = {"alpha_sdpo": float(channel == "hint"), "beta_replay": float(channel == "replay")}
    key = {"hint": "attention_mask", "replay": "dpo_rejected_attention_mask"}[channel]
    row = int((batch[key] == 0).any(-1).nonzero()[0])
    ids = key.replace("attention_mask", "input_ids")
    left = {name: batch[name].clone() for name in (key, ids)}
    for values in left.values():
        values[row] = values[row].roll(int((batch[key][row] == 0).sum()))
    with pytest.raises(ValueError, match=f"{key} has a 0 before a 1 in row {row}: pad every row on the right"):
        compose_loss(new_model(), batch | left, **weights)
