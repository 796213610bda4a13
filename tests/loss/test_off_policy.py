"""Several updates on one batch are held together by the two-sided clip, SAPO's gate, weights of whole sequences, the mask of
off-policy sequences, the entropy bonus. Against whole-logit code written from the papers, in float64."""

from __future__ import annotations

import math

import pytest
import torch

from composer_replication.config import HintConfig, LossConfig, ReplayConfig, RlvrConfig
from composer_replication.loss import compose_loss, sequence_logprobs
from composer_replication.loss.batch import collate
from composer_replication.loss.forward import fallbacks
from composer_replication.loss.micro_batches import split
from composer_replication.policy_gradient import THRESHOLDS, EntropyControl, clipped_surrogate, off_policy_mask


@pytest.fixture(scope="module")
def models(new_model):
    """One whose head is fused, and one whose head is another class, and so is not."""
    fused, plain = new_model(dtype=torch.float64, tied=False), new_model(dtype=torch.float64, tied=False)
    plain.lm_head.forward = lambda hidden: torch.nn.functional.linear(hidden, plain.lm_head.weight)
    plain.lm_head.__class__ = type("OtherHead", (torch.nn.Module,), {"forward": torch.nn.Linear.forward})
    assert ["head" in fallbacks(model) for model in (fused, plain)] == [False, True]
    return {"fused": fused, "plain": plain}


@pytest.fixture
def batch(models, new_maker):
    """With the log-probs of a proximal policy that has moved, and of another sampler; in float64 throughout."""
    made = collate(*new_maker(0).everything()[:2], pad_id=0)
    made |= {key: made[key].double() for key in ("advantages", "rlvr_weights", "rlvr_denominator")}
    with torch.no_grad():
        now = sequence_logprobs(models["fused"], made["input_ids"], made["attention_mask"], made["response_mask"])
    torch.manual_seed(1)
    made["old_logprobs"] = now + 0.5 * torch.randn_like(now)
    made["sampler_logprobs"] = made["old_logprobs"] + 0.4 * torch.randn_like(now)
    made["ref_logprobs"] = now + 0.3 * torch.randn_like(now)
    return made


def options_of(**fields):
    return LossConfig(rlvr=RlvrConfig(**fields), hint=HintConfig(weight=0.0), replay=ReplayConfig(weight=0.0))


