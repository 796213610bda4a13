"""Runs that end without an error and teach nothing: each is told why and what to change, in its terminal and its report."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import tomli_w
import torch
from in_process import composer_here
from teacher_server import Reply, TeacherServer
from transformers import Qwen3Config, Qwen3ForCausalLM
from world import World, name_teachers

from composer_replication.config import ModelConfig
from composer_replication.loss.forward.models import load_policy, save_policy
from composer_replication.observe import RunDir

pytestmark = pytest.mark.slow

NO_HINTS, NO_PAIRS = ["--loss.hint.weight", "0"], ["--loss.replay.weight", "0"]
POLICY_GRADIENT_ALONE = [*NO_HINTS, *NO_PAIRS]


def verdict(run_file: Path, *options: str) -> str:
    """Train one step as `strict` demands it; the verdict, which the report has to show too."""
    done = composer_here(
        "train", run_file, "--steps", "1", "--eval.every", "1", "--strict", "true", *options, cwd=run_file.parent
    )
    assert done.returncode == 8, done.stdout + done.stderr
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("VERDICT on main: ")]
    assert said in RunDir(run_file.parent / "runs" / "run").report_path.read_text().replace("&#x27;", "'")
    return said


def reasons(run_file: Path, channel: str) -> list[str]:
    """Why a channel was off, by step."""
    return [off[channel] for off in RunDir(run_file.parent / "runs" / "run").read_off().values()]


@pytest.mark.parametrize(
    ("options", "because", "fix"),
    [
        (["--rollout.turn_tokens", "2"], "of the rollouts were cut off inside a turn", "rollout.turn_tokens"),
        (["--rollout.trajectory_tokens", "4"], "of the rollouts used up their tokens", "rollout.trajectory_tokens"),
        (["--rollout.max_turns", "1"], "no rollout was rewarded", "easier tasks"),
    ],
)
def test_budgets_that_leave_no_room(run_file: Path, options: list[str], because: str, fix: str) -> None:
    said = verdict(run_file, *options, *POLICY_GRADIENT_ALONE)
    reasons, _, advice = said.partition(" Try: ")
    assert "nothing was learnt" in reasons
    assert because in reasons
    assert fix in advice


def test_a_model_that_calls_no_tool(world: World, run_file: Path, tmp_path: Path) -> None:
    """It ends every turn at once."""
    tokenizer = load_policy(ModelConfig(path=str(world.policy), device="cpu"))[1]
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=False,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(shape)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "norm" in name or "embed" in name else 0.0)
        model.lm_head.weight[tokenizer.eos_token_id] = 1.0
    save_policy(model, tokenizer, tmp_path / "mute")
    said = verdict(run_file, "--model.path", str(tmp_path / "mute"), *POLICY_GRADIENT_ALONE)
    assert "100% of the rollouts ended with a turn that calls no tool" in said
    assert "composer sft" in said


@pytest.mark.parametrize(
    ("reward", "because", "fix"),
    [
        ("1.0", "every rollout was rewarded before anything was learnt", "harder tasks"),
        ("0.5", "siblings always got the same reward", "rollout.group_size"),
    ],
)
def test_rewards_that_do_not_differ(run_file: Path, reward: str, because: str, fix: str) -> None:
    module = f"always_{reward.replace('.', '_')}"  # a module of another name each time: this process keeps what it has imported
    (run_file.parent / f"{module}.py").write_text(f"def score(*_, **__):\n    return {reward}\n")
    said = verdict(run_file, "--reward.function", f"{module}:score", *POLICY_GRADIENT_ALONE)
    assert because in said
    assert fix in said


def test_a_hint_channel_that_finds_no_turn(run_file: Path) -> None:
    """No tool of these tasks asks for a permission."""
    verdict(run_file, "--loss.hint.detectors", '["permission"]', *NO_PAIRS, "--rollout.max_turns", "1")
    assert reasons(run_file, "hint") == ["no hints in this step (no error turns)"]


def test_a_replay_channel_without_pairs(run_file: Path) -> None:
    said = verdict(run_file, *NO_HINTS, "--rollout.max_turns", "1", "--rollout.groups", "1")
    assert "no rollout was rewarded" in said
    assert reasons(run_file, "replay") == ["no pairs: the run has no teachers, loss.replay.pairs or loss.replay.reattempts"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--rollout.context_tokens", "64"], "rollout.context_tokens"),
        (["--rollout.groups", "40"], "rollout.groups"),
    ],
)
def test_what_cannot_learn_is_refused_before_it_begins(run_file: Path, options: list[str], told: str) -> None:
    for more in ([], ["--dry-run"]):
        done = composer_here("train", run_file, *options, *POLICY_GRADIENT_ALONE, *more, cwd=run_file.parent)
        assert done.returncode == 2, done.stdout + done.stderr
        assert told in done.stderr


def test_teachers_that_answer_nothing(run_file: Path) -> None:
    """Their refusal ends the run, before it has cost anything."""
    with TeacherServer(lambda _body, _number: Reply(status=400)) as server:
        name_teachers(run_file, server.base_url)
        done = composer_here("train", run_file, "--steps", "1", *NO_HINTS, cwd=run_file.parent)
    assert done.returncode == 6, done.stdout + done.stderr
    assert "fix: " in done.stderr


def test_nothing_held_out(run_file: Path) -> None:
    """Hints have trained it, rewards have not: that is all that is known."""
    data = tomllib.loads(run_file.read_text())
    del data["tasks"]["held_out"]
    run_file.write_text(tomli_w.dumps(data))
    said = verdict(run_file, *NO_PAIRS)
    assert "what was learnt is not known" in said
    assert "tasks.held_out_share" in said
    assert "The rlvr channel is on and never trained: every advantage is 0" in said


def test_steps_too_small_to_show(run_file: Path) -> None:
    said = verdict(run_file, *NO_PAIRS, "--optimizer.learning_rate", "1e-9")
    assert "no change can be told from chance" in said
    assert "more steps" in said
