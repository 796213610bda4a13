"""What advantages are taken from besides the verdict, and groups that are made up for."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_learner import learner
from world import finish

from composer_replication.config import RunConfig, load_config
from composer_replication.loss.batch import collate
from composer_replication.observe import RunDir
from composer_replication.trainer.rewards import effort_of, taking_part, weigh
from composer_replication.types import Group, HintedTurn, Reward, StopReason, ToolCall, Trajectory, Turn, Unscored

THINK_END = 9
CALL = ToolCall(call_id="1", name="search", arguments={})


def trajectory(name: str, *turns: Turn, reward: Reward = 1.0) -> Trajectory:
    return Trajectory(
        trajectory_id=name, task_id="t", policy_version=0, messages=(), tools=(), prompt_ids=(1, 2), turns=turns,
        stop_reason=StopReason.SUBMITTED, temperature=1.0, reward=reward,
    )  # fmt: skip


def turn(*ids: int, calls: int = 0, reply: int = 0) -> Turn:
    return Turn(action_ids=ids, logprobs=(-1.0,) * len(ids), text="", tool_calls=(CALL,) * calls, observation_ids=(3,) * reply)


def group(*trajectories: Trajectory) -> Group:
    return Group(group_id="g", task_id="t", trajectories=trajectories)


def config(run_file: Path, *words: str) -> RunConfig:
    return load_config(run_file, ["--loss.rlvr.advantage", "dr_grpo", *words])


def test_effort_is_counted_by_kind() -> None:
    effort = effort_of(
        trajectory("a", turn(5, 5, THINK_END, 4, calls=2, reply=7), turn(4, 4, calls=1, reply=2), turn(4, THINK_END, 4, 4)),
        THINK_END,
    )
    assert (effort.thinking_tokens, effort.tool_call_tokens, effort.final_tokens) == (5, 3, 2)
    assert (effort.tool_output_tokens, effort.tool_calls, effort.turns) == (9, 3, 3)
    assert effort_of(trajectory("a", turn(5, THINK_END, 4)), None).thinking_tokens == 0


def test_of_two_that_pass_the_quicker_is_better(run_file: Path) -> None:
    quick, slow = trajectory("quick", turn(1, 1, calls=1)), trajectory("slow", turn(*[1] * 12, calls=1))
    asked = config(run_file, "--reward.effort.weight", "0.1", "--reward.effort.k", "0.5", "--reward.effort.q", "1.0")
    found = weigh([group(quick, slow)], asked)
    penalties = [0.1 * math.log1p(0.5 * x) / 0.5 for x in (2, 12)]
    assert found.values == pytest.approx([(penalties[1] - penalties[0]) / 2, (penalties[0] - penalties[1]) / 2])
    assert found.metrics["reward/effort_penalty"] == pytest.approx(sum(penalties) / 2)
    assert found.metrics["rlvr/advantage/max"] == pytest.approx(found.values[0])
    assert found.metrics["rlvr/advantage/min"] == pytest.approx(found.values[1])
    assert found.metrics["rlvr/advantage/std"] == pytest.approx(found.values[0]), "half of the distance of two"
    assert weigh([group(quick, slow)], config(run_file)).values == [0.0, 0.0]


def test_the_last_tokens_of_the_budget_cost(run_file: Path) -> None:
    asked = config(run_file, "--reward.overlong_tokens", "10", "--rollout.trajectory_tokens", "30")
    found = weigh([group(trajectory("a", turn(*[1] * 20)), trajectory("b", turn(*[1] * 25)))], asked)
    assert found.values == pytest.approx([0.25, -0.25])


def test_the_kl_is_asked_for_only_where_it_counts(run_file: Path) -> None:
    both = [group(trajectory("a", turn(1)), trajectory("b", turn(1)), trajectory("c", turn(1), reward=Unscored("broken")))]
    found = weigh(both, config(run_file, "--reward.kl_weight", "0.5"), kl=lambda ts: [float(len(ts)), 1.0, 100.0])
    assert found.values == [pytest.approx(-0.5), pytest.approx(0.5), None]

    def refuse(_: object) -> list[float]:
        raise AssertionError

    weigh(both, config(run_file), kl=refuse)
    with pytest.raises(ValueError, match="nothing gives the KL"):
        weigh(both, config(run_file, "--reward.kl_weight", "0.5"))


def test_the_kl_is_that_of_the_recorded_log_probs(run_file: Path) -> None:
    asked = load_config(run_file, ["--reward.kl_weight", "0.5", "--rollout.temperature", "0.7"])
    trained = learner(asked)
    rollouts = [trajectory("a", turn(5, 6, 7, reply=3), turn(8, 9)), trajectory("b", turn(4, 11))]
    hole = replace(rollouts[0].turns[0], logprobs=(-1.0, float("nan"), -1.0))
    rollouts[0] = replace(rollouts[0], turns=(hole, rollouts[0].turns[1]))
    expected = []
    for one in rollouts:
        ids = one.context_ids(len(one.turns))
        with torch.no_grad():
            table = trained.policy(torch.tensor([ids])).logits[0].div(0.7).log_softmax(-1)
        expected.append(0.0)
        for number, each in enumerate(one.turns):
            for k, token in enumerate(each.action_ids):
                if math.isfinite(each.logprobs[k]):
                    expected[-1] += each.logprobs[k] - table[one.action_start(number) + k - 1, token].item()
    assert trained.kl_to_reference(rollouts) == pytest.approx(expected, rel=1e-4)


def test_where_verdicts_agree_a_penalty_weighs_what_it_says(run_file: Path) -> None:
    siblings = group(*(trajectory(str(n), turn(*[1] * n), reward=0.0) for n in (2, 12)))
    given = ["--loss.rlvr.advantage", "grpo", "--reward.effort.k", "0.5", "--reward.effort.q", "1.0", "--reward.effort.weight"]
    small, large = (weigh([siblings], load_config(run_file, [*given, weight])).values for weight in ("0.0001", "0.1"))
    assert large == pytest.approx([1000 * value for value in small])
    assert max(small) < 1e-3


def test_with_refills_a_group_of_one_verdict_has_no_advantages(run_file: Path) -> None:
    same = group(trajectory("a", turn(1, calls=1)), trajectory("b", turn(1, 1, calls=1)))
    differ = group(trajectory("c", turn(1)), trajectory("d", turn(1), reward=0.0))
    words = ["--reward.effort.weight", "0.1"]
    assert None not in weigh([same, differ], config(run_file, *words)).values
    assert weigh([same, differ], config(run_file, *words, "--rollout.refills", "1")).values[:2] == [None, None]
    assert None not in weigh([same, differ], config(run_file, *words, "--rollout.refills", "1")).values[2:]


def test_who_has_neither_advantage_nor_hint_stays_out_of_the_batch_and_changes_nothing(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of those that take part is the gradient of all."""
    rollouts = [trajectory(name, turn(*ids)) for name, ids in (("a", (1, 4, 2)), ("b", (3, 3)), ("c", (2, 5, 5, 1)))]
    hint = HintedTurn(
        trajectory_id="c", turn=0, student_start=2, teacher_ids=(1, 2, 7, 2, 5, 5, 1), teacher_start=3, action_ids=(2, 5, 5, 1)
    )
    kept, advantages = taking_part(rollouts, [0.5, None, None], [hint])
    assert [t.trajectory_id for t in kept] == ["a", "c"]
    assert advantages == [0.5, None]
    gradients = []
    for shown, given in ((rollouts, [0.5, None, None]), (kept, advantages)):
        trained = learner(config(run_file))
        monkeypatch.setattr(trained.optimizer, "zero_grad", lambda: None)
        trained.update(collate(shown, given, [hint], pad_id=0))
        gradients.append(torch.cat([p.grad.flatten() for p in trained.policy.parameters()]))
    assert gradients[0].abs().max() > 1e-3
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_groups_that_teach_nothing_are_made_up_for(run_file: Path) -> None:
    """With every option that shapes rewards and losses on; what was sampled is kept, and each task only once."""
    words = ["--steps", "1", "--rollout.refills", "2", "--rollout.groups", "1", "--reward.effort.weight", "0.01"]
    words += ["--reward.overlong_tokens", "16", "--reward.kl_weight", "0.01", "--loss.rlvr.importance", "icepop"]
    words += ["--loss.hint.form", "entropy_gated", "--loss.rlvr.kl_beta", "0.01", "--loss.replay.weight", "0"]
    finish("train", str(run_file), *words, cwd=run_file.parent)
    run = RunDir(run_file.parent / "runs" / "run")
    practised = run.read_trajectories("main", 1)
    groups: dict[str, list[float]] = {}
    for one in practised:
        groups.setdefault(one.task_id, []).append(float(one.reward))  # type: ignore[arg-type]  # all are scored here
    size = load_config(run_file, []).rollout.group_size
    assert all(len(rewards) == size for rewards in groups.values())
    barren = [rewards for rewards in groups.values() if len(set(rewards)) == 1]
    assert len(groups) in (1 + len(barren), 3)
    assert len(groups) > 1, "the untrained policy passes no test, so the first group is barren"
    last = run.read_metrics()[-1].values
    assert {"reward/effort_penalty", "reward/overlong_penalty", "reward/kl_penalty"} <= set(last)
