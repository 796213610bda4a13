"""From rollouts to a gradient through PRIME-RL's own code: finalize, stamp, pack, tensors, loss, backward."""

from __future__ import annotations

import asyncio

import pytest
import torch
from one_gradient import gradient_of, relative_error
from prime_rl.configs.algorithm import GRPOAlgoConfig
from prime_rl.configs.trainer import CustomLossConfig
from prime_rl.trainer.batch import prepare_batch
from prime_rl.trainer.rl.data import DataLoader
from prime_rl.trainer.rl.loss import compute_loss, setup_rl_loss_fn
from prime_rl.trainer.utils import build_bin_cost
from rollouts import finalized, group, logprobs_of, pairs_as_rollouts, rollout

from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.policy_gradient import group_advantages
from composer_replication.recipes.prime_rl.algorithm import PAIR
from composer_replication.recipes.prime_rl.config import LOSS_FN
from composer_replication.recipes.prime_rl.scoring import REFERENCES, hint_maker, select_hints, shared_pairs
from composer_replication.recipes.prime_rl.traces import trajectory_of
from composer_replication.types.errors import BackendError, ConfigError


def packed_gradient(model, samples, loss_fn, *, seq_len=1000):
    """Gradient of the trainer's sum over what PRIME-RL packs; its metrics, and how many sequences each micro-batch held."""
    (mine,) = prepare_batch(samples, seq_len, 1, [0] * len(samples), 1, build_bin_cost(None))
    loader = DataLoader.__new__(DataLoader)
    tensors = [loader._micro_batch_to_tensor(one) for one in mine]

    def count(stream):
        if stream == "rl_weights":
            return sum(
                int((t["loss_mask"] & (t[stream] != 0)).sum() if t[stream] is not None else t["loss_mask"].sum()) for t in tensors
            )
        return sum(int((t[stream] != 0).sum()) for t in tensors if t[stream] is not None)

    scales = [max(1, count(stream)) for stream in ("rl_weights", "ce_weights", "ref_kl_weights")]
    model.zero_grad()
    metrics = {}
    for one in tensors:
        sizes = one["sequence_lengths"]

        def split(name, one=one, sizes=sizes):
            return None if one[name] is None else one[name][0].split(sizes)

        ids = [part.tolist() for part in split("input_ids")]
        now = [logprobs_of(model, part).float() for part in ids]  # stands for the packed forward pass
        streams = ("inference_logprobs", "ref_logprobs", "advantages", "loss_mask", "rl_weights", "ce_weights", "ref_kl_weights")
        loss, found = compute_loss(now, *(split(name) for name in streams), loss_fn, *scales)
        metrics |= found
        loss.backward()
    found = gradient_of(model)
    model.zero_grad()
    return found, metrics, [len(t["sequence_lengths"]) for t in tensors]


def composer_loss(**kwargs):
    return setup_rl_loss_fn(CustomLossConfig(import_path=LOSS_FN, kwargs=kwargs))


def local_gradient(policy, config, rollouts, pairs):
    """compose_loss on the same trajectories, hints and pairs."""
    model, tokenizer, _ = policy
    trajectories = [trajectory_of(one, one.branches[0].nodes) for one in rollouts]
    maker = hint_maker(config)
    advantages = group_advantages([one.reward for one in rollouts], config.loss.rlvr.advantage) if rollouts else []
    hinted = select_hints(maker, trajectories).hinted if maker and trajectories else ()
    batch = collate(
        trajectories, advantages, hinted, pairs, pad_id=int(tokenizer.pad_token_id), objective="dapo", hint_reduction="token"
    )
    batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    model.zero_grad()
    loss = compose_loss(model, batch, config.loss)
    loss.total.backward()
    found = gradient_of(model)
    model.zero_grad()
    return found, loss


def with_references(built, policy, *, moved=0.0):
    """Pairs with what the reference said of them; `moved` shifts it, so that the policy is not its own reference."""
    from dataclasses import replace

    if built.pairs.references:
        built.pairs.references = tuple((chosen - moved, rejected + moved) for chosen, rejected in built.pairs.references)
        return [
            replace(pair, ref_chosen_logprob=chosen, ref_rejected_logprob=rejected)
            for pair, (chosen, rejected) in zip(built.pairs.pairs, built.pairs.references, strict=True)
        ]
    return list(built.pairs.pairs)


