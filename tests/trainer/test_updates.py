"""Several optimizer steps on one batch of rollouts, rows that cost nothing, and what a step says of its channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from learn import learn
from ranks import on_ranks
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from composer_replication.config import RunConfig, load_config
from composer_replication.loss import compose_loss, sequence_logprobs
from composer_replication.loss.batch import build_batch, collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward.models import load_policy
from composer_replication.loss.metrics import merge_updates
from composer_replication.loss.micro_batches import mini_batches
from composer_replication.trainer.balance import ChosenAlarm, imbalance
from composer_replication.trainer.learning.channel_gradients import compared_coordinates
from composer_replication.trainer.learning.learner import Learner
from composer_replication.types import StopReason, Trajectory, Turn
from composer_replication.types.errors import ConfigError, ModelError

RLVR_ALONE = ["--loss.hint.weight", "0", "--loss.replay.weight", "0", "--optimizer.warmup_steps", "0"]
RLVR_ALONE += ["--optimizer.learning_rate", "0.01", "--optimizer.micro_batch_tokens", "30"]
SEVERAL = ["--optimizer.mini_batches", "2", "--optimizer.epochs", "2"]
DECOUPLED = ["--loss.rlvr.importance", "tis", "--loss.rlvr.importance_high", "1.2"]


def trajectory(number: int) -> Trajectory:
    ids = tuple(range(10 + number, 14 + 2 * number))
    turn = Turn(action_ids=ids, logprobs=tuple(-5.0 - 0.1 * k for k in range(len(ids))), text="")
    return Trajectory(
        trajectory_id=f"0/t/{number}", task_id="t", policy_version=0, messages=(), tools=(), prompt_ids=(5, 6, 7 + number),
        turns=(turn,), stop_reason=StopReason.SUBMITTED, temperature=1.0, reward=0.0,
    )  # fmt: skip


def batch(advantages: list[float]) -> Batch:
    return collate([trajectory(number) for number in range(len(advantages))], advantages, pad_id=0)


def learner(config: RunConfig) -> Learner:
    torch.manual_seed(0)
    return Learner(load_policy(config.model)[0], config)


def by_hand(config: RunConfig, inputs: Batch) -> dict[str, torch.Tensor]:
    """The weights after one step, from a loop over mini-batches that are cut no further."""
    torch.manual_seed(0)
    model, _ = load_policy(config.model)
    model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=config.optimizer.betas, weight_decay=0.0)
    minis = mini_batches(inputs, config.optimizer.mini_batches, seed=0)
    if config.loss.rlvr.importance != "none":
        for mini in minis:
            mini["sampler_logprobs"] = mini["old_logprobs"]
            with torch.no_grad():
                mini["old_logprobs"] = sequence_logprobs(model, mini["input_ids"], mini["attention_mask"], mini["response_mask"])
    for _ in range(config.optimizer.epochs):
        for mini in minis:
            optimizer.zero_grad()
            compose_loss(model, mini, config.loss).total.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.max_grad_norm)
            optimizer.step()
    return dict(model.state_dict())


@pytest.mark.parametrize("words", [[], DECOUPLED], ids=["to the sampler", "decoupled"])
def test_several_updates_are_those_of_a_loop(run_file: Path, words: list[str]) -> None:
    config = load_config(run_file, [*RLVR_ALONE, *SEVERAL, *words])
    inputs = batch([1.0, -0.7, 0.4, -1.1])
    trained = learner(config)
    metrics = trained.update(inputs).metrics
    for name, value in by_hand(config, inputs).items():
        torch.testing.assert_close(trained.policy.state_dict()[name], value, rtol=1e-4, atol=1e-6)
    assert trained.version == 1
    assert metrics["optimizer/updates"] == 4
    assert metrics["rlvr/tokens"] == 2 * inputs["rlvr_weights"].sum()
    if words:
        assert metrics["rlvr/ratio/min"] < 0.99 < 1.01 < metrics["rlvr/ratio/max"], "to the policy before the first update"
        assert 0 < metrics["rlvr/importance/ess"] <= 1


def test_the_rate_moves_once_a_step_however_many_updates_it_takes(run_file: Path) -> None:
    config = load_config(run_file, [*RLVR_ALONE, *SEVERAL, "--optimizer.schedule", "linear", "--steps", "4"])
    trained = learner(config)
    rates = [trained.update(batch([1.0, -1.0])).metrics["optimizer/learning_rate"] for _ in range(4)]
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025])


@pytest.mark.slow
def test_two_processes_take_the_updates_of_one(run_file: Path, tmp_path: Path) -> None:
    """Sharded: scoring by the policy before the first update is collective, and a rank may have no rows."""
    config = load_config(run_file, [*RLVR_ALONE, *SEVERAL, *DECOUPLED])
    inputs = batch([1.0, -0.7, 0.4])
    expected = learn(0, config, inputs, 2)
    for sharded in (False, True):
        folder = tmp_path / str(sharded)
        folder.mkdir()
        first, _ = on_ranks(folder, learn, config, inputs, 2, sharded)
        for name, value in expected["weights"].items():
            torch.testing.assert_close(first["weights"][name], value, rtol=1e-3, atol=1e-5)


def sums_of_a_step(_rank: int, config: RunConfig, inputs: Batch) -> tuple[int, int]:
    """How many micro-batches this rank has in a step, and how often a bucket of gradients is summed over the ranks."""
    trained, passes, sums = learner(config), [], []

    def counted(bucket: Any) -> Any:
        sums.append(None)
        return allreduce_hook(None, bucket)

    trained.model.register_comm_hook(None, lambda _state, bucket: counted(bucket))
    backward = trained._backward
    trained._backward = lambda *given: passes.append(None) or backward(*given)  # type: ignore[method-assign,func-returns-value]
    trained.update(inputs)
    return len(passes), len(sums)


@pytest.mark.slow
def test_processes_sum_their_gradients_once_a_step(run_file: Path, tmp_path: Path) -> None:
    """However many micro-batches there are: the policy's few weights are one bucket."""
    config = load_config(run_file, [*RLVR_ALONE, "--optimizer.micro_batch_tokens", "10"])
    found = on_ranks(tmp_path, sums_of_a_step, config, batch([1.0, -0.7, 0.4, -1.1, 0.2, 0.9]))
    assert found == [(3, 1), (3, 1)]


