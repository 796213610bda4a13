"""`compose_loss` against loops over trajectories, hints and pairs, written in float64 numpy from the papers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from composer_replication.config import HintConfig, LossConfig, ReplayConfig, RlvrConfig
from composer_replication.distillation import FrozenTeacher
from composer_replication.loss import compose_loss, sequence_logprobs
from composer_replication.loss.batch import collate
from composer_replication.policy_gradient import token_logprobs
from composer_replication.types.errors import ChannelOffError

ALL_ON = {"alpha_sdpo": 0.5, "beta_replay": 0.3}
OFF = ReplayConfig(weight=0.0)


def policy_gradient(**fields):
    """The first channel alone, with these fields of `loss.rlvr`."""
    return LossConfig(rlvr=RlvrConfig(**fields), hint=HintConfig(weight=0.0), replay=OFF)


@pytest.fixture(scope="module")
def model64(new_model):
    return new_model(dtype=torch.float64)


@pytest.fixture
def data(new_maker):
    return new_maker(0).everything()


@pytest.fixture
def batch(data):
    return collate(*data, pad_id=0)


# --- the reference ---------------------------------------------------------------------------------------------------


def log_p(model, ids, temperature=1.0):
    """[T, V] log-probs; row p predicts token p (row 0 is unused). One unpadded sequence at a time."""
    with torch.no_grad():
        z = model(input_ids=torch.tensor([ids])).logits[0].double().numpy() / temperature
    z = z - z.max(-1, keepdims=True)
    return np.roll(z - np.log(np.exp(z).sum(-1, keepdims=True)), 1, axis=0)


def policy_tokens(model, trajectory, temperature=1.0):
    """(log-prob now, log-prob when sampled) of every sampled token."""
    ids = trajectory.context_ids(len(trajectory.turns))
    now = log_p(model, ids, temperature)
    found = []
    for number, turn in enumerate(trajectory.turns):
        start = trajectory.action_start(number)
        found += [(now[start + k, token], old) for k, (token, old) in enumerate(zip(turn.action_ids, turn.logprobs, strict=True))]
    return found


def rlvr_reference(model, trajectories, advantages, objective, max_tokens, low=0.2, high=0.28, temperature=1.0):
    per_sequence = []
    for trajectory, advantage in zip(trajectories, advantages, strict=True):
        if advantage is not None:
            ratios = [math.exp(now - old) for now, old in policy_tokens(model, trajectory, temperature)]
            per_sequence.append([-min(r * advantage, min(max(r, 1 - low), 1 + high) * advantage) for r in ratios])
    if objective == "grpo":
        return np.mean([np.mean(losses) for losses in per_sequence])
    total = sum(sum(losses) for losses in per_sequence)
    return total / (sum(map(len, per_sequence)) if objective == "dapo" else len(per_sequence) * max_tokens)


def hint_reference(model, trajectories, hints, divergence, temperature=1.0):
    by_id = {t.trajectory_id: t for t in trajectories}
    total = 0.0
    for hint in hints:
        trajectory = by_id[hint.trajectory_id]
        student = log_p(model, trajectory.context_ids(len(trajectory.turns)), temperature)
        teacher = log_p(model, hint.teacher_ids, temperature)
        for k in range(len(hint.action_ids)):
            total += divergence(student[hint.student_start + k], teacher[hint.teacher_start + k])
    return total


def forward_kl(s, t):
    return (np.exp(t) * (t - s)).sum()


def reverse_kl(s, t):
    return forward_kl(t, s)


def jsd_half(s, t):
    m = np.log((np.exp(s) + np.exp(t)) / 2)
    return (forward_kl(m, t) + forward_kl(m, s)) / 2


def answer_logp(model, prompt, answer):
    table = log_p(model, prompt + answer)
    return sum(table[len(prompt) + k, token] for k, token in enumerate(answer))


def replay_reference(model, pairs, variant, beta=0.1):
    losses = []
    for p in pairs:
        c, r = (answer_logp(model, p.prompt_ids, ids) for ids in (p.chosen_ids, p.rejected_ids))
        if variant == "dpo":
            x = beta * ((c - p.ref_chosen_logprob) - (r - p.ref_rejected_logprob))
        else:
            x = 2.0 * (c / len(p.chosen_ids) - r / len(p.rejected_ids)) - 1.0
        losses.append(p.confidence * math.log1p(math.exp(-x)))
    return sum(losses) / len(pairs)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["grpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_policy_gradient_channel(model64, data, objective, temperature):
    got = compose_loss(model64, collate(*data, pad_id=0, objective=objective, max_tokens=20), temperature=temperature)
    expected = rlvr_reference(model64, data[0], data[1], objective, 20, temperature=temperature)
    assert got.rlvr.item() == pytest.approx(expected, rel=1e-6)
    assert got.total.item() == pytest.approx(expected, rel=1e-6)


def test_cross_entropy_channel(model64, data):
    batch = collate(data[0], None, pad_id=0)
    nll = [-now for t in data[0] for now, _ in policy_tokens(model64, t)]
    assert compose_loss(model64, batch).lm_ce.item() == pytest.approx(np.mean(nll), rel=1e-6)
    labels = torch.where(batch["response_mask"] != 0, batch["input_ids"], -100)
    bare = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}
    assert compose_loss(model64, bare).lm_ce.item() == pytest.approx(np.mean(nll), rel=1e-6)
    masked = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "response_mask": batch["response_mask"]}
    assert compose_loss(model64, masked).lm_ce.item() == pytest.approx(np.mean(nll), rel=1e-6)


def test_cross_entropy_is_hugging_faces_own(model, data):
    batch = collate(data[0], None, pad_id=0)
    labels = torch.where(batch["attention_mask"] != 0, batch["input_ids"], -100)  # position 0 is labelled, and drops out in both
    with torch.no_grad():
        theirs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
    bare = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}
    torch.testing.assert_close(compose_loss(model, bare).lm_ce.detach(), theirs)


@pytest.mark.parametrize(("beta", "divergence"), [(0.0, forward_kl), (0.5, jsd_half), (1.0, reverse_kl)])
@pytest.mark.parametrize("reduction", ["turn", "token"])
def test_hint_channel(model64, data, beta, divergence, reduction):
    got = compose_loss(
        model64,
        collate(*data, pad_id=0, hint_reduction=reduction),
        LossConfig(hint=HintConfig(weight=0.5, beta=beta, temperature=1.3), replay=OFF),
    )
    total = hint_reference(model64, data[0], data[2], divergence, temperature=1.3)
    tokens = sum(len(h.action_ids) for h in data[2])
    assert got.sdpo_jsd.item() == pytest.approx(total / (3 if reduction == "turn" else tokens), rel=1e-6)
    assert got.metrics["hint/tokens"] == tokens
    assert got.metrics["hint/jsd/mean"] == pytest.approx(total / tokens, rel=1e-6)
    entropies = hint_reference(model64, data[0], data[2], lambda _, t: -(np.exp(t) * t).sum(), temperature=1.3)
    assert got.metrics["hint/teacher_entropy/mean"] == pytest.approx(entropies / tokens, rel=1e-6)


@pytest.mark.parametrize("variant", ["dpo", "simpo"])
def test_replay_channel(model64, data, variant):
    got = compose_loss(model64, collate(*data, pad_id=0), beta_replay=0.3, dpo_variant=variant)
    tokens = sum(pair.confidence * len(pair.chosen_ids) for pair in data[3])
    assert got.trace_replay_dpo.item() == pytest.approx(replay_reference(model64, data[3], variant) * 3 / tokens, rel=1e-6)
    assert got.metrics["replay/pairs"] == 3


def test_a_turn_to_hold_is_imitated_and_not_compared(model64, data):
    """A pair without a rejected answer: in the loss as any other, and in no metric of the pairs."""
    *_, pairs = data
    held = dataclasses.replace(pairs[1], rejected_ids=())
    got = compose_loss(model64, collate([], [], [], [pairs[0], held], pad_id=0), LossConfig(replay=ReplayConfig(weight=0.3)))
    sums = {pair.pair_id: answer_logp(model64, pair.prompt_ids, pair.chosen_ids) for pair in (pairs[0], held)}
    tokens = sum(pair.confidence * len(pair.chosen_ids) for pair in (pairs[0], held))
    expected = -sum(pair.confidence * sums[pair.pair_id] for pair in (pairs[0], held)) / tokens
    assert got.trace_replay_dpo.item() == pytest.approx(expected, rel=1e-6)
    assert (got.metrics["replay/pairs"], got.metrics["replay/held"]) == (1.0, 1.0)
    mean = sums[pairs[0].pair_id] / len(pairs[0].chosen_ids)
    assert got.metrics["replay/chosen/logprob/mean"] == pytest.approx(mean, rel=1e-6)
    alone = compose_loss(model64, collate([], [], [], [held], pad_id=0), LossConfig(replay=ReplayConfig(weight=0.3)))
    assert (alone.metrics["replay/pairs"], alone.metrics["replay/held"]) == (0.0, 1.0)
    assert "replay/chosen/logprob/mean" not in alone.metrics
    with pytest.raises(ValueError, match="a turn to hold is for the variant sft, and the variant is dpo"):
        compose_loss(model64, collate([], [], [], [held], pad_id=0), beta_replay=0.3)


def test_taid_and_entropy_wrappers(model64, data):
    batch = collate(*data, pad_id=0, hint_reduction="turn")

    def taid(s, t):
        mixed = 0.3 * s + 0.7 * t
        return -(np.exp(mixed - np.log(np.exp(mixed).sum())) * s).sum()

    def opd(s, t):
        w = min(1.0, -(np.exp(t) * t).sum() / 3.0)
        return w * forward_kl(s, t) + (1 - w) * reverse_kl(s, t)

    got = compose_loss(model64, batch, alpha_sdpo=1.0, sdpo_wrapper="taid", taid_t=0.7)
    assert got.sdpo_jsd.item() == pytest.approx(hint_reference(model64, data[0], data[2], taid) / 3, rel=1e-6)
    got = compose_loss(model64, batch, alpha_sdpo=1.0, sdpo_wrapper="entropy_opd", entropy_opd_h_max=3.0)
    assert got.sdpo_jsd.item() == pytest.approx(hint_reference(model64, data[0], data[2], opd) / 3, rel=1e-6)


def test_total_is_the_weighted_sum(model64, batch):
    got = compose_loss(model64, batch, **ALL_ON, strict=True)
    expected = got.lm_ce + 0.5 * got.sdpo_jsd + 0.3 * got.trace_replay_dpo
    torch.testing.assert_close(got.total, expected)
    assert not got.off
    assert got.metrics["rlvr/loss"] == got.rlvr.item()
    names = {
        "rlvr/ratio/max",
        "rlvr/clip_frac",
        "rlvr/kl_k3",
        "rlvr/entropy/mean",
        "hint/loss",
        "replay/accuracy",
        "replay/margin/mean",
    }
    assert names <= set(got.metrics)
    assert all(math.isfinite(value) for value in got.metrics.values())


def test_policy_metrics(model64, data):
    got = compose_loss(model64, collate(*data, pad_id=0)).metrics
    scored = [(t, a) for t, a in zip(data[0], data[1], strict=True) if a is not None]
    tokens = [(now - old, a) for t, a in scored for now, old in policy_tokens(model64, t)]
    assert got["rlvr/tokens"] == len(tokens)
    assert got["rlvr/ratio/max"] == pytest.approx(math.exp(max(d for d, _ in tokens)), rel=1e-6)
    clipped = [(d < math.log(0.8) and a < 0) or (d > math.log(1.28) and a > 0) for d, a in tokens]
    assert got["rlvr/clip_frac"] == pytest.approx(np.mean(clipped), rel=1e-6)
    low, high = [d < math.log(0.8) and a < 0 for d, a in tokens], [d > math.log(1.28) and a > 0 for d, a in tokens]
    assert (got["rlvr/clip_frac/low"], got["rlvr/clip_frac/high"]) == pytest.approx((np.mean(low), np.mean(high)), rel=1e-6)
    assert any(low) or any(high)
    sampler_kl = np.mean([math.exp(d) - 1 - d for d, _ in tokens])  # KL(sampler || policy) on tokens drawn from the sampler
    assert got["rlvr/kl_k3"] == pytest.approx(sampler_kl, rel=1e-6)
    entropies = []
    for t, _ in scored:
        table = log_p(model64, t.context_ids(len(t.turns)))
        for number, turn in enumerate(t.turns):
            rows = table[t.action_start(number) : t.action_start(number) + len(turn.action_ids)]
            entropies += list(-(np.exp(rows) * rows).sum(-1))
    assert got["rlvr/entropy/mean"] == pytest.approx(np.mean(entropies), rel=1e-6)


def test_reference_kl_term(model64, data):
    batch = collate(*data, pad_id=0)
    with pytest.raises(ValueError, match="ref_logprobs"):
        compose_loss(model64, batch, policy_gradient(kl_beta=0.1))
    reference = np.random.default_rng(0).normal(-5, 0.3, batch["input_ids"].shape)
    batch["ref_logprobs"] = torch.tensor(reference)
    got = compose_loss(model64, batch, policy_gradient(kl_beta=0.1)).rlvr - compose_loss(model64, batch).rlvr
    kl = []
    for row, (trajectory, advantage) in enumerate(zip(data[0], data[1], strict=True)):
        now = log_p(model64, trajectory.context_ids(len(trajectory.turns)))
        for number, turn in enumerate(trajectory.turns):
            for k, token in enumerate(turn.action_ids):
                p = trajectory.action_start(number) + k
                d = reference[row, p] - now[p, token]
                if advantage is not None:
                    kl.append(math.exp(d) - d - 1)
    assert got.item() == pytest.approx(0.1 * np.mean(kl), rel=1e-6)


def test_advantages_per_row_and_per_token_agree(model, batch):
    per_row = dict(batch, advantages=torch.tensor([0.7, -1.2, 0.0, 0.0, 1.1]))
    torch.testing.assert_close(compose_loss(model, per_row).total, compose_loss(model, batch).total)


def test_without_old_logprobs_the_ratio_is_one(model, batch):
    on_policy = {key: value for key, value in batch.items() if key != "old_logprobs"}
    got = compose_loss(model, on_policy)
    assert got.metrics["rlvr/ratio/max"] == 1.0
    with torch.no_grad():
        logps = sequence_logprobs(model, batch["input_ids"], batch["attention_mask"], batch["response_mask"])
    same = compose_loss(model, dict(batch, old_logprobs=logps))
    torch.testing.assert_close(got.total, same.total)


def test_denominators_and_rows_may_be_absent(model, new_maker):
    maker = new_maker(3)
    trajectories = [maker.trajectory(f"t{i}") for i in range(2)]
    hints = [maker.hint(t, 0) for t in trajectories]
    batch = collate(
        trajectories, [1.0, -1.0], hints, [dataclasses.replace(maker.pair("p"), confidence=1.0)], pad_id=0, hint_reduction="token"
    )
    drop = ("rlvr_weights", "rlvr_denominator", "hint_denominator", "replay_denominator", "student_row", "dpo_weights")
    drop += ("attention_mask", "ctx_teacher_attention_mask", "dpo_chosen_attention_mask", "dpo_rejected_attention_mask")
    bare = {key: value for key, value in batch.items() if key not in drop}
    batch["replay_denominator"] = torch.ones(())  # one pair: without a denominator the mean is over pairs
    torch.testing.assert_close(compose_loss(model, bare, **ALL_ON, strict=True).total, compose_loss(model, batch, **ALL_ON).total)


def test_seeds_mask_convention_minus_100_is_out_of_the_loss(model, batch):
    minus = dict(batch, sdpo_loss_mask=torch.where(batch["sdpo_loss_mask"] > 0, 1, -100))
    torch.testing.assert_close(compose_loss(model, minus, **ALL_ON).total, compose_loss(model, batch, **ALL_ON).total)


def test_hint_weights_scale_tokens(model, batch):
    double = dict(batch, sdpo_loss_mask=2.0 * batch["sdpo_loss_mask"])
    torch.testing.assert_close(compose_loss(model, double, **ALL_ON).sdpo_jsd, 2 * compose_loss(model, batch, **ALL_ON).sdpo_jsd)


# --- gradients -------------------------------------------------------------------------------------------------------


def gradients(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def test_the_teacher_side_has_no_gradient(model64, batch):
    """The live self-teacher must act exactly like a frozen copy with the same weights."""
    only_hint = dict(batch, rlvr_weights=torch.zeros_like(batch["rlvr_weights"]))
    live = compose_loss(model64, only_hint, alpha_sdpo=1.0)
    frozen = compose_loss(model64, only_hint, alpha_sdpo=1.0, self_teacher=FrozenTeacher(model64))
    assert "rlvr" in live.off
    for a, b in zip(gradients(model64, live.total), gradients(model64, frozen.total), strict=True):
        torch.testing.assert_close(a, b)


def test_unscored_trajectories_teach_only_through_their_hints(model64, data):
    trajectories, advantages, _, _ = data
    kept = [i for i, a in enumerate(advantages) if a is not None]
    with_it = compose_loss(model64, collate(trajectories, advantages, pad_id=0)).total
    without = compose_loss(model64, collate([trajectories[i] for i in kept], [advantages[i] for i in kept], pad_id=0)).total
    torch.testing.assert_close(with_it, without, rtol=1e-7, atol=1e-9)
    for a, b in zip(gradients(model64, with_it), gradients(model64, without), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_temperature_is_folded_into_ratios(model, batch):
    row, position = batch["rlvr_weights"].nonzero(as_tuple=True)
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[row, position - 1]
        old, _ = token_logprobs(logits, batch["input_ids"][row, position], temperature=0.6)
    matched = dict(batch, old_logprobs=batch["old_logprobs"].index_put((row, position), old))
    assert compose_loss(model, matched, temperature=0.6).metrics["rlvr/ratio/max"] == pytest.approx(1.0, abs=1e-5)
    assert compose_loss(model, matched, temperature=1.0).metrics["rlvr/ratio/max"] > 1.1
    assert compose_loss(model, matched, temperature=0.6).metrics["rlvr/kl_k3"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_get_float32_losses_and_finite_gradients(new_model, batch, dtype):
    model = new_model(dtype=dtype)
    got = compose_loss(model, batch, **ALL_ON, strict=True)
    assert got.total.dtype == torch.float32
    got.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_sequence_logprobs(model, batch):
    mask = batch["response_mask"]
    got = sequence_logprobs(model, batch["input_ids"], batch["attention_mask"], mask)
    assert got.shape == mask.shape
    assert (got[mask == 0] == 0).all()
    assert (got[mask != 0] < 0).all()
    nothing = sequence_logprobs(model, batch["input_ids"], batch["attention_mask"], torch.zeros_like(mask)).sum()
    nothing.backward()
    assert all((p.grad == 0).all() for p in model.parameters() if p.grad is not None)
    with pytest.raises(ValueError, match="position 0"):
        sequence_logprobs(model, batch["input_ids"], batch["attention_mask"], torch.ones_like(mask))


# --- channels that are off -------------------------------------------------------------------------------------------


def without(batch, *prefixes):
    return {key: value for key, value in batch.items() if not key.startswith(prefixes)}


@pytest.mark.parametrize(
    ("change", "channel", "reason"),
    [
        (lambda b: without(b, "ctx_teacher_input_ids"), "hint", "no ctx_teacher_input_ids"),
        (lambda b: dict(b, ctx_teacher_input_ids=torch.zeros(0, 4, dtype=torch.long)), "hint", "is empty"),
        (lambda b: without(b, "teacher_response_idx"), "hint", "no teacher_response_idx"),
        (lambda b: dict(b, sdpo_loss_mask=torch.full_like(b["sdpo_loss_mask"], -100)), "hint", "selects no token"),
        (lambda b: without(b, "dpo_"), "replay", "no dpo_chosen_input_ids"),
        (lambda b: without(b, "dpo_rejected_ref"), "replay", "no dpo_rejected_ref_logprobs"),
        (lambda b: dict(b, dpo_weights=torch.zeros(3)), "replay", "weight 0"),
        (lambda b: dict(b, rlvr_weights=torch.zeros_like(b["rlvr_weights"])), "rlvr", "no token"),
        (lambda b: without(b, "input_ids"), "rlvr", "no input_ids"),
        (lambda b: without(b, "response_mask", "labels", "rlvr_weights"), "rlvr", "no labels, response_mask or rlvr_weights"),
    ],
)
def test_a_channel_without_inputs_is_off_and_says_why(model, batch, change, channel, reason):
    got = compose_loss(model, change(batch), **ALL_ON)
    assert reason in got.off[channel]
    value = {"rlvr": got.rlvr, "hint": got.sdpo_jsd, "replay": got.trace_replay_dpo}[channel]
    assert value.item() == 0.0
    assert not any(name.startswith(channel) for name in got.metrics)
    got.total.backward()
    with pytest.raises(ChannelOffError, match=reason):
        compose_loss(model, change(batch), **ALL_ON, strict=True)


def test_weight_zero_is_off_and_costs_nothing(model, batch):
    got = compose_loss(model, batch, strict=True)
    assert set(got.off) == {"hint", "replay"}
    assert "loss.hint.weight" in got.off["hint"]
    assert "loss.replay.weight" in got.off["replay"]
    bad = dict(batch, ctx_teacher_input_ids=batch["ctx_teacher_input_ids"] + 1)
    torch.testing.assert_close(compose_loss(model, bad).total, got.total)  # not even looked at


def test_simpo_reads_no_reference(model, batch):
    torch.testing.assert_close(
        compose_loss(
            model, without(batch, "dpo_chosen_ref", "dpo_rejected_ref"), beta_replay=1.0, dpo_variant="simpo", strict=True
        ).total,
        compose_loss(model, batch, beta_replay=1.0, dpo_variant="simpo").total,
    )


def test_everything_off_is_an_attached_zero(model):
    got = compose_loss(model, {}, **ALL_ON)
    assert set(got.off) == {"rlvr", "hint", "replay"}
    assert got.total.item() == 0.0
    got.total.backward()
    assert all((p.grad == 0).all() for p in model.parameters() if p.grad is not None)


def test_pairs_alone_are_enough(model, new_maker):
    pairs = [new_maker(5).pair("p")]
    got = compose_loss(model, collate([], [], [], pairs, pad_id=0), **ALL_ON)
    assert set(got.off) == {"rlvr", "hint"}
    got.total.backward()


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"sdpo_wrapper": "taid", "alpha_sdpo": 1.0}, "needs taid_t"),
        ({"sdpo_wrapper": "taid", "taid_t": 1.5}, "taid_t must be in"),
        ({"taid_t": 0.5}, "does not read taid_t"),
        ({"sdpo_wrapper": "tiad", "taid_t": 0.5}, "unknown sdpo_wrapper"),
        ({"dpo_variant": "sigmoid"}, "variant"),
        ({"alpha_sdpo": -1.0}, "greater than or equal to 0"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"alpha_sdpo": math.nan}, "finite"),
        ({"beta_replay": math.inf}, "finite"),
        ({"dpo_variant": "simpo", "simpo_beta": -1.0}, "simpo_beta"),
        ({"dpo_variant": "simpo", "simpo_gamma": -0.5}, "simpo_gamma"),
        ({"simpo_beta": 3.0}, "simpo_beta = 3.0 is not read with variant = dpo"),
        ({"sdpo_wrapper": "entropy_opd", "entropy_opd_h_max": 0.0}, "entropy_h_max"),
        ({"sdpo_wrapper": "entropy_opd", "taid_t": 0.5}, "does not read taid_t"),
        ({"entropy_opd_h_max": 2.0}, "entropy_h_max = 2.0 is not read with form = jsd"),
        ({"options": LossConfig(), "beta_replay": 1.0}, "give one of the two"),
    ],
)
def test_bad_keywords_raise(model, batch, keywords, message):
    """Also where the channel that they belong to is off."""
    with pytest.raises(ValueError, match=message):
        compose_loss(model, batch, **keywords)


@pytest.mark.parametrize(
    ("channel", "fields"),
    [
        ("hint", {"temperature": 0.0}),
        ("hint", {"beta": 1.2}),
        ("hint", {"beta": math.nan}),
        ("hint", {"scale": "continous"}),
        ("hint", {"form": "sampled_token", "scale": "continuous"}),
        ("replay", {"dpo_beta": 0.0}),
        ("rlvr", {"kl_beta": -0.1}),
        ("rlvr", {"kl_beta": math.nan}),
        ("rlvr", {"epsilon_low": -0.1}),
        ("rlvr", {"epsilon_high": math.nan}),
        ("rlvr", {"objective": "ppo"}),
        ("rlvr", {"importance": "icepop", "importance_low": 2.0, "importance_high": 1.0}),
    ],
)
def test_bad_options_raise_where_they_are_made(channel, fields):
    with pytest.raises(ValueError, match=next(reversed(fields)) if len(fields) < 3 else "importance_low"):
        LossConfig.model_validate({channel: fields})


def test_the_thresholds_are_those_of_the_surrogate(model, batch):
    """GSPO's are a thousandth of PPO's."""
    near = dict(batch, old_logprobs=sequence_logprobs(model, batch["input_ids"], None, batch["response_mask"]).detach() + 0.01)
    assert compose_loss(model, near, policy_gradient(objective="gspo")).metrics["rlvr/clip_frac"] > 0.0
    assert compose_loss(model, near, policy_gradient(objective="dapo")).metrics["rlvr/clip_frac"] == 0.0
    wide = policy_gradient(objective="gspo", epsilon_low=0.2, epsilon_high=0.28)
    assert compose_loss(model, near, wide).metrics["rlvr/clip_frac"] == 0.0


def test_unequal_tokens_at_a_compared_position_raise(model, batch):
    teacher_ids = batch["ctx_teacher_input_ids"].clone()
    turn, k = 2, 1
    teacher_ids[turn, batch["teacher_response_idx"][turn, k]] = 1
    row, at = int(batch["student_row"][turn]), int(batch["student_response_idx"][turn, k])
    with pytest.raises(
        ValueError, match=rf"hinted turn {turn}, compared token {k}: student row {row} .* at position {at}, .* token 1"
    ):
        compose_loss(model, dict(batch, ctx_teacher_input_ids=teacher_ids), alpha_sdpo=0.1)


@pytest.mark.parametrize("key", ["student_response_idx", "teacher_response_idx"])
@pytest.mark.parametrize("position", [0, -3, 10_000])
def test_positions_outside_a_sequence_raise(model, batch, key, position):
    moved = batch[key].clone()
    moved[0, 0] = position
    with pytest.raises(ValueError, match=f"{key} points to position {position}"):
        compose_loss(model, dict(batch, **{key: moved}), alpha_sdpo=0.1)


def test_a_position_in_the_padding_raises(model, batch):
    row = int(batch["attention_mask"].sum(1).argmin())
    batch = dict(batch, student_row=torch.full((3,), row))
    batch["student_response_idx"] = torch.full_like(batch["student_response_idx"], batch["input_ids"].shape[1] - 1)
    with pytest.raises(ValueError, match="outside that row's tokens"):
        compose_loss(model, batch, alpha_sdpo=0.1)


def test_inconsistent_streams_raise(model, batch):
    weights = batch["rlvr_weights"].clone()
    weights[0, 0] = 1.0
    with pytest.raises(ValueError, match="position 0"):
        compose_loss(model, dict(batch, rlvr_weights=weights))
    with pytest.raises(ValueError, match="rlvr_denominator must be above 0"):
        compose_loss(model, dict(batch, rlvr_denominator=torch.tensor(0.0)))


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize(
    ("key", "options"),
    [("old_logprobs", {}), ("sampler_logprobs", {"importance": "tis"}), ("ref_logprobs", {"kl_beta": 0.1}), ("advantages", {})],
)
def test_what_is_read_of_a_token_with_a_weight_must_be_finite(model, batch, key, options, value):
    """A log-ratio of infinity would count as e^20. What is not read, or has no weight, may be anything."""
    batch |= {"sampler_logprobs": batch["old_logprobs"], "ref_logprobs": batch["old_logprobs"]}
    row, position = (int(x[0]) for x in batch["rlvr_weights"].nonzero(as_tuple=True))
    stream = batch[key].clone()
    stream[batch["rlvr_weights"] == 0] = value
    chosen = policy_gradient(**options)
    expected = compose_loss(model, batch, chosen).total
    torch.testing.assert_close(compose_loss(model, dict(batch, **{key: stream}), chosen).total, expected)
    stream[row, position] = value
    with pytest.raises(ValueError, match=f"{key} is {value} at position {position} of row {row}"):
        compose_loss(model, dict(batch, **{key: stream}), chosen)
    if options:
        assert torch.isfinite(compose_loss(model, dict(batch, **{key: stream})).total)


def test_a_label_that_is_none_with_a_weight_raises(model, batch):
    labels = torch.where(batch["response_mask"] != 0, batch["input_ids"], -100)
    plain = {key: batch[key] for key in ("input_ids", "attention_mask", "rlvr_weights")}
    compose_loss(model, dict(plain, labels=labels))
    row, position = (int(x[0]) for x in batch["rlvr_weights"].nonzero(as_tuple=True))
    labels[row, position] = -100
    with pytest.raises(ValueError, match="rlvr_weights is not 0 where labels has no token"):
        compose_loss(model, dict(plain, labels=labels))


def test_a_pair_of_weight_0_has_no_influence(model, batch):
    expected = compose_loss(model, dict(batch, dpo_weights=torch.tensor([1.0, 0.0, 0.5])), beta_replay=1.0)
    broken = dict(
        batch, dpo_weights=torch.tensor([1.0, 0.0, 0.5]), dpo_chosen_ref_logprobs=batch["dpo_chosen_ref_logprobs"].clone()
    )
    broken["dpo_chosen_ref_logprobs"][1] = math.inf
    got = compose_loss(model, broken, beta_replay=1.0)
    assert torch.equal(got.total, expected.total)
    for a, b in zip(gradients(model, got.total), gradients(model, expected.total), strict=True):
        assert torch.equal(a, b)


def test_non_finite_sampler_logprobs_leave_numerator_and_denominator_together(model64, data):
    trajectories, advantages, _, _ = data
    first = trajectories[0].turns[0]
    broken = dataclasses.replace(first, logprobs=(float("-inf"), *first.logprobs[1:]))
    hurt = [dataclasses.replace(trajectories[0], turns=(broken, *trajectories[0].turns[1:])), *trajectories[1:]]
    batch = collate(hurt, advantages, pad_id=0)
    whole = collate(trajectories, advantages, pad_id=0)
    assert batch["dropped_tokens"] == 1
    assert compose_loss(model64, batch).metrics["rlvr/dropped/tokens"] == 1.0
    assert batch["rlvr_denominator"] == whole["rlvr_denominator"] - 1
    now, old = policy_tokens(model64, trajectories[0])[0]
    r = math.exp(now - old)
    lost = -min(r * 0.7, min(max(r, 0.8), 1.28) * 0.7)
    n = float(whole["rlvr_denominator"])
    expected = (compose_loss(model64, whole).total.item() * n - lost) / (n - 1)
    got = compose_loss(model64, batch).total
    assert got.item() == pytest.approx(expected, rel=1e-6)
    implicit = {key: value for key, value in batch.items() if key not in ("rlvr_weights", "rlvr_denominator", "advantages")}
    implicit |= {"advantages": torch.tensor([0.7, -1.2, 0.0, 0.0, 1.1]), "old_logprobs": batch["old_logprobs"].clone()}
    implicit["response_mask"] = batch["response_mask"] * torch.tensor([[1], [1], [0], [1], [1]])
    implicit["old_logprobs"][0, trajectories[0].action_start(0)] = float("nan")
    assert compose_loss(model64, implicit).total.item() == pytest.approx(expected, rel=1e-6)
