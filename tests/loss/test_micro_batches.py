"""Micro-batches: what they hold, that they add up, and what goes through no pass."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.config import LossConfig, RlvrConfig
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.micro_batches import mini_batches, passes, split, tokens_of, tree_passes, without_idle_rows

ROUNDING = {"rtol": 1e-9, "atol": 1e-12}
ALL = LossConfig.model_validate({"hint": {"weight": 0.5}, "replay": {"weight": 0.3}})


@pytest.fixture(scope="module")
def model64(new_model):
    return new_model(dtype=torch.float64)


def gradients(model, parts, options=ALL):
    """The gradient of the parts together, as one vector."""
    total = sum(compose_loss(model, part, options).total for part in parts)
    return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(model.parameters()))])


def padded(part, name=""):
    """Positions of a micro-batch's rows or, of both sides together, its pairs."""
    keys = ["input_ids"] if not name else [f"dpo_{side}_input_ids" for side in ("chosen", "rejected")]
    widths = [part[key].shape[1] for key in keys if key in part]
    return len(part[keys[0]]) * len(keys) * max(widths) if widths else 0


@given(lengths=st.lists(st.integers(0, 50), max_size=30), tokens=st.integers(1, 200))
def test_passes_hold_every_sequence_once_within_the_budget(lengths, tokens):
    found = passes(lengths, tokens)
    assert sorted(place for some in found for place in some) == list(range(len(lengths)))
    for some in found:
        assert some == sorted(some)
        assert len(some) == 1 or len(some) * max(lengths[place] for place in some) <= tokens
    tops = [max(lengths[place] for place in some) for some in found]
    assert tops == sorted(tops, reverse=True), "the longest first: what does not fit shows at once"


def test_rows_and_pairs_are_cut_apart_within_the_budget(new_maker):
    trajectories, advantages, hints, pairs = new_maker(6).everything()
    batch = collate(trajectories, advantages, hints, 3 * pairs, pad_id=0)
    parts = split(batch, 40)
    for part in parts:
        assert ("input_ids" in part) != ("dpo_weights" in part)
        for name, count in (("", "input_ids"), ("pairs", "dpo_weights")):
            assert padded(part, name) <= 40 or len(part[count]) == 1
        for mask in (key for key in part if key.endswith("attention_mask")):
            assert part[mask].any(0)[-1], "columns of padding are cut off"
        for name in ("rlvr_denominator", "hint_denominator", "replay_denominator"):
            assert part[name] == batch[name]
    assert sum(len(part["input_ids"]) for part in parts if "input_ids" in part) == len(trajectories)
    assert sum(len(part["dpo_weights"]) for part in parts if "dpo_weights" in part) == 3 * len(pairs)
    assert ["dropped_tokens" in part for part in parts] == [True] + [False] * (len(parts) - 1)


def by_teacher(part):
    """The tokens of each hinted turn's teacher, and of the row that it teaches."""
    teachers = zip(part["ctx_teacher_input_ids"], part["ctx_teacher_attention_mask"], strict=True)
    rows = part["input_ids"], part["attention_mask"]
    return {
        tuple(ids[mask != 0].tolist()): tuple(rows[0][row][rows[1][row] != 0].tolist())
        for (ids, mask), row in zip(teachers, part["student_row"].tolist(), strict=True)
    }


def test_hints_stay_with_their_rows(new_maker):
    batch = collate(*new_maker(6).everything(), pad_id=0)
    told = [by_teacher(part) for part in split(batch, 1) if "student_row" in part]
    assert len(told) == 2, "of two rows"
    assert {key: row for part in told for key, row in part.items()} == by_teacher(batch)


def test_split_keeps_every_stream(model64, new_maker):
    batch = collate(*new_maker(7).everything(), pad_id=0)
    batch["sampler_logprobs"] = batch["old_logprobs"] - 0.3 * batch["response_mask"]
    batch["ref_logprobs"] = batch["old_logprobs"] + 0.1
    options = LossConfig.model_validate(
        {"hint": {"weight": 0.5}, "replay": {"weight": 0.3}, "rlvr": {"importance": "tis", "kl_beta": 0.2}}
    )
    expected = gradients(model64, [batch], options)
    for shared in (False, True):
        parts = split(batch, 30, shared_prefixes=shared)
        torch.testing.assert_close(gradients(model64, parts, options), expected, **ROUNDING)


