"""Learning from pairs: the brake on losses that push answers down, KTO's reference point, and steps with a rate of their own."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.config import load_config
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import UNMATCHED_KEYS, Batch
from composer_replication.loss.forward.models import load_policy
from composer_replication.loss.metrics import merge_metrics
from composer_replication.loss.micro_batches import split
from composer_replication.recipes.limits import refuse, unbraked
from composer_replication.trainer.learning.brake import ReplayBrake
from composer_replication.trainer.learning.controls import Controls
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.learning.reference import with_unmatched
from composer_replication.trainer.learning.scores import kto_divergence
from composer_replication.trainer.pairs.reattempts import Reattempts
from composer_replication.types import Pair, StopReason, Trajectory, Turn
from composer_replication.types.errors import ConfigError

ALONE = ["--loss.hint.weight", "0", "--optimizer.warmup_steps", "0"]
ALIKE = [
    Pair(pair_id=str(i), prompt_ids=(40 + i, 41, 42), chosen_ids=(50, 51, 60 + i, 53, 54), rejected_ids=(50, 51, 70 + i, 53, 54))
    for i in range(8)
]
"""Answers that differ in one token, as those of an edit do."""


def step(distance: float, pairs: float = 8.0) -> dict[str, float]:
    return {"replay/chosen/distance/mean": distance, "replay/known/pairs": pairs, "replay/chosen/tokens/mean": 20.0}


def test_the_brake_acts_when_chosen_answers_have_fallen_twice_and_lets_go_above_the_start() -> None:
    brake = ReplayBrake()
    shares = []
    for distance in (-2.0, -2.0, -2.0, -0.6, -0.6, 0.2, 0.4, 0.4, 0.4, 0.4):
        brake.follow(step(distance))
        shares.append(brake.share)
    assert shares == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.5, 1.0, 1.0, 1.0]


def test_the_brake_waits_for_16_pairs_and_for_steps_with_pairs() -> None:
    brake = ReplayBrake()
    for _ in range(15):
        brake.follow(step(-9.0, pairs=1.0))
        brake.follow({"rlvr/loss": 1.0})
    assert brake.share == 1.0
    for _ in range(2):
        brake.follow(step(-9.0, pairs=1.0))
    assert brake.share == 0.5
    for _ in range(100):
        brake.follow(step(-9.0))
    assert brake.share == 1 / 64, "never off, or nothing could let it go"


def test_a_long_answer_may_move_further_before_the_brake_acts() -> None:
    shares = []
    for tokens in (500.0, 30.0):
        brake = ReplayBrake()
        for _ in range(2):
            brake.follow(step(-2.0) | {"replay/chosen/tokens/mean": tokens, "replay/known/pairs": 16.0})
        shares.append(brake.share)
    assert shares == [1.0, 0.5], "2 nats are .004 of a long answer's token, and .07 of a short one's"


def test_the_brake_goes_on_where_it_was() -> None:
    one, other = ReplayBrake(), ReplayBrake()
    for distance in (-2.0, -2.0):
        one.follow(step(distance))
    other.load_state_dict(one.state_dict())
    for brake in (one, other):
        brake.follow(step(-2.0))
    assert one.share == other.share == 0.5
    assert one.state_dict() == other.state_dict()


def learner(run_file: Path, *words: str) -> Learner:
    config = load_config(run_file, [*ALONE, *words])
    torch.manual_seed(0)
    return Learner(load_policy(config.model)[0], config)


def batch(trained: Learner, pairs: list[Pair] = ALIKE) -> Batch:
    return collate([], None, [], trained.with_reference_logprobs(pairs), pad_id=0)


def likelihoods(trained: Learner) -> tuple[float, float]:
    """Mean log-prob of the chosen and of the rejected answers."""
    scored = trained.with_reference_logprobs([replace(pair, pair_id=f"{pair.pair_id}!") for pair in ALIKE])
    return (
        sum(pair.ref_chosen_logprob or 0.0 for pair in scored) / 8,
        sum(pair.ref_rejected_logprob or 0.0 for pair in scored) / 8,
    )


@pytest.mark.parametrize("variant", ["sft", "dpo", "dpo_positive", "ipo", "apo_zero", "kto", "simpo"])
def test_with_the_default_anchor_chosen_answers_never_fall(run_file: Path, variant: str) -> None:
    trained = learner(run_file, "--loss.replay.variant", variant, "--optimizer.learning_rate", "1e-3")
    data = batch(trained)
    start, _ = likelihoods(trained)
    for _ in range(6):
        metrics = trained.update(data).metrics
        now, _ = likelihoods(trained)
        assert now > start
        start = now
    assert metrics["replay/chosen/distance/mean"] > 0
    assert metrics.get("replay/preference_share", 1.0) == 1.0, "nothing had to be braked"


def test_without_an_anchor_they_fall_and_the_brake_says_so(run_file: Path) -> None:
    """The published form of DPO on answers that are much alike: what the anchor is there for."""
    config = load_config(run_file, [*ALONE, "--loss.replay.variant", "dpo", "--optimizer.learning_rate", "1e-2"])
    bare = config.loss.replay.model_copy(update={"anchor": 0.0})
    config = config.model_copy(update={"loss": config.loss.model_copy(update={"replay": bare})})
    trained = Learner(load_policy(config.model)[0], config)
    data = batch(trained)
    seen = [trained.update(data).metrics for _ in range(12)]
    assert min(step["replay/chosen/distance/mean"] for step in seen) < -1.0
    assert seen[-1]["replay/accuracy"] == 1.0, "which does not show it"
    assert seen[0]["replay/preference_share"] == 1.0
    assert min(step["replay/preference_share"] for step in seen) < 1.0


def test_the_brake_holds_the_preferences_and_not_the_anchor(run_file: Path) -> None:
    config = load_config(run_file, ["--loss.replay.variant", "dpo", "--loss.replay.weight", "0.8", "--loss.replay.anchor", "0.5"])
    controls = Controls.of(config)
    assert controls.brake is not None
    assert controls.options(config.loss).replay == config.loss.replay
    controls.brake.share = 0.25
    braked = controls.options(config.loss).replay
    assert braked.weight == pytest.approx(0.25 * 0.8)
    assert braked.weight * braked.anchor == pytest.approx(0.8 * 0.5)


def test_every_loss_that_reads_rejected_answers_is_braked(run_file: Path) -> None:
    """SimPO too: it needs no reference itself, and its chosen answers can fall all the same."""
    assert Controls.of(load_config(run_file, ["--loss.replay.variant", "simpo"])).brake is not None
    assert Controls.of(load_config(run_file, ["--loss.replay.variant", "sft"])).brake is None
    trained = learner(run_file, "--loss.replay.variant", "simpo")
    assert {"replay/chosen/distance/mean", "replay/preference_share"} <= trained.update(batch(trained)).metrics.keys()


def test_sft_tells_of_the_rejected_answers_now_and_then(run_file: Path) -> None:
    """It does not read them in its update: they are read in the first step and every so many after it, as log-probs per token."""
    trained = learner(run_file, "--loss.replay.variant", "sft", "--optimizer.channel_gradients_every", "2")
    held = replace(ALIKE[0], pair_id="held", rejected_ids=())
    data = batch(trained, [*ALIKE, held])
    _, start = likelihoods(trained)
    metrics = [trained.update(data).metrics for _ in range(3)]
    assert metrics[0]["replay/rejected/logprob/mean"] == pytest.approx(start / 5, rel=1e-5)
    assert metrics[0]["replay/rejected/distance/mean"] == pytest.approx(0.0, abs=1e-5)
    assert not any(name.startswith("replay/rejected") for name in metrics[1])
    assert metrics[2]["replay/rejected/distance/mean"] != 0.0
    assert "hint/gradient/norm" not in metrics[0], "one channel alone"
    none = learner(run_file, "--loss.replay.variant", "sft", "--optimizer.channel_gradients_every", "0")
    assert not any(name.startswith("replay/rejected") for name in none.update(batch(none)).metrics)


def test_an_anchor_of_0_is_refused_in_a_run_file(run_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"anchor = 0 with variant = dpo: chosen answers would fall"):
        load_config(run_file, ["--loss.replay.variant", "dpo", "--loss.replay.anchor", "0"])
    with pytest.raises(ConfigError, match=r"anchor = 2\.0 is not read with variant = sft"):
        load_config(run_file, ["--loss.replay.anchor", "2"])
    load_config(run_file, ["--loss.replay.variant", "dpo", "--loss.replay.anchor", "0", "--loss.replay.weight", "0"])


def test_kto_s_reference_point_is_that_of_all_micro_batches(run_file: Path) -> None:
    weights = []
    for tokens in ("10000", "10"):
        words = ["--loss.replay.variant", "kto", "--optimizer.micro_batch_tokens", tokens, "--optimizer.learning_rate", "1e-2"]
        trained = learner(run_file, *words)
        data = batch(trained)
        assert data.keys() >= set(UNMATCHED_KEYS)
        for _ in range(3):
            trained.update(data)
        weights.append(trained.weights())
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-4, atol=1e-5, msg=name)


def test_kto_s_reference_point_is_the_divergence_on_answers_to_other_prompts(run_file: Path) -> None:
    trained = learner(run_file, "--loss.replay.variant", "kto")
    pairs = trained.with_reference_logprobs(ALIKE)
    followers = [*ALIKE[1:], ALIKE[0]]
    assert [one.unmatched_ids for one in pairs[0::2]] == [one.chosen_ids for one in followers[0::2]]
    assert [one.unmatched_ids for one in pairs[1::2]] == [one.rejected_ids for one in followers[1::2]]
    with torch.no_grad():
        for weight in trained.policy.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    found = collate([], None, [], pairs, pad_id=0)
    unmatched = {key: found[key] for key in UNMATCHED_KEYS}
    distances = []
    for pair in pairs:
        ids = torch.tensor([[*pair.prompt_ids, *pair.unmatched_ids]])
        scores = trained.policy(ids).logits[0].detach().double().log_softmax(-1)
        start = len(pair.prompt_ids)
        now = sum(float(scores[start + n - 1, token]) for n, token in enumerate(pair.unmatched_ids))
        assert pair.ref_unmatched_logprob is not None
        distances.append(now - pair.ref_unmatched_logprob)
    expected = sum(distances) / len(distances)
    found_divergence = [kto_divergence(trained.policy, unmatched, tokens, torch.device("cpu")).item() for tokens in (8, 10_000)]
    assert found_divergence == pytest.approx([max(0.0, expected)] * 2, abs=1e-5)
    unmatched["dpo_unmatched_ref_logprobs"] -= 9.0  # the same answers, and a reference that finds them less likely
    assert kto_divergence(trained.policy, unmatched, 10_000, torch.device("cpu")).item() == pytest.approx(
        expected + 9.0, abs=1e-5
    )


def test_the_alarm_on_chosen_answers_hears_of_the_pairs_beside_reattempts(run_file: Path) -> None:
    trained = learner(run_file)
    known = trained.with_reference_logprobs(ALIKE[:1])
    new = replace(ALIKE[1], chosen_ids=(50, 51))
    step = Reattempts(pairs=[new]).beside(known)
    assert step == [*known, new]
    data, options = collate([], None, [], step, pad_id=0), trained.config.loss
    made = compose_loss(trained.policy, data, options).metrics
    alone = compose_loss(trained.policy, collate([], None, [], known, pad_id=0), options).metrics
    assert made["replay/chosen/distance/mean"] == pytest.approx(alone["replay/chosen/distance/mean"], abs=1e-5)
    assert (made["replay/pairs"], made["replay/known/pairs"], made["replay/chosen/tokens/mean"]) == (2.0, 1.0, 3.5)
    parts = [compose_loss(trained.policy, part, options).metrics for part in split(data, 1)]
    assert len(parts) == 2
    assert merge_metrics(parts)["replay/chosen/distance/mean"] == pytest.approx(made["replay/chosen/distance/mean"], abs=1e-5)
    compares = learner(run_file, "--loss.replay.variant", "dpo").config.loss
    with pytest.raises(ValueError, match="of both answers of every pair"):
        compose_loss(trained.policy, data, compares)


def test_pairs_of_one_prompt_have_no_unmatched_answers_and_a_reference_point_of_0(run_file: Path) -> None:
    alike = [replace(pair, prompt_ids=(5, 6)) for pair in ALIKE]
    assert [pair.unmatched_ids for pair in with_unmatched(alike)] == [()] * len(ALIKE)
    assert kto_divergence(learner(run_file).policy, {}, 8, torch.device("cpu")) == 0.0


OWN = ["--loss.replay.learning_rate", "1e-4", "--optimizer.learning_rate", "1e-2"]


def rows() -> Batch:
    """Two rollouts, of which one is better."""
    turns = [Turn(action_ids=(50, 51 + i), logprobs=(-5.0, -5.1), text="") for i in range(2)]
    made = [
        Trajectory(
            trajectory_id=f"0/t/{i}", task_id="t", policy_version=0, messages=(), tools=(), prompt_ids=(5, 6, 7), turns=(turn,),
            stop_reason=StopReason.SUBMITTED, temperature=1.0, reward=float(i),
        )
        for i, turn in enumerate(turns)
    ]  # fmt: skip
    return collate(made, [1.0, -1.0], pad_id=0)


def test_pairs_with_a_rate_of_their_own_take_the_step_of_a_run_of_pairs_alone(run_file: Path) -> None:
    both = learner(run_file, *OWN)
    alone = learner(run_file, "--optimizer.learning_rate", "1e-4")
    taught, pairs = learner(run_file, *OWN), batch(both)
    taught.update(rows())
    alone.policy.load_state_dict(taught.policy.state_dict())
    result = both.update(rows() | pairs)
    alone.update(pairs)
    for name, value in both.weights().items():
        torch.testing.assert_close(value, alone.weights()[name], rtol=1e-6, atol=1e-7, msg=name)
    assert result.metrics["optimizer/updates"] == 2.0
    assert result.off.keys() == {"hint"}


def test_both_optimizers_are_resumed(run_file: Path, tmp_path: Path) -> None:
    one, other = learner(run_file, *OWN), learner(run_file, *OWN)
    data = rows() | batch(one)
    one.update(data)
    other.load_state_dict(copy.deepcopy(one.state_dict()), one.weights())
    for trained in (one, other):
        trained.update(data)
    assert all(torch.equal(value, other.weights()[name]) for name, value in one.weights().items())


@pytest.mark.parametrize("kind", ["trl", "verl", "prime_rl"])
def test_substrates_with_optimizers_of_their_own_refuse_it(run_file: Path, kind: Any) -> None:
    config = load_config(run_file, ["--loss.replay.learning_rate", "1e-4"])
    with pytest.raises(ConfigError, match=r"loss\.replay\.learning_rate"):
        refuse(config, kind)


def test_substrates_without_a_brake_say_so(run_file: Path) -> None:
    compares = load_config(run_file, ["--loss.replay.variant", "dpo"])
    for kind in ("trl", "verl", "prime_rl"):
        assert "no brake on substrate.type" in str(unbraked(compares, kind))
        assert unbraked(load_config(run_file), kind) is None, "sft pushes nothing down"
        assert unbraked(load_config(run_file, ["--loss.replay.weight", "0"]), kind) is None
    assert all(unbraked(compares, kind) is None for kind in ("local", "monarch", "ray"))
