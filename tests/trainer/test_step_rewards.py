"""`[reward.prm]`: a process reward model's scores in the advantages of a step."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForTokenClassification, Qwen3Config
from world import World, finish

from composer_replication.config import RunConfig, load_config
from composer_replication.envs.oracle import call_turn as call
from composer_replication.loss.forward.models import load_policy, save_policy
from composer_replication.observe import RunDir
from composer_replication.policy_gradient import process_advantages
from composer_replication.prm import make_prm
from composer_replication.quickstart.policy import tiny_tokenizer
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.trainer.rewards import weigh
from composer_replication.trainer.signals import HintSources, SignalMaker
from composer_replication.trainer.step_rewards import load_step_scorer
from composer_replication.types import Group, Message, StopReason, Trajectory, Turn, Unscored
from composer_replication.types.errors import ConfigError


def write_prm(folder: Path, *, seed: int = 0, tokenizer: object = None) -> Path:
    """An untrained model whose scores are far apart."""
    tokenizer = tokenizer or tiny_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=2048, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    model = make_prm(config, seed=seed)
    with torch.no_grad():
        model.score.weight.mul_(100)
    save_policy(model, tokenizer, folder)
    return folder


def asked(run_file: Path, prm: Path, *words: str) -> RunConfig:
    return load_config(run_file, ["--reward.prm.path", str(prm), "--reward.prm.weight", "0.5", *words])


def trajectory(renderer: ChatRenderer, name: str, patterns: Sequence[str], reward: float | Unscored) -> Trajectory:
    """One search per pattern."""
    opening = (Message(role="user", content="Find it."),)
    turns = []
    for place, pattern in enumerate(patterns):
        ids = renderer.assistant_ids(call("search", pattern=pattern))
        reply = renderer.delta_ids([Message(role="tool", content="nothing")], ended=True) if place + 1 < len(patterns) else ()
        turns.append(Turn(action_ids=ids, logprobs=(-1.0,) * len(ids), text="", observation_ids=reply))
    return Trajectory(
        trajectory_id=name, task_id="t", policy_version=0, messages=opening, tools=(), turns=tuple(turns), reward=reward,
        prompt_ids=renderer.prompt_ids(opening, ()), stop_reason=StopReason.SUBMITTED, temperature=1.0,
    )  # fmt: skip


def test_a_steps_advantage_is_the_sum_of_the_normalised_scores_that_follow() -> None:
    found = process_advantages([[0.2, 0.9], [0.4], []])
    mean, spread = 0.5, math.sqrt((0.09 + 0.16 + 0.01) / 2) + 1e-4
    assert found[0] == pytest.approx([(0.1) / spread, 0.4 / spread])
    assert found[1] == pytest.approx([(0.4 - mean) / spread])
    assert found[2] == []
    assert process_advantages([[0.2, None, 0.9], [0.4]])[0] == pytest.approx([0.1 / spread, 0.4 / spread, 0.4 / spread])
    assert process_advantages([[0.3, 0.3], [0.3]]) == [[0.0, 0.0], [0.0]]
    assert process_advantages([[None]]) == [[0.0]]
    with pytest.raises(ValueError, match="finite"):
        process_advantages([[math.nan]])


def test_scores_are_asked_for_only_where_they_count_and_unscored_siblings_take_no_part(run_file: Path, tmp_path: Path) -> None:
    renderer = ChatRenderer(tiny_tokenizer())
    rollouts = (("a", "xy", 1.0), ("b", "z", 0.0), ("c", "z", Unscored("broken")))
    siblings = Group(group_id="g", task_id="t", trajectories=tuple(trajectory(renderer, *each) for each in rollouts))
    config = asked(run_file, write_prm(tmp_path / "prm"))
    found = weigh([siblings], config, steps=lambda _: [[0.2, 0.9], [0.4], [100.0]])
    expected = process_advantages([[0.2, 0.9], [0.4], []])
    assert found.of_tokens == {
        one.trajectory_id: [
            [0.5 * value] * len(turn.action_ids) for value, turn in zip(row or [0.0] * len(one.turns), one.turns, strict=True)
        ]
        for one, row in zip(siblings.trajectories, expected, strict=True)
    }
    assert found.values == weigh([siblings], load_config(run_file)).values
    of_steps = {name: value for name, value in found.metrics.items() if name.startswith("reward/")}
    assert of_steps == {"reward/prm/mean": pytest.approx((0.2 + 0.9 + 0.4 + 100.0) / 4), "reward/prm/unscored": 0.0}
    with pytest.raises(ValueError, match="nothing scores the turns"):
        weigh([siblings], config)


def test_a_run_file_changes_the_advantages_of_a_step(run_file: Path, tmp_path: Path) -> None:
    """Turn by turn, as the model's own forward passes and the formula have it; without a weight nothing changes."""
    folder = write_prm(tmp_path / "prm")
    config = asked(run_file, folder, "--loss.hint.weight", "0", "--loss.rlvr.advantage", "dr_grpo")
    _, tokenizer = load_policy(config.model)
    renderer = ChatRenderer(tokenizer)
    rollouts = ((("a", "bb", "c"), 1.0), (("dd",), 0.0), (("a", "e"), Unscored("broken")))
    groups = [
        Group(
            group_id=f"g{n}",
            task_id="t",
            trajectories=tuple(trajectory(renderer, f"{n}/{i}", *each) for i, each in enumerate(rollouts)),
        )
        for n in range(2)
    ]
    maker = SignalMaker(
        config=config,
        sources=HintSources(contexts={}, gold={}, detectors=(), generators=()),
        renderer=renderer,
        context_window=2048,
        steps=load_step_scorer(config, renderer),
    )
    signals = maker.make(1, groups)
    batch = maker.batch(groups, signals, ())

    network = AutoModelForTokenClassification.from_pretrained(folder).eval()
    rows = [t for g in groups for t in g.trajectories[:2]]
    scores = []
    for one in rows:
        with torch.no_grad():
            good = network(torch.tensor([one.context_ids(len(one.turns))])).logits[0].softmax(-1)[:, 1]
        ends = [one.action_start(k) + len(each.action_ids) - 1 for k, each in enumerate(one.turns)]
        scores.append([float(good[end]) for end in ends])
    for row, one in enumerate(rows):
        known = [score for each in scores[row // 2 * 2 : row // 2 * 2 + 2] for score in each]
        mean, spread = statistics.mean(known), statistics.stdev(known) + 1e-4
        for k, each in enumerate(one.turns):
            process = sum((score - mean) / spread for score in scores[row][k:])
            outcome = float(one.reward) - 0.5
            place = slice(one.action_start(k), one.action_start(k) + len(each.action_ids))
            torch.testing.assert_close(
                batch["advantages"][row, place], torch.full((len(each.action_ids),), outcome + 0.5 * process)
            )
    outside = batch["advantages"][batch["response_mask"] == 0]
    assert not outside.any()
    without = SignalMaker(
        config=load_config(run_file, ["--loss.hint.weight", "0", "--loss.rlvr.advantage", "dr_grpo"]),
        sources=maker.sources, renderer=renderer, context_window=2048,
    )  # fmt: skip
    plain_batch = without.batch(groups, without.make(1, groups), ())
    assert set(plain_batch["advantages"][plain_batch["response_mask"] == 1].tolist()) == {0.5, -0.5}


def test_a_model_that_cannot_score_is_refused(run_file: Path, world: World, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reward.prm.path: no such folder"):
        asked(run_file, tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"reward.prm.weight = 0.5 and reward.prm.path is missing"):
        load_config(run_file, ["--reward.prm.weight", "0.5"])
    other = asked(run_file, write_prm(tmp_path / "bytes", tokenizer=byte_level_tokenizer()))
    with pytest.raises(ConfigError, match="another tokenizer or chat template than the policy"):
        load_step_scorer(other, ChatRenderer(load_policy(other.model)[1]))


@pytest.mark.slow
@pytest.mark.long
def test_a_run_trains_on_step_rewards_and_is_not_resumed_with_another_model(run_file: Path, tmp_path: Path) -> None:
    prm = write_prm(tmp_path / "prm")
    words = ["--reward.prm.path", str(prm), "--reward.prm.weight", "0.5", "--loss.hint.weight", "0"]
    output = finish("train", str(run_file), "--steps", "1", *words, cwd=run_file.parent)
    values = RunDir(run_file.parent / "runs" / "run").read_metrics()[-1].values
    assert 0.0 < values["reward/prm/mean"] < 1.0
    assert values["reward/prm/unscored"] == 0.0
    assert values["optimizer/grad_norm"] > 0.0
    assert "every advantage is 0" not in output
    drawing = ["--curriculum.enabled", "true", "--curriculum.prm_credit", "0.5", "--reward.prm.weight", "0", "--name", "drawn"]
    finish("train", str(run_file), "--steps", "1", *words, *drawing, cwd=run_file.parent)
    state = (run_file.parent / "runs" / "drawn" / "ckpt" / "main" / "step_00001" / "loop.json").read_text()
    found = [record for record in json.loads(state)["curriculum"]["records"].values() if record["passed"] < record["tried"]]
    assert found
    assert all(0.0 < record["near"] < 0.5 * record["tried"] for record in found)
    write_prm(prm, seed=1)
    with pytest.raises(AssertionError, match="was made with other process reward model"):
        finish("train", str(run_file), "--steps", "1", *words, "--resume", cwd=run_file.parent)