@pytest.fixture(autouse=True)
def fresh_pairs():
    """Each run reads its own."""
    from composer_replication.recipes.prime_rl import scoring

    scoring._opened.cache_clear()


def test_hints_are_written_at_the_error_turn_only(algorithm, policy):
    built, _ = algorithm()
    good, bad = group(policy)
    before = len(built.policy_pool.read)
    samples = finalized(built, [good, bad])
    assert samples[0].ref_kl_weights is None
    assert samples[0].ref_logprobs is None
    action = bad.nodes[1]
    start = len(bad.nodes[0].token_ids) + action.mask.index(True)
    size = sum(action.mask)
    expected = [0.7 if start <= i < start + size else 0.0 for i in range(len(samples[1].token_ids))]
    assert samples[1].ref_kl_weights == expected
    assert samples[1].rl_weights is None  # so that rl has every sampled token
    (context,) = built.policy_pool.read[before:]
    assert context[-size:] == action.token_ids[-size:]
    read = policy[1].decode(context)
    assert "open_file" in read
    assert "Hint" in read
    assert bad.metrics["hint/tokens"] == size
    assert good.metrics["hint/turns"] == 0.0
    assert [good.advantages[-1], bad.advantages[-1]] == pytest.approx(group_advantages([1.0, 0.0], "grpo"))


def without_logprobs(policy, count):
    siblings = group(policy)
    for one in siblings[:count]:
        one.nodes[1].logprobs = []
    return siblings


def test_branches_that_cannot_be_read_are_counted(algorithm, policy):
    built, _ = algorithm()
    good, bad = without_logprobs(policy, 1)
    finalized(built, [good, bad])
    assert [one.metrics["hint/unread"] for one in (good, bad)] == [1.0, 0.0]
    assert [one.metrics["hint/turns"] for one in (good, bad)] == [0.0, 1.0]


def test_that_none_of_a_step_s_rollouts_can_be_read_is_an_error(algorithm, policy):
    built, _ = algorithm(**{"rollout.groups": "2", "rollout.group_size": "2"})
    for lost in (2, 1):  # one of four could be read
        finalized(built, without_logprobs(policy, lost))
    finalized(built, without_logprobs(policy, 2))
    with pytest.raises(BackendError, match="none of 4 rollouts can be read"):
        finalized(built, without_logprobs(policy, 2))


def test_reward_minus_mean_is_the_stock_algorithm(algorithm, policy):
    from prime_rl.orchestrator.algo.grpo import GRPOAlgorithm

    built, _ = algorithm(**{"loss.rlvr.advantage": "dr_grpo"})
    mine = finalized(built, group(policy))
    stock = finalized(GRPOAlgorithm(GRPOAlgoConfig(), None), group(policy))
    assert [s.advantages for s in mine] == [s.advantages for s in stock]


def test_a_group_without_signal_stays_for_its_hints_alone(algorithm, policy):
    built, _ = algorithm(**{"rollout.refills": "1"})
    siblings = [
        rollout(policy, call=c, answer=a, reward=0.0, name=c)
        for c, a in (("read_file", "x"), ("open_file", "Tool 'open_file' not found"))
    ]
    plain, hinted = finalized(built, siblings)
    assert set(plain.advantages) == {0.0}  # the filter for these drops it
    assert hinted.advantages is None
    assert set(hinted.rl_weights) == {0.0}
    assert any(hinted.ref_kl_weights)
    prepare_batch([hinted], 1000, 1, [0], 1, build_bin_cost(None))  # no rl token lacks an advantage


def test_pairs_are_rollouts_of_two_branches(algorithm, tmp_path):
    built, _ = algorithm()
    rollouts = pairs_as_rollouts(tmp_path / "out" / "rl.toml")
    assert [one.info[PAIR] for one in rollouts] == [0, 1, 2]
    for one, pair in zip(rollouts, built.pairs.pairs, strict=True):
        assert [list(s.token_ids) for s in one.samples] == [
            [*pair.prompt_ids, *pair.chosen_ids],
            [*pair.prompt_ids, *pair.rejected_ids],
        ]
    samples = finalized(built, rollouts)
    assert all(set(s.rl_weights) == {0.0} for s in samples)
    assert all(sum(s.ce_weights) > 0 for s in samples[::2])
    assert all(sum(s.ce_weights) < 0 for s in samples[1::2])
    assert {name for one in rollouts for name in one.metrics} == {
        "replay/loss",
        "replay/margin",
        "replay/accuracy",
        "replay/pairs",
    }


