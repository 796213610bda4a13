"""Supervised fine-tuning on demonstrations, and RL from what it wrote."""

from __future__ import annotations

import asyncio
import json
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
import torch
from in_process import composer_here
from torch.nn.functional import cross_entropy
from world import World, composer, finish

from composer_replication.config import RunConfig, load_config, resolve_arm
from composer_replication.envs.source import AnyTask
from composer_replication.loss.forward.model_checkpoint import read_checkpoint
from composer_replication.loss.forward.models import load_to_sample
from composer_replication.observe import RunDir
from composer_replication.rollouts import Engine
from composer_replication.tasks import load_tasks
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.stages.demonstrations import Demonstrations
from composer_replication.trainer.stages.sft import sft_config, started_from_sft
from composer_replication.types import Group, Trajectory, from_json, to_json
from composer_replication.types.errors import ConfigError

SFT = ["--sft.enabled", "true", "--sft.steps", "8", "--sft.batch", "3", "--sft.learning_rate", "1e-2"]


def with_budgets(run_file: Path, **rollout: int) -> None:
    """Make room for whole solutions."""
    data = tomllib.loads(run_file.read_text())
    data["rollout"] |= {"context_tokens": 2048, "trajectory_tokens": 1024, "turn_tokens": 512, **rollout}
    run_file.write_text(tomli_w.dumps(data))


def of(run_file: Path, *words: str) -> RunConfig:
    return load_config(run_file, [*SFT, *words])


def nll(model: torch.nn.Module, trajectory: Trajectory) -> tuple[float, int]:
    """Return the summed negative log-prob of what was sampled, and how many tokens that were, read one token after the other."""
    ids = torch.tensor([trajectory.context_ids(len(trajectory.turns))])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].double()
    total, tokens = 0.0, 0
    for number, turn in enumerate(trajectory.turns):
        start = trajectory.action_start(number)
        rows = logits[start - 1 : start - 1 + len(turn.action_ids)]
        total += float(cross_entropy(rows, torch.tensor(turn.action_ids), reduction="sum"))
        tokens += len(turn.action_ids)
    return total, tokens


@pytest.mark.slow
def test_the_policy_learns_its_tasks_solutions_and_rl_starts_from_it(run_file: Path, world: World) -> None:
    with_budgets(run_file)
    folder = run_file.parent
    refused = composer_here("train", str(run_file), *SFT, cwd=folder)
    assert refused.returncode == 2
    assert "run `composer sft` with this run file first" in refused.stderr
    output = finish("sft", str(run_file), *SFT, cwd=folder)
    assert "4 demonstrations (4 oracle)" in output
    assert "VERDICT on main: " in output
    assert "cross-entropy " in output
    assert "Privileged information" not in (folder / "runs" / "run" / "sft" / "report.html").read_text()
    run = RunDir(folder / "runs" / "run" / "sft")
    demonstrations = run.read_traces("main")
    assert {one.task_id for one in demonstrations} == {task.spec.task_id for task in load_tasks(world.tasks)}
    lines = [line for line in run.read_metrics() if line.step > 0]
    assert [line.step for line in lines] == [*range(1, 9)]
    start, _ = load_to_sample(str(world.policy))
    first = [nll(start, one) for one in run.read_trajectories("main", 1)]
    assert lines[0].values["lm_ce/loss"] == pytest.approx(sum(each for each, _ in first) / sum(n for _, n in first), rel=1e-4)
    after, _ = load_to_sample(str(run.ckpt_path / "main" / "step_00008"))
    before, later = ([nll(model, one)[0] for one in demonstrations] for model in (start, after))
    assert sum(later) < 0.8 * sum(before)
    output = finish("train", str(run_file), *SFT, "--steps", "1", cwd=folder)
    assert tomllib.loads((folder / "runs" / "run" / "config.toml").read_text())["model"]["path"].endswith(
        "sft/ckpt/main/step_00008"
    )
    assert (folder / "runs" / "run" / "ckpt" / "main" / "step_00001").is_dir()


@pytest.mark.slow
def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(run_file: Path) -> None:
    with_budgets(run_file)
    words = ["sft", str(run_file), *SFT, "--sft.samples", "2"]
    finish(*words, "--name", "whole", cwd=run_file.parent)
    process = composer(*words, "--name", "cut", cwd=run_file.parent)
    run = run_file.parent / "runs" / "cut" / "sft"
    while not (run / "ckpt" / "main" / "step_00002").is_dir():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate()
    output = finish(*words, "--name", "cut", "--resume", cwd=run_file.parent)
    assert "resumed at step" in output
    assert "demonstrations (" not in output  # they are kept
    states = [run_file.parent / "runs" / name / "sft" / "ckpt" / "main" / "step_00008" for name in ("whole", "cut")]
    assert read_checkpoint(states[0])["fingerprint"] == read_checkpoint(states[1])["fingerprint"]
    weights = [load_to_sample(str(state))[0].state_dict() for state in states]
    assert all(torch.equal(one, weights[1][name]) for name, one in weights[0].items())


