"""The run files in examples/training: each loads, leaves room on its card, and a shrunk model learns as it says."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from in_process import composer_here
from ranks import on_ranks
from test_architectures import ARCHITECTURES
from transformers import AutoModelForCausalLM
from world import World

from composer_replication.api.runs import load_run
from composer_replication.config import RunConfig, load_config, resolve_arm
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward.models import load_policy, save_policy
from composer_replication.quickstart.policy import tiny_tokenizer
from composer_replication.rollouts.protocol import SampleRequest
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.planning.plan import cache_tokens, rollouts_at_once
from composer_replication.types import HintedTurn, StopReason, Trajectory, Turn

RUNS = Path(__file__).parents[2] / "examples" / "training"
OF = {
    "qwen25_05b.toml": "qwen2",
    "qwen3_4b_lora.toml": "qwen3",
    "qwen25_7b.toml": "qwen2",
    "qwen3_coder_30b_a3b_lora.toml": "qwen3_moe",
}
CACHED = {"qwen25_05b.toml": (24, 2, 64), "qwen3_4b_lora.toml": (36, 8, 128), "qwen25_7b.toml": (28, 4, 128)}
"""Layers, heads with keys and values, and their width, where the policy's process samples."""


def test_every_file_is_named_here_and_in_the_table() -> None:
    names = {path.name for path in RUNS.glob("*.toml")}
    assert names == OF.keys()
    table = (RUNS / "README.md").read_text("utf-8")
    assert all(f"| `{name}` |" in table for name in names)


@pytest.mark.parametrize("name", OF)
def test_weights_and_caches_leave_a_fifth_of_the_card(name: str) -> None:
    """By the table's bytes, with a hundred tasks to train on and eleven held out."""
    config = load_config(RUNS / name, ["--tasks.train", str(RUNS)])
    (row,) = [line for line in (RUNS / "README.md").read_text("utf-8").splitlines() if line.startswith(f"| `{name}` |")]
    card, states = (float(re.findall(pattern, row)[0]) for pattern in (r"with (\d+) GB", r"= ([\d.]+) GB \|"))
    layers, heads, width = CACHED.get(name, (0, 0, 0))
    assert (config.rollout.engine == "transformers") == (layers > 0)
    open_at_once = rollouts_at_once(config, tasks=100, held_out=11)
    caches = cache_tokens(config, 1 << 30, open_at_once, layers or 1) * 2 * layers * heads * width * 2 / 1e9  # in bfloat16
    assert states + caches < 0.8 * card * 1.074, "a card of 24 GB has 24 GiB"


def words_of_eight() -> list[str]:
    """The options in the head of the file for 7B, for all weights on eight GPUs."""
    lines = [line for line in (RUNS / "qwen25_7b.toml").read_text("utf-8").splitlines() if line.startswith("#   ")]
    command = " ".join(line.lstrip("# ").rstrip("\\ ") for line in lines)
    return shlex.split(command.partition("composer train qwen25_7b.toml ")[2])


def shrunk(folder: Path, name: str, *words: str) -> RunConfig:
    save_policy(AutoModelForCausalLM.from_config(ARCHITECTURES[OF[name]]), tiny_tokenizer(), folder)
    return load_config(RUNS / name, ["--model.path", str(folder), "--model.device", "cpu", "--tasks.train", str(folder), *words])


def rollouts(policy: Any, tokenizer: Any, config: RunConfig) -> Batch:
    """Four siblings that the policy's own engine samples, with advantages, and a hint in the first of them."""
    prompt = tuple(tokenizer("def total(prices):")["input_ids"])
    asked = [SampleRequest(session=str(seed), new_ids=prompt, max_new_tokens=6, seed=seed) for seed in range(4)]
    samples = TransformersEngine(policy, tokenizer).sample(asked, temperature=config.rollout.temperature)
    siblings = [
        Trajectory(
            trajectory_id=f"1/task/{number}",
            task_id="task",
            policy_version=0,
            messages=(),
            tools=(),
            prompt_ids=prompt,
            turns=(Turn(action_ids=sample.ids, logprobs=sample.logprobs, text=""),),
            stop_reason=StopReason.NO_TOOL_CALL,
            temperature=config.rollout.temperature,
            reward=float(number % 2),
            experts=None if sample.experts is None else sample.experts.written(),
        )
        for number, sample in enumerate(samples)
    ]
    hint = HintedTurn(
        trajectory_id=siblings[0].trajectory_id,
        turn=0,
        student_start=len(prompt),
        teacher_ids=(*prompt, *prompt, *samples[0].ids),
        teacher_start=2 * len(prompt),
        action_ids=samples[0].ids,
    )
    return collate(siblings, [-1.0, 1.0, -1.0, 1.0], [hint], pad_id=0, objective=config.loss.rlvr.objective)


@pytest.mark.parametrize("name", OF)
def test_a_shrunk_model_learns_from_its_rollouts(tmp_path: Path, name: str) -> None:
    config = shrunk(tmp_path, name)
    for arm in config.arms:
        variant = resolve_arm(config, arm)
        policy, tokenizer = load_policy(variant.model)
        batch = rollouts(policy, tokenizer, variant)
        assert ("routed_experts" in batch) == variant.model.router_replay
        result = Learner(policy, variant).update(batch)
        assert math.isfinite(result.metrics["loss/total"])
        assert result.metrics["optimizer/grad_norm"] > 0
        assert result.metrics["rlvr/ratio/mean"] == pytest.approx(1.0, abs=1e-3), "what was sampled is what is learned from"
        assert result.off.keys() == {"replay"} | ({"hint"} if variant.loss.hint.weight == 0 else set())


def _shared(rank: int, config: RunConfig) -> float:
    policy, tokenizer = load_policy(config.model)
    batch = rollouts(policy, tokenizer, config)
    learner = Learner(policy, config, sharded=config.substrate.shard)
    assert learner.sharded
    return learner.update(batch).metrics["optimizer/grad_norm"]


@pytest.mark.slow
def test_the_sharded_file_takes_the_step_of_one_process_on_two(tmp_path: Path) -> None:
    config = shrunk(tmp_path, "qwen25_7b.toml", *words_of_eight())
    assert config.substrate.shard
    policy, tokenizer = load_policy(config.model)
    alone = Learner(policy, config).update(rollouts(policy, tokenizer, config)).metrics["optimizer/grad_norm"]
    assert on_ranks(tmp_path, _shared, config) == pytest.approx([alone, alone], rel=1e-2), "in bfloat16"


OWN_PROCESS = tuple(name for name in OF if name != "qwen3_coder_30b_a3b_lora.toml")
"""Files whose policy samples in the process that trains it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_PROCESS)
def test_a_run_of_the_file_is_made(world: World, tmp_path: Path, name: str) -> None:
    """By the command, on a shrunk model of its architecture: one step of every arm, and its verdict."""
    shrunk(tmp_path / "model", name)
    small = ["--steps", "1", "--rollout.groups", "1", "--rollout.group_size", "2", "--rollout.turn_tokens", "8"]
    where = ["--model.path", str(tmp_path / "model"), "--model.device", "cpu", "--tasks.train", str(world.tasks)]
    done = composer_here("train", str(RUNS / name), *where, *small, "--out", str(tmp_path), "--tasks.forgeable", "true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VERDICT" in done.stdout
    run = load_run(tmp_path / Path(name).stem)
    assert {row["arm"] for row in run.metrics} == set(run.arms)
    assert all(math.isfinite(row["loss/total"]) for row in run.metrics if "loss/total" in row)