def whole(model, batch, token_loss, bonus=0.0):
    """sum(w l) / N and its gradient from the whole logits; `token_loss(now, old, sampler, advantage, row)` on flat tokens."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits
    row, position = batch["rlvr_weights"].nonzero(as_tuple=True)
    logprobs = logits[row, position - 1].log_softmax(-1)
    now = logprobs.gather(-1, batch["input_ids"][row, position].unsqueeze(-1)).squeeze(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    streams = (batch[key][row, position] for key in ("old_logprobs", "sampler_logprobs", "advantages"))
    losses = token_loss(now, *streams, row) - bonus * entropy
    value = (batch["rlvr_weights"][row, position] * losses).sum() / batch["rlvr_denominator"]
    return value, torch.autograd.grad(value, list(model.parameters()))


def assert_same(model, batch, options, token_loss, bonus=0.0):
    value, expected = whole(model, batch, token_loss, bonus)
    read = {key for key in batch if key != "sampler_logprobs" or options.rlvr.importance != "none"}
    given = {key: batch[key] for key in read}
    for parts in ([given], split(given, 40)):
        found = [compose_loss(model, part, options) for part in parts]
        total = sum(one.total for one in found)
        torch.testing.assert_close(total, value, rtol=1e-10, atol=1e-12)
        for ours, theirs in zip(torch.autograd.grad(total, list(model.parameters())), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-11)
    return compose_loss(model, given, options).metrics


def ppo(now, old, advantage, low=0.2, high=0.28, cap=None):
    r = (now - old).exp()
    clipped = r.clamp(1 - low, 1 + high)
    r = r if cap is None else r.clamp(max=cap)
    return -torch.minimum(r * advantage, clipped * advantage)


def means(values, row):
    return torch.stack([values[row == r].mean() for r in row])


@pytest.mark.parametrize("kind", ["fused", "plain"])
class TestAgainstWholeLogits:
    def test_the_two_sided_clip(self, models, batch, kind):
        metrics = assert_same(
            models[kind],
            batch,
            options_of(ratio_cap=1.4),
            lambda now, old, _, advantage, row: ppo(now, old, advantage, cap=1.4),
        )
        assert metrics["rlvr/clip_frac/high"] > 0
        assert metrics["rlvr/ratio/max"] > 1.4

    def test_sapo(self, models, batch, kind):
        def gate(now, old, _sampler, advantage, _row):
            t = torch.tensor([1.0 if a > 0 else 1.05 for a in advantage], dtype=torch.float64)
            return -4 / t * torch.sigmoid(t * ((now - old).exp() - 1)) * advantage

        assert_same(models[kind], batch, options_of(objective="sapo"), gate)

    @pytest.mark.parametrize("correction", ["tis", "icepop"])
    def test_importance_weights_of_sequences(self, models, batch, kind, correction):
        """Decoupled: ratios to the proximal policy, weights from there to the sampler."""

        def weighed(now, old, sampler, advantage, row):
            w = torch.stack([(old - sampler)[row == r].sum() for r in row]).exp()
            w = w.clamp(max=1.5) if correction == "tis" else torch.where((w >= 0.5) & (w <= 1.5), w, 0.0)
            return w * ppo(now, old, advantage)

        interval = {"importance_high": 1.5} | ({"importance_low": 0.5} if correction == "icepop" else {})
        options = options_of(importance=correction, importance_level="sequence", **interval)
        metrics = assert_same(models[kind], batch, options, weighed)
        assert 0 < metrics["rlvr/importance/limited_frac"] < 1

    def test_the_mask_of_off_policy_sequences(self, models, batch, kind):
        def masked(now, old, _sampler, advantage, row):
            away = (means(old - now.detach(), row) > 0.02) & (advantage < 0)
            return torch.where(away, 0.0, ppo(now, old, advantage))

        metrics = assert_same(models[kind], batch, options_of(off_policy_threshold=0.02), masked)
        assert 0 < metrics["rlvr/off_policy_frac"] < 1

    @pytest.mark.parametrize("objective", ["dapo", "gspo"])
    def test_the_entropy_bonus(self, models, batch, kind, objective):
        def loss(now, old, _sampler, advantage, row):
            if objective == "dapo":
                return ppo(now, old, advantage)
            mean = means((now - old).detach(), row)
            return ppo(now - now.detach() + mean, torch.zeros_like(mean), advantage, 3e-4, 4e-4)

        assert_same(models[kind], batch, options_of(objective=objective, entropy_bonus=0.3), loss, bonus=0.3)

    @pytest.mark.parametrize("estimator", ["k3", "k2", "unbiased"])
    def test_the_kl_to_the_reference(self, models, batch, kind, estimator):
        row, position = batch["rlvr_weights"].nonzero(as_tuple=True)
        reference = batch["ref_logprobs"][row, position]

        def loss(now, old, _sampler, advantage, _row):
            d = reference - now
            k3 = d.exp() - 1 - d
            term = {"k3": k3, "k2": d**2 / 2, "unbiased": (now - old).exp() * k3}[estimator]
            return ppo(now, old, advantage) + 0.2 * term

        assert_same(models[kind], batch, options_of(kl_beta=0.2, kl_estimator=estimator), loss)


def test_the_cap_is_above_the_clip():
    x = torch.zeros(1)
    with pytest.raises(ValueError, match="ratio_cap must be above 1 \\+ epsilon_high"):
        clipped_surrogate(x, x, x, epsilon_high=0.5, ratio_cap=1.5)
    for objective, kind in (("dapo", "ppo"), ("gspo", "gspo")):
        least = 1.0 + THRESHOLDS[kind][1]
        with pytest.raises(ValueError, match="the clip acts before it"):
            RlvrConfig(objective=objective, ratio_cap=least)
        assert RlvrConfig(objective=objective, ratio_cap=1.0001 * least)


@pytest.mark.parametrize(
    "unread",
    [
        {"objective": "cispo", "ratio_cap": 9.0},
        {"objective": "sapo", "epsilon_low": 0.1},
        {"entropy_step": 0.1},
        {"kl_estimator": "k2"},
        {"importance_level": "sequence"},
    ],
    ids=str,
)
def test_a_field_that_nothing_would_read_is_refused(unread):
    with pytest.raises(ValueError, match="not read"):
        RlvrConfig(**unread)


def test_only_negative_sequences_are_masked():
    now, sampled = torch.tensor([-3.0, -3.0, -3.0]), torch.tensor([-1.0, -1.0, -3.0])
    kept = off_policy_mask(now, sampled, torch.tensor([-1.0, 1.0, -1.0]), torch.tensor([0, 1, 2]), 0.5)
    assert kept.tolist() == [0.0, 1.0, 1.0]


def test_the_entropy_bonus_follows_its_target():
    """Off until the entropy is low, then growing, falling above the target; never outside [0, 1]."""
    control = EntropyControl(0.01, target=0.5, delta=0.02)
    assert control.applied == 0.0
    applied = []
    for entropy in (0.9, 0.4, 0.3, 0.8, 0.2):
        control.update(entropy)
        applied.append(control.applied)
    assert applied == pytest.approx([0.0, 0.02, 0.04, 0.0, 0.04])
    saved = control.state_dict()
    other = EntropyControl(0.5, target=0.5, delta=0.02)
    other.load_state_dict(saved)
    assert (other.applied, other.coefficient) == (control.applied, control.coefficient)
    for _ in range(100):
        control.update(0.0)
    assert control.applied == 1.0
    assert math.isclose(control.coefficient, 1.0)
