"""Our rl component in PRIME-RL's own sum of components, beside its stock losses and beside compose_loss."""

from __future__ import annotations

import math

import pytest
import torch
from one_gradient import case, gradient_of, relative_error
from prime_rl.configs.trainer import CustomLossConfig, DefaultLossConfig
from prime_rl.trainer.rl.loss import LossInputs, compute_loss, ref_kl_loss_fn, setup_rl_loss_fn

from composer_replication.config import HintConfig, LossConfig, ReplayConfig, RlvrConfig
from composer_replication.distillation import sampled_token_per_token
from composer_replication.loss import compose_loss
from composer_replication.recipes.prime_rl.config import LOSS_FN


def ours(**kwargs):
    return setup_rl_loss_fn(CustomLossConfig(import_path=LOSS_FN, kwargs=kwargs))


def sequence(n=64, seed=0, *, weighted=False):
    g = torch.Generator().manual_seed(seed)
    now = (-torch.rand(n, generator=g) * 3).requires_grad_()
    inputs = LossInputs(
        trainer_logprobs=now,
        inference_logprobs=now.detach() + 0.4 * torch.randn(n, generator=g),
        ref_logprobs=now.detach() - torch.rand(n, generator=g),
        advantages=torch.randn(n, generator=g),
        loss_mask=torch.rand(n, generator=g) > 0.3,
        loss_weights=torch.rand(n, generator=g) if weighted else None,
    )
    return now, inputs


@pytest.mark.parametrize("weighted", [False, True])
def test_dppo_is_the_stock_loss_to_the_bit(weighted):
    for seed in range(20):
        now, inputs = sequence(seed=seed, weighted=weighted)
        found, stock = ours(objective="dppo")(inputs), setup_rl_loss_fn(DefaultLossConfig())(inputs)
        assert found.loss.item() == stock.loss.item()
        (mine,) = torch.autograd.grad(found.loss, now)
        (theirs,) = torch.autograd.grad(stock.loss, now)
        assert (mine - theirs).abs().max().item() == 0.0
    assert found.metrics["rlvr/clip_frac"].item() > 0  # some tokens were dropped


def logprobs_of(model, ids):
    """[seq] as the trainer aligns them: of each token given those before it; of the first, 0."""
    logits = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    own = logits[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    return torch.cat([own.new_zeros(1), own])


OPTIONS = [
    {"objective": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28},
    {"objective": "cispo"},
    {"objective": "dppo"},
    {"objective": "dapo", "importance": "tis", "importance_high": 1.2},
    {"objective": "dapo", "importance": "icepop", "importance_low": 0.8, "importance_high": 1.2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: f"{o['objective']}-{o.get('importance', 'none')}")
def test_the_gradient_is_that_of_compose_loss(options):
    made = case()
    made.model.double()
    batch = {
        k: v for k, v in made.batch.items() if not k.startswith(("dpo", "ctx", "sdpo", "hint", "replay", "student", "teacher"))
    }
    local = dict(batch)
    alone = LossConfig(rlvr=RlvrConfig(**options), hint=HintConfig(weight=0.0), replay=ReplayConfig(weight=0.0))
    if "importance" in options:  # as the learner has it
        local["sampler_logprobs"] = local.pop("old_logprobs")
    made.model.zero_grad()
    compose_loss(made.model, local, alone).total.backward()
    expected = gradient_of(made.model)
    made.model.zero_grad()
    parts = [[], [], [], []]
    for row, trajectory in enumerate(made.trajectories):
        if made.advantages[row] is None:  # PRIME-RL drops a rollout with an error
            continue
        ids = list(trajectory.context_ids(len(trajectory.turns)))
        size = len(ids)
        keys = ("old_logprobs", "advantages", "rlvr_weights")
        old, advantages, weights = (batch[key][row, :size] for key in keys)
        for part, value in zip(parts, (logprobs_of(made.model, ids), old, advantages, weights != 0), strict=True):
            part.append(value.double() if value.dtype == torch.float32 else value)
    now, old, advantages, mask = parts
    count = int(sum(m.sum() for m in mask))
    loss, metrics = compute_loss(now, old, None, advantages, mask, None, None, None, ours(**options), count, 1, 1)
    loss.backward()
    assert relative_error(gradient_of(made.model), expected) < 1e-6
    assert metrics["rlvr/tokens"].sum().item() == count


def test_expected_ref_kl_gradient_is_the_reverse_kl_and_that_of_our_sampled_token():
    """Over every token of a vocabulary: the ref_kl component teaches what our sampled-token form does, the reverse KL."""
    g = torch.Generator().manual_seed(1)
    logits = torch.randn(64, generator=g, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(64, generator=g, dtype=torch.float64).log_softmax(-1)
    student = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((student.exp() * (student - teacher)).sum(), logits, retain_graph=True)
    theirs, own = torch.zeros(64, dtype=torch.float64), torch.zeros(64, dtype=torch.float64)
    for token in range(64):
        inputs = LossInputs(
            trainer_logprobs=student[token : token + 1],
            inference_logprobs=student[token : token + 1].detach(),
            ref_logprobs=teacher[token : token + 1],
            advantages=torch.zeros(1),
            loss_mask=torch.ones(1, dtype=torch.bool),
        )
        share = student[token].exp().detach()
        theirs += share * torch.autograd.grad(ref_kl_loss_fn(inputs).loss, logits, retain_graph=True)[0]
        mine = sampled_token_per_token(student[token], teacher[token])
        own += share * torch.autograd.grad(mine, logits, retain_graph=True)[0]
    for found in (theirs, own):
        assert float((found - exact).norm() / exact.norm()) < 1e-12


def test_a_kl_to_the_reference_reads_the_reference():
    now, inputs = sequence()
    with_kl, without = ours(kl_beta=0.5)(inputs), ours()(inputs)
    assert with_kl.loss.item() > without.loss.item()
    assert with_kl.metrics["rlvr/kl_ref/mean"].item() > 0
    assert math.isfinite(torch.autograd.grad(with_kl.loss, now)[0].sum().item())
