"""What a model cannot be spared costs time and memory, changes nothing, and is said."""

from __future__ import annotations

import copy

import pytest
import torch

from composer_replication.config import HintConfig, LossConfig, ReplayConfig
from composer_replication.kernels import one_pass
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.forward import read, why_no_tree

ALL_ON = {"alpha_sdpo": 0.5, "beta_replay": 0.3, "strict": True}


@pytest.fixture
def batch(new_maker):
    return collate(*new_maker(0).everything(), pad_id=0)


def plain_head(model):
    model.lm_head = torch.nn.Sequential(model.lm_head)


def counted_through(model):
    """Positions are counted through, whatever is said of them."""
    model.model.rotary_emb.register_forward_pre_hook(
        lambda _module, given: (given[0], torch.arange(given[0].shape[1], device=given[0].device)[None])
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (plain_head, {"head": "its output head is a torch.nn.modules.container.Sequential, not a plain linear layer"}),
        (counted_through, {"prefix": "it ignores position_ids"}),
    ],
)
@pytest.mark.parametrize("form", ["jsd", "entropy_opd"])
def test_the_slow_path_gives_the_same(new_model, batch, change, said, form):
    options = LossConfig(hint=HintConfig(weight=0.5, form=form, temperature=1.3), replay=ReplayConfig(weight=0.3))
    short, long = (new_model(dtype=torch.float64) for _ in range(2))
    change(long)
    found = []
    for model in (short, long):
        loss = compose_loss(model, batch, options, temperature=0.8, strict=True)
        loss.total.backward()
        found.append((loss, [p.grad for p in model.parameters()]))
    (ours, gradients), (theirs, expected) = found
    assert ours.fallbacks == {}
    assert theirs.fallbacks == said
    assert theirs.metrics == pytest.approx(ours.metrics, rel=1e-7, abs=1e-9)
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)  # transformers normalises in float32


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "one of several"])
def test_frequencies_that_change_with_the_length_forbid_a_shared_prefix(new_model, kind):
    """A prefix read alone would have other keys than the same prefix in a longer sequence."""
    model = new_model()
    assert why_no_tree(model) is None
    plain = {"rope_type": "default", "rope_theta": 1e4}
    model.config.rope_parameters = (
        {"full_attention": plain, "other": {"rope_type": "dynamic"}} if "one" in kind else {"rope_type": kind}
    )
    assert why_no_tree(model) == "its rotary frequencies depend on the length of the whole sequence"


@pytest.mark.parametrize("variant", ["dpo", "simpo"])
@pytest.mark.parametrize("empty", ["one answer", "a whole pair", "all of one side"])
def test_an_empty_answer_is_an_answer(new_model, batch, variant, empty, monkeypatch):
    model = new_model(dtype=torch.float64)
    if empty == "all of one side":
        batch["dpo_chosen_response_mask"] = torch.zeros_like(batch["dpo_chosen_response_mask"])
    else:
        for side in ("chosen", "rejected") if empty == "a whole pair" else ("rejected",):
            key, mask = f"dpo_{side}_response_mask", f"dpo_{side}_attention_mask"
            batch[mask] = batch[mask].clone()
            batch[mask][1] *= batch[key][1] == 0  # nothing stands after the prompt
            batch[key] = batch[key].clone()
            batch[key][1] = 0
    on = {"beta_replay": 1.0, "dpo_variant": variant}
    shared = compose_loss(model, batch, **on)
    monkeypatch.setattr(read, "why_no_tree", lambda _model: "asked for")
    whole = compose_loss(model, batch, **on)
    torch.testing.assert_close(shared.trace_replay_dpo, whole.trace_replay_dpo)
    for a, b in zip(*(torch.autograd.grad(x.total, list(model.parameters())) for x in (shared, whole)), strict=True):
        torch.testing.assert_close(a, b)


def test_pairs_without_any_answer_are_off(new_model, batch):
    for side in ("chosen", "rejected"):
        batch[f"dpo_{side}_response_mask"] = torch.zeros_like(batch[f"dpo_{side}_response_mask"])
    loss = compose_loss(new_model(), batch, beta_replay=1.0)
    assert loss.off["replay"] == "the response masks of the pairs select no token"
    loss.total.backward()


def test_no_gradient_is_formed_where_none_is_wanted(new_model, batch, monkeypatch):
    """Evaluating a loss costs its projections only."""
    model = new_model()
    products = []
    real = one_pass._mm
    monkeypatch.setattr(one_pass, "_mm", lambda a, b, *, out: products.append(b.shape) or real(a, b, out=out))
    with torch.no_grad():
        quiet = compose_loss(copy.deepcopy(model), batch, **ALL_ON)
    without, products[:] = len(products), []
    loss = compose_loss(model, batch, **ALL_ON)
    assert len(products) == without + 2  # the hidden states' gradient: one product for the policy gradient, one for the hints
    torch.testing.assert_close(quiet.total, loss.total.detach())