def test_lengths_are_those_of_the_rows_and_hardly_a_position_is_padding():
    lengths = torch.tensor([512, 8, 500, 16, 490, 12] * 20)
    mask = (torch.arange(512) < lengths.unsqueeze(-1)).long()
    batch = {"input_ids": mask, "attention_mask": mask, "rlvr_weights": mask.float(), "rlvr_denominator": torch.tensor(1.0)}
    parts = split(batch, 4096)
    tokens, positions = tokens_of(parts), sum(part["input_ids"].numel() for part in parts)
    assert tokens == tokens_of([batch]) == int(mask.sum())
    assert positions < 1.08 * tokens < 1.9 * tokens < mask.numel()


units = st.lists(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=2), max_size=12)


@given(units, st.integers(1, 20))
def test_passes_by_prefix_hold_every_unit_once_within_the_budget(units, tokens):
    found = tree_passes([[torch.tensor(row) for row in unit] for unit in units], tokens)
    assert sorted(place for some in found for place in some) == list(range(len(units)))
    for some in found:
        assert some == sorted(some)
        prefixes = {tuple(row[: n + 1]) for place in some for row in units[place] for n in range(len(row))}
        assert len(some) == 1 or len(prefixes) <= tokens


def test_what_begins_alike_is_read_together(model64, new_maker):
    """Siblings interleaved with those of other groups, and pairs on their prompts: one pass a group, each prompt read once."""
    prompts = [torch.full((30,), 5 + group) for group in range(3)]
    rows = torch.stack([torch.cat([prompts[i % 3], torch.full((4,), 50 + i)]) for i in range(12)])
    ones = torch.ones_like(rows)
    batch = {"input_ids": rows, "attention_mask": ones, "rlvr_weights": ones * (torch.arange(34) >= 30)}
    batch |= {"rlvr_denominator": torch.tensor(48.0), "replay_denominator": torch.tensor(3.0), "dpo_weights": torch.ones(3)}
    for side, offset in (("chosen", 100), ("rejected", 120)):
        answers = torch.stack([torch.cat([prompt, torch.full((4,), offset + i)]) for i, prompt in enumerate(prompts)])
        batch |= {f"dpo_{side}_input_ids": answers, f"dpo_{side}_attention_mask": ones[:3]}
        batch |= {f"dpo_{side}_response_mask": batch["rlvr_weights"][:3], f"dpo_{side}_ref_logprobs": torch.zeros(3)}
    parts = split(batch, 60, shared_prefixes=True)
    assert [(len(part["input_ids"]), len(part["dpo_weights"])) for part in parts] == [(4, 1)] * 3
    options = LossConfig.model_validate({"replay": {"weight": 0.3, "variant": "dpo"}})
    read = [compose_loss(model64, part, options).positions for part in parts]
    assert read == [30 + 4 * 4 + 2 * 4] * 3
    expected = gradients(model64, split(batch, 60), options)
    torch.testing.assert_close(gradients(model64, parts, options), expected, **ROUNDING)


def test_split_refuses_what_it_would_lose(new_maker):
    batch = collate(*new_maker(6).everything(), pad_id=0)
    with pytest.raises(ValueError, match="no position_ids"):
        split(batch | {"position_ids": torch.zeros_like(batch["input_ids"])}, 40)
    for name in ("rlvr_denominator", "hint_denominator", "replay_denominator"):
        with pytest.raises(ValueError, match=f"no {name}"):
            split({key: value for key, value in batch.items() if key != name}, 40)
    with pytest.raises(ValueError, match="at least 1"):
        split(batch, 0)