@pytest.mark.slow
def test_adapters_are_added_to_the_model_before_rl_trains_others(run_file: Path) -> None:
    with_budgets(run_file)
    lora = ["--model.lora.rank", "2"]
    finish("sft", str(run_file), *SFT, *lora, cwd=run_file.parent)
    started = started_from_sft(of(run_file, *lora))
    assert started.model.path == str(run_file.parent / "runs" / "run" / "sft" / "model")
    finish("train", str(run_file), *SFT, *lora, "--steps", "1", cwd=run_file.parent)


def test_the_stage_is_a_run_with_one_loss(run_file: Path) -> None:
    config = of(run_file, "--optimizer.epochs", "2", "--substrate.type", "trl")
    stage = sft_config(config)
    assert (stage.name, stage.out, stage.steps, list(stage.arms)) == ("sft", config.out / config.name, 8, ["main"])
    assert (stage.loss.hint.weight, stage.loss.replay.weight, stage.optimizer.updates) == (0.0, 0.0, 1)
    assert stage.substrate.type == "local"
    assert stage.optimizer.learning_rate == 1e-2
    with pytest.raises(ConfigError, match=r"sft\.enabled is false"):
        sft_config(load_config(run_file))
    assert started_from_sft(load_config(run_file)) == load_config(run_file)


def test_nothing_to_learn_from_is_refused(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to learn from"):
        of(run_file, "--sft.oracle", "false")
    with pytest.raises(ConfigError, match=r"sft\.traces: no such file"):
        of(run_file, "--sft.traces", '["nowhere.jsonl"]')
    with pytest.raises(ConfigError, match=r"sft\.steps is the same for all arms"):
        resolve_arm(of(run_file, "--arms.main.sft.steps", "7"), "main")


@pytest.fixture
def oracles(world: World, run_file: Path) -> list[Trajectory]:
    """What the oracle does on the tasks, in the policy's tokens."""
    finish_in = run_file.parent / "oracle"
    done = composer_here(
        "rollout", "--tasks", str(world.tasks), "--policy", "oracle", "--out", str(finish_in), cwd=run_file.parent
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (finish_in / "trajectories.jsonl").read_text().splitlines()]
    return [from_json(Trajectory, row) for row in rows]


def test_sources_are_counted_and_what_does_not_teach_is_left_out(
    world: World, run_file: Path, tmp_path: Path, oracles: list[Trajectory]
) -> None:
    failed = replace(oracles[0], trajectory_id="failed", reward=0.0)
    twin = replace(oracles[1], trajectory_id="twin")
    traces = tmp_path / "traces.jsonl"
    traces.write_text("".join(json.dumps(to_json(one)) + "\n" for one in [*oracles, failed, twin]))
    config = of(run_file, "--sft.traces", f'["{traces}"]', "--sft.oracle", "false", "--sft.samples", "2")
    _, tokenizer = load_to_sample(str(world.policy))
    renderer = ChatRenderer(tokenizer)
    asked: list[tuple[int, int, str]] = []

    async def roll_out(tasks: list[AnyTask], siblings: int, engine: Engine | None, what: str) -> list[Group]:
        asked.append((len(tasks), siblings, what))
        return [Group(group_id="0", task_id=tasks[0].spec.task_id, trajectories=(failed, oracles[2]))]

    tasks = load_tasks(world.tasks)
    demonstrations = Demonstrations(config.sft, renderer, 4096, tmp_path / "kept")
    found = asyncio.run(demonstrations.gather(tasks, roll_out))
    assert asked == [(4, 2, "samples")]
    assert demonstrations.counts == {
        "samples": 1,
        "samples: failed": 1,
        "traces.jsonl": 4,
        "traces.jsonl: failed": 1,
        "traces.jsonl: the same as another": 1,
    }
    assert len({one.trajectory_id for one in found}) == len(found) == 5
    rendered = found[1]  # the byte-level tokenizer's ids were another's: they are written again by the policy's template
    assert renderer.prompt_ids(rendered.messages, rendered.tools) == rendered.prompt_ids
    assert rendered.prompt_ids != oracles[0].prompt_ids or rendered == replace(oracles[0], trajectory_id=rendered.trajectory_id)
    again = asyncio.run(Demonstrations(config.sft, renderer, 4096, tmp_path / "kept").gather(tasks, roll_out))
    assert again == found
    assert len(asked) == 1  # nothing is rolled out twice
    few = config.sft.model_copy(update={"per_task": 1})
    with pytest.raises(ConfigError, match=r"no demonstration to learn from .*longer than 10 tokens"):
        asyncio.run(Demonstrations(few, renderer, 10, tmp_path / "kept").gather(tasks, roll_out))
