"""Each loss on pairs beside numpy written from its paper, its gradient, and what becomes of it in the replay channel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from composer_replication.config import LossConfig, ReplayConfig, RlvrConfig
from composer_replication.distillation.preference import (
    apo_zero_losses,
    dpo_losses,
    dpo_positive_losses,
    ipo_losses,
    kto_losses,
    simpo_losses,
)
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.channels.replay import Answers, pair_losses
from composer_replication.loss.micro_batches import split

Array = NDArray[np.float64]
PREFERENCES = ["dpo", "dpo_positive", "ipo", "apo_zero", "kto", "simpo"]
BETA = 0.3


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def distances() -> tuple[Array, Array]:
    """Of 40 pairs, near 0 and far from it."""
    drawn = np.random.default_rng(0)
    scale = np.repeat([0.01, 1.0, 10.0, 40.0], 10)
    return drawn.normal(0, scale), drawn.normal(0, scale)


def by_hand(name: str, c: Array, r: Array) -> Array:
    """The papers' formulas."""
    if name == "dpo":
        return -np.log(sigmoid(BETA * (c - r)))
    if name == "dpo, smoothed":
        return -0.8 * np.log(sigmoid(BETA * (c - r))) - 0.2 * np.log(sigmoid(-BETA * (c - r)))
    if name == "dpo_positive":
        return -np.log(sigmoid(BETA * (c - r - 5.0 * np.maximum(0.0, -c))))
    if name == "ipo":
        return (c - r - 1.0 / (2.0 * BETA)) ** 2
    if name == "apo_zero":
        return (1.0 - sigmoid(BETA * c)) + sigmoid(BETA * r)
    if name == "kto":
        return (1.0 - sigmoid(BETA * (c - 0.7))) + (1.0 - sigmoid(BETA * (0.7 - r)))
    return -np.log(sigmoid(BETA * (c - r) - 0.5))