def test_rows_without_an_advantage_change_nothing_and_go_through_no_pass(run_file: Path) -> None:
    config = load_config(run_file, RLVR_ALONE)
    inputs = batch([1.0, 0.0, 0.0, -1.0])
    trained, calls = learner(config), []
    trained.policy.model.register_forward_pre_hook(
        lambda _module, _args, given: calls.append(given["input_ids"].numel()), with_kwargs=True
    )
    metrics = trained.update(inputs).metrics
    lengths = inputs["attention_mask"].sum(-1)
    shared = int((inputs["input_ids"][0] == inputs["input_ids"][3]).cumprod(-1).sum())
    read = lengths[0] + lengths[3] - shared
    assert [count for count in calls if count > 7] == [read], "one pass of two rows; few tokens prove what the model can"
    assert metrics["optimizer/tokens"] == lengths[0] + lengths[3]
    assert metrics["optimizer/positions_per_token"] == pytest.approx(float(read / (lengths[0] + lengths[3])))
    for name, value in by_hand(config, inputs).items():
        torch.testing.assert_close(trained.policy.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def idle_after_a_step(_rank: int, config: RunConfig, taught: Batch, idle: Batch) -> dict[str, torch.Tensor]:
    """The weights after a step that teaches and one that does not."""
    trained = learner(config)
    trained.update(taught)
    assert "rlvr" in trained.update(idle).off
    assert trained.version == 2
    return trained.weights()


def test_a_batch_that_teaches_nothing_is_a_step_all_the_same(run_file: Path) -> None:
    """The first changes nothing; later ones go on with the momentum of every weight, and not of some."""
    config = load_config(run_file, [*RLVR_ALONE, *SEVERAL])
    trained = learner(config)
    before = trained.weights()
    result = trained.update(batch([0.0, 0.0]))
    assert trained.version == 1
    assert "rlvr" in result.off
    assert all(torch.equal(value, before[name]) for name, value in trained.weights().items())
    trained.update(batch([1.0, -1.0]))
    before = trained.weights()
    trained.update(batch([0.0, 0.0]))
    moved = {name for name, value in trained.weights().items() if not torch.equal(value, before[name])}
    assert moved == before.keys()


@pytest.mark.slow
def test_a_batch_that_teaches_nothing_is_one_step_on_any_number_of_processes(run_file: Path, tmp_path: Path) -> None:
    config = load_config(run_file, RLVR_ALONE)
    inputs = config, batch([1.0, -1.0]), batch([0.0, 0.0])
    expected = idle_after_a_step(0, *inputs)
    first, _ = on_ranks(tmp_path, idle_after_a_step, *inputs)
    for name, value in expected.items():
        torch.testing.assert_close(first[name], value, rtol=1e-3, atol=1e-5)


def test_a_loss_is_the_mean_over_updates_with_and_without_its_channel() -> None:
    updates = [{"hint/loss": 4.0, "hint/tokens": 8.0, "hint/jsd/mean": 0.5, "loss/total": 4.0}, {"loss/total": 0.0}] * 2
    alike = merge_updates(updates, ["rows"] * 4)
    assert alike == {"hint/loss": 2.0, "hint/tokens": 16.0, "hint/jsd/mean": 0.5, "loss/total": 2.0}


def test_losses_of_rows_and_of_pairs_with_steps_of_their_own_add_up() -> None:
    row, pairs = {"rlvr/loss": 3.0, "loss/total": 3.0}, {"replay/loss": 5.0, "loss/total": 5.0}
    merged = merge_updates([row, row, pairs], ["rows", "rows", "pairs"])
    assert merged == {"rlvr/loss": 3.0, "replay/loss": 5.0, "loss/total": 8.0}


def test_several_updates_are_refused_where_rounds_count_optimizer_steps(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="a round counts"):
        load_config(run_file, ["--diloco.enabled", "true", "--diloco.sync_every", "2", "--optimizer.epochs", "2"])


def test_exhausted_memory_is_said_of_scoring_too(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = learner(load_config(run_file, [*RLVR_ALONE, *SEVERAL, *DECOUPLED]))

    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(trained, "_proximal_logprobs", exhausted)
    with pytest.raises(ModelError, match="ran out of memory while learning in step 1: no room"):
        trained.update(batch([1.0, -1.0]))


def test_the_entropy_bonus_follows_its_target_and_is_resumed(run_file: Path) -> None:
    config = load_config(run_file, [*RLVR_ALONE, "--loss.rlvr.entropy_target", "100", "--loss.rlvr.entropy_step", "0.01"])
    trained = learner(config)
    bonuses = [trained.update(batch([1.0, -1.0])).metrics["rlvr/entropy/bonus"] for _ in range(3)]
    assert bonuses == pytest.approx([0.0, 0.01, 0.02])
    other = learner(config)
    other.load_state_dict(trained.state_dict(), trained.weights())
    assert other.update(batch([1.0, -1.0])).metrics["rlvr/entropy/bonus"] == pytest.approx(0.03)


def test_chosen_answers_that_fall_twice_in_a_row_are_told_of_once():
    alarm = ChosenAlarm()
    distances = [-0.6, 0.1, -0.6, None, -0.7, -0.9, -1.0]
    told = [alarm.follow({} if one is None else pairs_of_step(one)) for one in distances]
    assert [text is not None for text in told] == [False, False, False, False, True, False, False]
    assert "0.7 nats less likely than at the start; lower optimizer.learning_rate, or raise loss.replay.weight" in str(told[4])
    compares = ChosenAlarm()
    (_, text) = (compares.follow(pairs_of_step(-2.0) | {"replay/accuracy": 1.0}) for _ in range(2))
    assert "raise loss.replay.anchor" in str(text), "of a loss that compares, the anchor alone raises them"


def pairs_of_step(distance: float, pairs: float = 16.0) -> dict[str, float]:
    return {"replay/chosen/distance/mean": distance, "replay/known/pairs": pairs, "replay/chosen/tokens/mean": 20.0}


def test_few_pairs_are_no_reason_for_an_alarm() -> None:
    alarm = ChosenAlarm()
    assert [alarm.follow(pairs_of_step(-2.0, pairs=1.0)) for _ in range(16)] == [None] * 16
    assert alarm.follow(pairs_of_step(-2.0, pairs=1.0)) is not None


def test_a_channel_that_drowns_another_is_named() -> None:
    assert imbalance({"rlvr/pull": 1.0, "hint/pull": 9.0}) is None
    assert imbalance({"hint/pull": 9.0}) is None
    assert imbalance({"rlvr/pull": 0.0, "hint/pull": 9.0}) is None, "a step whose rewards are alike"
    assert imbalance({"rlvr/pull": 0.1, "hint/pull": 9.0, "replay/pull": 1.0}) == (
        "the hint channel pulls 90 times as hard on the policy as rlvr; lower loss.hint.weight or cap the channel with "
        "loss.hint.max_pull if that is not intended"
    )
    assert "; raise loss.hint.weight if" in str(imbalance({"replay/pull": 9.0, "hint/pull": 0.1}))
    assert imbalance({"rlvr/pull": 0.1, "replay/pull": 9.0}, ["rlvr", "hint"]) is None, "steps of its own"


def test_pulls_are_those_of_the_channels_alone(run_file: Path) -> None:
    """On one batch, the norm of the gradient on the hidden states before the head, over all micro-batches."""
    config = load_config(run_file, RLVR_ALONE)
    inputs = batch([1.0, -0.7, 0.4, -1.1])
    trained = learner(config)
    model, caught = trained.policy, []
    handle = model.lm_head.register_forward_pre_hook(lambda _module, args: args[0].register_hook(caught.append) and None)
    logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False).logits
    handle.remove()
    row, position = inputs["rlvr_weights"].nonzero(as_tuple=True)
    now = logits[row, position - 1].log_softmax(-1).gather(-1, inputs["input_ids"][row, position].unsqueeze(-1)).squeeze(-1)
    ratio = (now - inputs["old_logprobs"][row, position]).exp()
    advantage = inputs["advantages"][row, position]
    clipped = ratio.clamp(0.8, 1.28)
    (-torch.minimum(ratio * advantage, clipped * advantage).sum() / inputs["rlvr_denominator"]).backward()
    model.zero_grad()
    assert trained.update(inputs).metrics["rlvr/pull"] == pytest.approx(float(caught[0].norm()), rel=1e-4)


ALL_ON = ["--loss.hint.weight", "0.7", "--loss.replay.weight", "0.4", "--loss.replay.variant", "dpo"]


@pytest.mark.parametrize("words", [[], ["--optimizer.mini_batches", "2"], ["--loss.replay.learning_rate", "1e-3"]])
def test_gradients_of_channels_are_those_of_the_weights(run_file: Path, words: list[str]) -> None:
    """By a backward pass for each channel of a loss made here, on the whole batch, whatever updates are taken on it."""
    config = load_config(run_file, [*ALL_ON, *words])
    inputs = three_channels(config)
    trained = learner(config)
    weights = [p for p in trained.policy.parameters() if p.requires_grad]
    loss = compose_loss(trained.model, inputs, config.loss, self_teacher=trained.self_teacher)
    channels = {"rlvr": 1.0 * loss.rlvr, "hint": 0.7 * loss.sdpo_jsd, "replay": 0.4 * loss.trace_replay_dpo}
    found = {
        name: torch.cat([g.flatten() for g in torch.autograd.grad(value, weights, retain_graph=True, materialize_grads=True)])
        for name, value in channels.items()
    }
    metrics = trained.update(inputs).metrics
    for name, gradient in found.items():
        assert metrics[f"{name}/gradient/norm"] == pytest.approx(float(gradient.norm()), rel=1e-4)
    for name in ("hint", "replay"):
        cosine = torch.nn.functional.cosine_similarity(found[name], found["rlvr"], dim=0)
        assert metrics[f"{name}/gradient/cosine"] == pytest.approx(float(cosine), rel=1e-3, abs=1e-5)
    assert not [name for name in trained.update(inputs).metrics if "/gradient/" in name], "the next ones are due in step 21"


def three_channels(config: RunConfig) -> Batch:
    policy, tokenizer = load_policy(config.model)
    sizes = {"rlvr_denominator": 9.0, "hint_denominator": 1.0, "replay_denominator": 2.0}
    return build_batch(tokenizer, model=policy) | {name: torch.tensor(size) for name, size in sizes.items()}


def test_measuring_gradients_changes_no_step(run_file: Path) -> None:
    configs = [load_config(run_file, [*ALL_ON, "--optimizer.channel_gradients_every", every]) for every in ("1", "0")]
    inputs = three_channels(configs[0])
    measured, plain = (learn(0, config, inputs, 2) for config in configs)
    assert all(torch.equal(a, b) for a, b in zip(measured["weights"].values(), plain["weights"].values(), strict=True))
    names = [*(f"{channel}/gradient/cosine" for channel in ("hint", "replay")), "hint/gradient/norm", "replay/gradient/norm"]
    for one, other in zip(measured["metrics"], plain["metrics"], strict=True):
        assert sorted(one.keys() - other.keys()) == sorted([*names, "rlvr/gradient/norm"])


def test_one_channel_alone_has_the_gradient_of_the_loss(run_file: Path) -> None:
    """`optimizer/grad_norm` says it already."""
    config = load_config(run_file, [*RLVR_ALONE, "--optimizer.channel_gradients_every", "1"])
    assert not [name for name in learner(config).update(batch([1.0, -0.7])).metrics if "/gradient/" in name]


def test_few_coordinates_estimate_the_whole_gradient() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(96, 4096), torch.nn.Linear(4096, 64))
    model[0].weight.grad = torch.randn_like(model[0].weight)  # a layer that is not reached has none
    exact, few = compared_coordinates(model), compared_coordinates(model, most=2**15)
    assert exact.numel() == sum(p.numel() for p in model.parameters())
    assert few.numel() <= 2**15 + 4
    assert float(few.norm()) == pytest.approx(float(exact.norm()), rel=0.02)


def test_processes_that_share_weights_out_measure_the_gradients_of_one(run_file: Path, tmp_path: Path) -> None:
    config = load_config(run_file, ALL_ON)
    inputs = three_channels(config)
    alone = learn(0, config, inputs, 1)["metrics"][0]
    names = [name for name in alone if "/gradient/" in name]
    assert len(names) == 5
    for sharded in (False, True):
        folder = tmp_path / str(sharded)
        folder.mkdir()
        for found in on_ranks(folder, learn, config, inputs, 1, sharded):
            assert [found["metrics"][0][name] for name in names] == pytest.approx([alone[name] for name in names], rel=1e-3)
