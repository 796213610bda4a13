"""KL(teachers || policy) from the likeliest tokens: a float64 reference, gradients, and the replay channel that reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from composer_replication.config import LossConfig, ReplayConfig
from composer_replication.distillation.soft_targets import (
    SoftTargets,
    soft_target_divergence,
    soft_target_divergence_per_row,
)
from composer_replication.kernels import Head
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.forward.rows import PlainRows
from composer_replication.loss.micro_batches import split
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.types import Pair
from composer_replication.types.signals import TokenTargets

ROWS, HIDDEN, VOCABULARY = 6, 5, 11


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def head(seed: int = 0, **options: Any) -> tuple[Tensor, Head]:
    """Hidden states and a head, in float64, with gradients."""
    hidden = torch.randn(ROWS, HIDDEN, generator=drawn(seed), dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=drawn(seed + 1), dtype=torch.float64, requires_grad=True)
    bias = torch.randn(VOCABULARY, generator=drawn(seed + 2), dtype=torch.float64, requires_grad=True)
    return hidden, Head(weight, bias, options.get("scale", 1.0), options.get("softcap"))


def teachers(count: int, k: int, seed: int = 3) -> tuple[Tensor, SoftTargets]:
    """Whole log-probs [n, M, V] of teachers, and what they tell of them."""
    whole = (2 * torch.randn(ROWS, count, VOCABULARY, generator=drawn(seed), dtype=torch.float64)).log_softmax(-1)
    best = whole.topk(k, -1)
    return whole, SoftTargets(best.indices, best.values)


def by_hand(logits: Tensor, whole: Tensor, k: int) -> Tensor:
    """The mean over teachers of KL between two distributions over k tokens and a bucket, one place after the other."""
    rows = []
    for policy, of_place in zip(logits.softmax(-1), whole.exp(), strict=True):
        total = policy.new_zeros(())
        for t in of_place:
            named = set(t.argsort(descending=True)[:k].tolist())
            for token in named:
                total = total + t[token] * (t[token] / policy[token]).log()
            others = [token for token in range(len(t)) if token not in named]
            if others:
                total = total + t[others].sum() * (t[others].sum() / policy[others].sum()).log()
        rows.append(total / len(of_place))
    return torch.stack(rows)


@pytest.mark.parametrize("k", [1, 3, VOCABULARY - 1])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("options", [{}, {"scale": 0.7}, {"softcap": 2.0}], ids=str)
def test_value_and_gradients_are_those_of_the_formula(k: int, count: int, options: dict[str, Any]) -> None:
    hidden, whole_head = head(**options)
    whole, told = teachers(count, k)
    weights = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0, 0.1], dtype=torch.float64)
    expected = by_hand(whole_head.logits(hidden), whole, k)
    inputs = (hidden, whole_head.weight, whole_head.bias)
    wanted = torch.autograd.grad((weights * expected).sum(), inputs)
    for chunk in (None, 2):
        value, losses = soft_target_divergence(hidden, whole_head, told, weights, rows_per_chunk=chunk)
        torch.testing.assert_close(losses, expected.detach())
        torch.testing.assert_close(value, (weights * expected).sum())
        for ours, theirs in zip(torch.autograd.grad(3.0 * value, inputs), wanted, strict=True):
            torch.testing.assert_close(ours, 3.0 * theirs)
    plain = PlainRows(whole_head.logits(hidden)).soft_loss(told, weights)
    torch.testing.assert_close(plain[0], (weights * expected).sum())
    for ours, theirs in zip(torch.autograd.grad(plain[0], inputs), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradcheck() -> None:
    hidden, whole_head = head()
    _, told = teachers(2, 4)
    weights = torch.ones(ROWS, dtype=torch.float64)

    def value(rows: Tensor) -> Tensor:
        return soft_target_divergence(rows, whole_head, told, weights)[0]

    assert torch.autograd.gradcheck(value, (hidden,))


def test_it_is_a_lower_bound_that_more_tokens_raise_to_the_whole_divergence() -> None:
    hidden, whole_head = head()
    logits = whole_head.logits(hidden).detach()
    whole, _ = teachers(1, 1)
    exact = (whole[:, 0].exp() * (whole[:, 0] - logits.log_softmax(-1))).sum(-1)
    before = torch.zeros(ROWS, dtype=torch.float64)
    for k in range(1, VOCABULARY + 1):
        now = soft_target_divergence_per_row(logits, teachers(1, k)[1])
        assert bool((now >= before - 1e-12).all())
        assert bool((now <= exact + 1e-12).all())
        before = now
    torch.testing.assert_close(before, exact)


def test_gaps_and_silent_teachers_count_for_nothing() -> None:
    """A teacher that tells of two tokens where another tells of four, and one that says nothing of a place."""
    hidden, whole_head = head()
    whole, told = teachers(2, 4)
    logprobs, ids = told.logprobs.clone(), told.ids.clone()
    logprobs[:, 1, 2:], ids[:, 1, 2:] = -torch.inf, 0
    logprobs[0, 0], ids[0, 0] = -torch.inf, 0
    logprobs[1] = -torch.inf
    gapped, weights = SoftTargets(ids, logprobs), torch.ones(ROWS, dtype=torch.float64)
    logits = whole_head.logits(hidden)
    alone = [by_hand(logits, whole[:, number : number + 1], k) for number, k in ((0, 4), (1, 2))]
    expected = (alone[0] + alone[1]) / 2
    expected = torch.cat([alone[1][:1], torch.zeros(1, dtype=torch.float64), expected[2:]])
    value, losses = soft_target_divergence(hidden, whole_head, gapped, weights)
    torch.testing.assert_close(losses, expected.detach())
    torch.testing.assert_close(soft_target_divergence_per_row(logits, gapped), expected)
    inputs = (hidden, whole_head.weight)
    for ours, theirs in zip(torch.autograd.grad(value, inputs), torch.autograd.grad(expected.sum(), inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_rounded_log_probs_that_leave_nothing_are_finite() -> None:
    """Servers send float32: what K tokens leave of 1 may be a rounding error, or below 0."""
    logits = torch.tensor([[30.0, -30.0, -30.0]], requires_grad=True)
    for first in (-1e-9, 0.0, 1e-7):
        told = SoftTargets(torch.tensor([[[0]]]), torch.tensor([[[first]]]))
        loss = soft_target_divergence_per_row(logits, told)
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert bool(torch.isfinite(loss).all())
        assert bool(torch.isfinite(gradient).all())


def test_shapes_that_disagree_are_refused() -> None:
    hidden, whole_head = head()
    _, told = teachers(2, 4)
    with pytest.raises(ValueError, match="rows disagree"):
        soft_target_divergence(hidden, whole_head, told.rows(slice(0, 3)), torch.ones(ROWS, dtype=torch.float64))


def targets_of(model: Any, pair: Pair, k: int) -> TokenTargets:
    ids = torch.tensor([[*pair.prompt_ids, *pair.chosen_ids]])
    with torch.no_grad():
        scores = model(input_ids=ids).logits[0].log_softmax(-1)[len(pair.prompt_ids) - 1 : -1]
    best = scores.topk(k)
    return TokenTargets(ids=tuple(map(tuple, best.indices.tolist())), logprobs=tuple(map(tuple, best.values.tolist())))


def pairs_with_targets(k: int) -> list[Pair]:
    """Three pairs of different lengths; of the second no teacher speaks, and the third has two."""
    tokenizer = tiny_tokenizer()
    one, other = (tiny_model(tokenizer, seed) for seed in (7, 8))
    made = [
        Pair(pair_id="a", prompt_ids=(5, 6, 7), chosen_ids=(20, 21), rejected_ids=(22,), confidence=0.5),
        Pair(pair_id="b", prompt_ids=(5, 6), chosen_ids=(30, 31, 32), rejected_ids=(33,)),
        Pair(pair_id="c", prompt_ids=(9, 6, 7, 8), chosen_ids=(40, 41, 42, 43), rejected_ids=(44, 45)),
    ]
    found = [replace(made[0], chosen_targets=(targets_of(one, made[0], k),)), made[1]]
    return [*found, replace(made[2], chosen_targets=(targets_of(one, made[2], k), targets_of(other, made[2], k)))]


def loss_of(share: float) -> LossConfig:
    return LossConfig(replay=ReplayConfig(weight=1.0, soft_targets=share))


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_channel_takes_that_share_of_each_answer_that_teachers_speak_of(share: float) -> None:
    model = tiny_model(tiny_tokenizer(), 0)
    pairs = pairs_with_targets(6)
    batch = collate([], None, [], pairs, pad_id=0)
    made = compose_loss(model, batch, loss_of(share))
    total = model.lm_head.weight.new_zeros(())
    kls = []
    for pair in pairs:
        ids = torch.tensor([[*pair.prompt_ids, *pair.chosen_ids]])
        log_s = model(input_ids=ids).logits[0].log_softmax(-1)[len(pair.prompt_ids) - 1 : -1]
        nll = -log_s.gather(-1, torch.tensor(pair.chosen_ids)[:, None]).sum()
        told = pair.chosen_targets
        kl = log_s.new_zeros(len(log_s))
        for one in told:
            named, t = torch.tensor(one.ids), torch.tensor(one.logprobs).exp()
            rest = log_s.exp().scatter(-1, named, 0.0).sum(-1)
            t_rest = 1 - t.sum(-1)
            kl = kl + (t * (t.log() - log_s.gather(-1, named))).sum(-1) + t_rest * (t_rest / rest).log()
        soft = kl / max(1, len(told))
        kls += soft.tolist() if told else []
        total = total + pair.confidence * ((1 - share) * nll + share * soft.sum() if told else nll)
    total = total / sum(pair.confidence * len(pair.chosen_ids) for pair in pairs)
    assert made.trace_replay_dpo.item() == pytest.approx(total.item(), rel=1e-5)
    assert made.metrics["replay/teacher_kl/mean"] == pytest.approx(sum(kls) / len(kls), rel=1e-4)
    wanted = torch.autograd.grad(total, [*model.parameters()], allow_unused=True)
    ours = torch.autograd.grad(made.total, [*model.parameters()], allow_unused=True)
    for mine, theirs in zip(ours, wanted, strict=True):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    parts = [compose_loss(model, part, loss_of(share)).total for part in split(batch, 12, shared_prefixes=True)]
    assert len(parts) > 1
    assert sum(part.item() for part in parts) == pytest.approx(made.total.item(), rel=1e-5)


def test_without_the_option_or_the_teachers_nothing_changes() -> None:
    model = tiny_model(tiny_tokenizer(), 0)
    pairs = pairs_with_targets(6)
    told, untold = (collate([], None, [], some, pad_id=0) for some in (pairs, [replace(one, chosen_targets=()) for one in pairs]))
    plain = compose_loss(model, untold, loss_of(0.0))
    for batch, share in ((told, 0.0), (untold, 0.5)):
        same = compose_loss(model, batch, loss_of(share))
        assert same.total.item() == plain.total.item()
        assert "replay/teacher_kl/mean" not in same.metrics


def test_targets_of_another_answer_are_refused() -> None:
    pair = pairs_with_targets(3)[0]
    with pytest.raises(ValueError, match="of a chosen answer of others"):
        collate([], None, [], [replace(pair, chosen_ids=(20,))], pad_id=0)