def ours(name: str, c: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return {
        "dpo": lambda: dpo_losses(c, r, BETA),
        "dpo, smoothed": lambda: dpo_losses(c, r, BETA, 0.2),
        "dpo_positive": lambda: dpo_positive_losses(c, r, BETA, 5.0),
        "ipo": lambda: ipo_losses(c, r, BETA),
        "apo_zero": lambda: apo_zero_losses(c, r, BETA),
        "kto": lambda: kto_losses(c, r, BETA, torch.tensor(0.7, dtype=torch.float64)),
        "simpo": lambda: simpo_losses(c, r, BETA, 0.5),
    }[name]()


@pytest.mark.parametrize("name", [*PREFERENCES, "dpo, smoothed"])
def test_values_and_gradients(name: str) -> None:
    c, r = distances()
    with np.errstate(over="ignore"):
        expected = by_hand(name, c, r)
    inputs = [torch.tensor(side, requires_grad=True) for side in (c, r)]
    np.testing.assert_allclose(ours(name, *inputs).detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    some = [torch.tensor(side[:20], requires_grad=True) for side in (c, r)]
    assert torch.autograd.gradcheck(lambda a, b: ours(name, a, b), some)
    far = [torch.tensor([side], dtype=torch.float64, requires_grad=True) for side in (-5e3, 5e3)]
    value = ours(name, *far)
    assert all(torch.isfinite(x).all() for x in (value, *torch.autograd.grad(value.sum(), far)))


@pytest.mark.parametrize("name", PREFERENCES)
def test_one_shape(name: str) -> None:
    with pytest.raises(ValueError, match="not of one shape"):
        ours(name, torch.zeros(2), torch.zeros(3))


def test_kto_s_reference_point_has_no_gradient_and_is_no_less_than_0() -> None:
    c, r = (torch.tensor(side, requires_grad=True) for side in distances())
    point = c.mean()
    kto_losses(c, r, BETA, point).sum().backward()
    alone = torch.tensor(distances()[0], requires_grad=True)
    kto_losses(alone, r.detach(), BETA, point.detach()).sum().backward()
    assert torch.equal(c.grad, alone.grad)
    assert torch.equal(kto_losses(c, r, BETA, torch.tensor(-3.0)), apo_zero_losses(c, r, BETA))


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ValueError, match="label_smoothing"):
        dpo_losses(torch.zeros(1), torch.zeros(1), BETA, 0.5)
    with pytest.raises(ValueError, match="penalty"):
        dpo_positive_losses(torch.zeros(1), torch.zeros(1), BETA, -1.0)


# --- in the channel --------------------------------------------------------------------------------------------------


def loss_of(variant: str, **options: Any) -> LossConfig:
    replay = ReplayConfig.model_validate({"weight": 1.0, "variant": variant, **options})
    return LossConfig(rlvr=RlvrConfig(), hint={"weight": 0.0}, replay=replay)  # type: ignore[arg-type]  # pydantic makes it


@pytest.fixture
def pairs(new_maker: Any) -> list[Any]:
    maker = new_maker(0)
    made = [maker.pair(f"p{i}") for i in range(5)]
    return [
        replace(pair, confidence=0.25 * (1 + i % 4), ref_chosen_logprob=-9.0 - i, ref_rejected_logprob=-11.0 + i)
        for i, pair in enumerate(made)
    ]


POINT = 0.3
"""KTO's reference point."""


def with_point(batch: Batch, variant: str) -> Batch:
    return batch | ({"dpo_divergence": torch.tensor(POINT, dtype=torch.float64)} if variant == "kto" else {})


def of_a_pair(variant: str, c: torch.Tensor, r: torch.Tensor, pair: Any, point: float) -> torch.Tensor:
    soft = torch.nn.functional.softplus
    dc, dr = c - pair.ref_chosen_logprob, r - pair.ref_rejected_logprob
    nc, nr = len(pair.chosen_ids), len(pair.rejected_ids)
    values = {
        "dpo": soft(-0.1 * (dc - dr)),
        "dpo_positive": soft(-0.1 * (dc - dr - 5.0 * torch.relu(-dc))),
        "ipo": (dc / nc - dr / nr - 5.0) ** 2,
        "apo_zero": 1 - torch.sigmoid(0.1 * dc) + torch.sigmoid(0.1 * dr),
        "kto": 2 - torch.sigmoid(0.1 * (dc - point)) - torch.sigmoid(0.1 * (point - dr)),
        "simpo": soft(-(2.0 * (c / nc - r / nr) - 1.0)),
    }
    return values[variant]


def of_whole_logits(model: Any, pairs: list[Any], variant: str, anchor: float) -> torch.Tensor:
    """The channel's value written anew: every pair by itself, from plain logits."""
    total, tokens, known = torch.zeros((), dtype=torch.float64), 0.0, []
    for pair in pairs:
        sums = []
        for answer in (pair.chosen_ids, pair.rejected_ids):
            ids = torch.tensor([[*pair.prompt_ids, *answer]])
            scores = model(ids).logits[0].double().log_softmax(-1)
            start = len(pair.prompt_ids)
            sums.append(sum(scores[start + n - 1, token] for n, token in enumerate(answer)))
        known.append((pair, *sums))
        tokens += pair.confidence * len(pair.chosen_ids)
    for pair, c, r in known:
        loss = 0.0 if variant == "sft" else of_a_pair(variant, c, r, pair, POINT)
        total = total + pair.confidence * (loss - (1.0 if variant == "sft" else anchor) * c)
    return total / tokens


@pytest.mark.parametrize("anchor", [1.0, 0.25])
@pytest.mark.parametrize("variant", ["sft", *PREFERENCES])
def test_the_channel_is_a_mean_over_the_chosen_answers_tokens(
    new_model: Any, pairs: list[Any], variant: str, anchor: float
) -> None:
    model = new_model(dtype=torch.float64)
    options = loss_of(variant, **({} if variant == "sft" else {"anchor": anchor}))
    batch = with_point(collate([], None, [], pairs, pad_id=0), variant)
    made = compose_loss(model, batch, options)
    expected = of_whole_logits(model, pairs, variant, anchor)
    torch.testing.assert_close(made.trace_replay_dpo, expected, rtol=1e-9, atol=1e-9)
    found = torch.autograd.grad(made.total, list(model.parameters()))
    for one, other in zip(found, torch.autograd.grad(expected, list(model.parameters())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
    assert ("replay/accuracy" in made.metrics) == (variant != "sft")
    chosen = [compose_loss(model, collate([], None, [], [pair], pad_id=0), loss_of("sft")) for pair in pairs]
    sums = [-one.trace_replay_dpo.item() * len(pair.chosen_ids) for one, pair in zip(chosen, pairs, strict=True)]
    distance = sum(sums) / 5 - sum(pair.ref_chosen_logprob for pair in pairs) / 5
    assert made.metrics["replay/chosen/distance/mean"] == pytest.approx(distance)


@pytest.mark.parametrize("variant", ["sft", *PREFERENCES])
def test_micro_batches_add_up(new_model: Any, pairs: list[Any], variant: str) -> None:
    """KTO's reference point is that of all pairs."""
    model, options = new_model(dtype=torch.float64), loss_of(variant)
    batch = with_point(collate([], None, [], pairs, pad_id=0), variant)
    whole = compose_loss(model, batch, options).total
    parts = split(batch, 1)
    assert len(parts) == len(pairs)
    torch.testing.assert_close(torch.stack([compose_loss(model, part, options).total for part in parts]).sum(), whole)


def test_the_penalty_of_dpo_positive_is_for_chosen_answers_that_have_fallen(new_model: Any, pairs: list[Any]) -> None:
    model = new_model(dtype=torch.float64)

    def value(reference: float, penalty: float) -> float:
        pair = replace(pairs[0], ref_chosen_logprob=reference)
        batch = collate([], None, [], [pair], pad_id=0)
        return compose_loss(model, batch, loss_of("dpo_positive", dpo_positive_penalty=penalty)).trace_replay_dpo.item()

    assert value(0.0, 0.0) < value(0.0, 1.0) < value(0.0, 50.0)
    assert value(-1e3, 0.0) == value(-1e3, 50.0)


def test_rejected_answers_are_not_read_where_they_do_not_count(new_model: Any, pairs: list[Any]) -> None:
    model, batch = new_model(dtype=torch.float64), collate([], None, [], pairs, pad_id=0)
    both = compose_loss(model, batch, loss_of("dpo"))
    alone = compose_loss(model, batch, loss_of("sft"))
    assert alone.positions < both.positions
    without = {key: value for key, value in batch.items() if not key.startswith("dpo_rejected")}
    assert torch.equal(compose_loss(model, without, loss_of("sft")).total, alone.total)


def test_a_loss_with_a_reference_is_off_without_one(new_model: Any, new_maker: Any) -> None:
    batch = collate([], None, [], [new_maker(0).pair("p", reference=False)], pad_id=0)
    model = new_model()
    assert compose_loss(model, batch, loss_of("kto")).off["replay"] == "the batch has no dpo_chosen_ref_logprobs"
    assert "replay" not in compose_loss(model, batch, loss_of("simpo")).off
    known = collate([], None, [], [new_maker(0).pair("p")], pad_id=0)
    assert compose_loss(model, known, loss_of("kto")).off["replay"] == "the batch has no dpo_divergence"
    one = [Answers(torch.zeros(1), torch.ones(1), None)] * 2
    with pytest.raises(ValueError, match="needs the reference's log-probs"):
        pair_losses(one, loss_of("dpo").replay, torch.ones(1))


def test_pairs_of_weight_0_have_no_influence_whatever_their_log_probs_are() -> None:
    sides = [torch.tensor([-3.0, float("-inf")], requires_grad=True) for _ in range(2)]
    answers = [Answers(side, torch.ones(2), torch.tensor([-3.0, -2.0])) for side in sides]
    for variant in ("sft", *PREFERENCES):
        losses, _ = pair_losses(answers, loss_of(variant).replay, torch.tensor([1.0, 0.0]), torch.tensor(POINT))
        (gradient,) = torch.autograd.grad(losses.sum(), sides[0])
        assert torch.isfinite(gradient).all(), variant
        assert gradient[1] == 0.0