def test_imitation_weighs_the_chosen_answers_alone_and_reads_no_reference(algorithm, tmp_path):
    built, _ = algorithm(**{"loss.replay.variant": "sft"})
    rollouts = pairs_as_rollouts(tmp_path / "out" / "rl.toml")
    samples = finalized(built, rollouts)
    assert all(sum(s.ce_weights) > 0 for s in samples[::2])
    assert all(set(s.ce_weights) == {0.0} for s in samples[1::2])
    assert {name for one in rollouts for name in one.metrics} == {"replay/loss", "replay/pairs"}
    assert not (tmp_path / "out" / REFERENCES).exists()


@pytest.mark.parametrize("variant", ["sft", "dpo", "dpo_positive", "ipo", "apo_zero", "simpo"])
def test_the_gradient_of_pairs_through_the_real_packing(algorithm, policy, tmp_path, variant):
    built, config = algorithm(**{"loss.replay.variant": variant})
    pairs = with_references(built, policy, moved=1.5)
    samples = finalized(built, pairs_as_rollouts(tmp_path / "out" / "rl.toml"))
    found, metrics, packed = packed_gradient(policy[0], samples, composer_loss())
    expected, loss = local_gradient(policy, config, [], pairs)
    assert max(packed) > 1  # several sequences in one micro-batch
    assert "nll" in metrics
    error = relative_error(found, expected)
    print(f"{variant}: relative error of the gradient {error:.2e}, local loss {loss.trace_replay_dpo.item():.4f}")
    assert error < 1e-5


@pytest.mark.parametrize("seq_len", [1000, 220])
def test_one_gradient_with_all_three_channels(algorithm, policy, tmp_path, seq_len):
    """Through finalize, stamping, packing (into one micro-batch or several) and the trainer's sum: what compose_loss finds."""
    built, config = algorithm()
    pairs = with_references(built, policy, moved=1.5)
    rollouts = group(policy)
    samples = [*finalized(built, rollouts), *finalized(built, pairs_as_rollouts(tmp_path / "out" / "rl.toml"))]
    longest = max(len(s.token_ids) for s in samples)
    found, metrics, packed = packed_gradient(policy[0], samples, composer_loss(objective="dapo"), seq_len=max(longest, seq_len))
    expected, loss = local_gradient(policy, config, rollouts, pairs)
    assert not loss.off
    error = relative_error(found, expected)
    print(f"seq_len {seq_len}: {packed} sequences per micro-batch, relative error of the gradient {error:.2e}")
    assert error < 1e-5
    assert {"rlvr/tokens", "ref_kl", "nll"} <= metrics.keys()
    for name in ("rlvr/kl_k3", "rlvr/loss", "rlvr/ratio/max"):
        assert torch.isfinite(metrics[name]).all()


def test_the_reference_reads_pairs_once(algorithm, policy, tmp_path):
    built, config = algorithm()
    assert len(built.policy_pool.read) == 2 * 3
    assert (tmp_path / "out" / REFERENCES).is_file()
    again = shared_pairs(config, tmp_path / "out")
    again.references = ()

    async def refuse(ids):
        raise AssertionError("read again")

    asyncio.run(again.read_references(refuse))
    assert again.references == built.pairs.references


def test_another_file_of_pairs_is_refused(algorithm, tmp_path):
    built, _ = algorithm()
    first, *_ = pairs_as_rollouts(tmp_path / "out" / "rl.toml")
    first.info[PAIR] = 1
    with pytest.raises(ConfigError, match="give all processes one pairs file"):
        finalized(built, [first])


def test_a_frozen_teacher_that_nobody_serves_is_refused(algorithm, monkeypatch):
    built, config = algorithm()
    hint = config.loss.hint.model_copy(update={"self_teacher": "frozen"})
    built.run_config = config.model_copy(update={"loss": config.loss.model_copy(update={"hint": hint})})
    with pytest.raises(ConfigError, match="COMPOSER_PRIME_RL_FROZEN_URL"):
        asyncio.run(built.open_channels())