def test_ranks_share_the_parts_and_each_has_as_many(new_maker):
    batch = collate(*new_maker(6).everything(), pad_id=0)
    for tokens, ranks in ((40, 2), (1, 4), (200, 3)):
        parts = split(batch, tokens)
        shares = [split(batch, tokens, rank=rank, ranks=ranks) for rank in range(ranks)]
        assert {len(share) for share in shares} == {math.ceil(len(parts) / ranks)}
        dealt = [share[i] for i in range(len(shares[0])) for share in shares]
        for part, expected in zip(dealt, parts, strict=False):
            assert part.keys() == expected.keys()
            assert all(torch.equal(part[key], expected[key]) for key in expected)
        assert all(key.endswith("_denominator") for part in dealt[len(parts) :] for key in part)
    for rank, ranks in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="rank must be"):
            split(batch, 40, rank=rank, ranks=ranks)


def test_an_empty_batch_has_one_empty_part():
    assert split({"rlvr_denominator": torch.tensor(0.0)}, 8) == [{"rlvr_denominator": torch.tensor(0.0)}]


# --- rows that teach nothing -----------------------------------------------------------------------------------------


def idle(new_maker):
    """Of five rows one teaches, one is hinted, and the advantages of the others are 0."""
    trajectories, _, hints, pairs = new_maker(3).everything()
    taught = [hint for hint in hints if hint.trajectory_id == "t2"]
    return collate(trajectories, [0.0, 0.9, 0.0, 0.0, 0.0], taught, pairs, pad_id=0)


def test_rows_without_a_gradient_go_through_no_pass(model64, new_maker):
    batch = idle(new_maker)
    left = without_idle_rows(batch, RlvrConfig())
    assert len(left["input_ids"]) == 2
    assert len(left["dpo_weights"]) == 3
    torch.testing.assert_close(gradients(model64, [left]), gradients(model64, [batch]), **ROUNDING)


@pytest.mark.parametrize("options", [{"kl_beta": 0.1}, {"entropy_bonus": 0.1}, {"objective": "dppo"}])
def test_rows_stay_where_something_else_pulls_on_them(model64, new_maker, options):
    batch = idle(new_maker)
    batch["ref_logprobs"] = batch["old_logprobs"] + 0.1
    rlvr = RlvrConfig(**options)
    assert len(without_idle_rows(batch, rlvr)["input_ids"]) == 5
    pulled = LossConfig(rlvr=rlvr, hint=ALL.hint, replay=ALL.replay)
    without = without_idle_rows(batch, RlvrConfig())
    assert not torch.allclose(gradients(model64, [without], pulled), gradients(model64, [batch], pulled))


def test_an_imitation_batch_keeps_all_rows(new_maker):
    trajectories, _, hints, pairs = new_maker(3).everything()
    batch = collate(trajectories, None, hints, pairs, pad_id=0)
    assert len(without_idle_rows(batch, RlvrConfig())["input_ids"]) == 5


def test_a_batch_of_idle_rows_alone_has_none(new_maker):
    trajectories, _, _, pairs = new_maker(3).everything()
    left = without_idle_rows(collate(trajectories, [0.0] * 5, (), pairs, pad_id=0), RlvrConfig())
    assert "input_ids" not in left
    assert len(left["dpo_weights"]) == 3


# --- mini-batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_mini_batches_hold_everything_once_and_their_mean_is_the_whole(model64, new_maker, count):
    batch = collate(*new_maker(5).everything(), pad_id=0)
    minis = mini_batches(batch, count, seed=1)
    assert sum(len(mini["input_ids"]) for mini in minis if "input_ids" in mini) == 5
    assert sum(len(mini["dpo_weights"]) for mini in minis if "dpo_weights" in mini) == 3
    assert sum(len(mini["student_row"]) for mini in minis if "student_row" in mini) == 3
    mean = gradients(model64, [part for mini in minis for part in split(mini, 40)]) / len(minis)
    assert len(minis) == min(count, 5)
    torch.testing.assert_close(mean, gradients(model64, [batch]), rtol=1e-5, atol=1e-6)  # a third of a float32 is rounded


def test_mini_batches_follow_from_the_seed(new_maker):
    batch = collate(*new_maker(5).everything(), pad_id=0)
    one, same, other = (mini_batches(batch, 2, seed=seed)[0]["advantages"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    with pytest.raises(ValueError, match="at least 1"):
        mini_batches(batch, 0, seed=1)
