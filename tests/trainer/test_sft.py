"""Supervised fine-tuning on demonstrations, and RL from what it wrote."""

from __future__ import annotations

import asyncio
import json
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w
import torch
from in_process import composer_here
from torch.nn.functional import cross_entropy
from world import World, composer, finish

import composer_replication
from composer_replication.config import RunConfig, load_config, resolve_arm, to_toml
from composer_replication.envs.source import AnyTask
from composer_replication.loss.forward.model_checkpoint import read_checkpoint
from composer_replication.loss.forward.models import load_to_sample
from composer_replication.observe import RunDir
from composer_replication.rollouts import Budgets, Engine
from composer_replication.tasks import load_tasks
from composer_replication.tokens import ChatRenderer
from composer_replication.traces.segments import UNKNOWN_OUTCOME
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.open_run import decisive
from composer_replication.trainer.stages.before import started_from
from composer_replication.trainer.stages.demonstrations import DemonstrationSources
from composer_replication.trainer.stages.order import BEFORE_RL
from composer_replication.trainer.stages.sft import SFT as STAGE
from composer_replication.trainer.stages.sft import identity_of
from composer_replication.trainer.train import StepCallback
from composer_replication.types import GradeReport, Group, Trajectory, Unscored, from_json, to_json
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
    demonstrations = list({one.task_id: one for step in range(1, 9) for one in run.read_trajectories("main", step)}.values())
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
def test_a_reward_and_callbacks_from_python(run_file: Path) -> None:
    """The reward chooses the policy's own demonstrations: here all that submit, whatever the tests say, and then none."""
    with_budgets(run_file)
    config = load_config(run_file, [*SFT, "--sft.oracle", "false", "--sft.samples", "2", "--sft.steps", "2"])

    class Counting(StepCallback):
        steps = 0

        def on_step_end(self, arm: ArmTrainer, step: int, metrics: Mapping[str, float]) -> None:
            assert metrics["sft/demonstrations"] > 0
            self.steps += 1

    counting = Counting()
    run = composer_replication.sft(config, reward=lambda _trajectory: 1.0, callbacks=[counting])
    assert counting.steps == 2
    assert run.path.name == "sft"
    with pytest.raises(ConfigError, match=r"nothing to learn from|no demonstration"):
        composer_replication.sft(config.model_copy(update={"name": "other"}), reward=nothing)


def nothing(_trajectory: Trajectory) -> float:
    return 0.0


def test_rewards_are_told_apart_by_what_they_do() -> None:
    """A resumed run must not take up demonstrations that another reward has chosen."""

    def above(least: float) -> Callable[[Trajectory], float]:
        return lambda _trajectory: least

    assert identity_of(nothing) == identity_of(nothing)
    assert identity_of(above(0.5)) == identity_of(above(0.5))
    others = [nothing, above(0.5), above(0.7), partial(max, 1), partial(min, 1), partial(max, 2), lambda _: 1.0, lambda _: 2.0]
    assert len({identity_of(one) for one in others}) == len(others)
    assert identity_of(StepCallback()) != identity_of(StepCallback()), "nothing tells what an object does"


@pytest.mark.slow
def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(run_file: Path) -> None:
    with_budgets(run_file)
    words = ["sft", str(run_file), *SFT, "--sft.samples", "2", "--sft.reattempts", "true"]
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
    kept = sorted(run.glob("demonstrations/*/samples/*.jsonl"))
    assert kept
    assert "samples 8/8" not in output  # they are not rolled out again
    states = [run_file.parent / "runs" / name / "sft" / "ckpt" / "main" / "step_00008" for name in ("whole", "cut")]
    assert read_checkpoint(states[0])["fingerprint"] == read_checkpoint(states[1])["fingerprint"]
    weights = [load_to_sample(str(state))[0].state_dict() for state in states]
    assert all(torch.equal(one, weights[1][name]) for name, one in weights[0].items())


@pytest.mark.slow
def test_adapters_are_added_to_the_model_before_rl_trains_others(run_file: Path) -> None:
    with_budgets(run_file)
    lora = ["--model.lora.rank", "2"]
    finish("sft", str(run_file), *SFT, *lora, cwd=run_file.parent)
    started = started_from(of(run_file, *lora), BEFORE_RL)
    assert started.model.path == str(run_file.parent / "runs" / "run" / "sft" / "model")
    finish("train", str(run_file), *SFT, *lora, "--steps", "1", cwd=run_file.parent)


def test_the_stage_is_a_run_with_one_loss(run_file: Path) -> None:
    config = of(run_file, "--optimizer.epochs", "2", "--substrate.type", "trl")
    stage = STAGE.run_of(config)
    assert (stage.name, stage.out, stage.steps, list(stage.arms)) == ("sft", config.out / config.name, 8, ["main"])
    assert (stage.loss.hint.weight, stage.loss.replay.weight, stage.optimizer.updates) == (0.0, 0.0, 1)
    assert stage.substrate.type == "local"
    assert stage.optimizer.learning_rate == 1e-2
    with pytest.raises(ConfigError, match=r"sft\.enabled is false"):
        STAGE.run_of(load_config(run_file))
    assert started_from(load_config(run_file), BEFORE_RL) == load_config(run_file)


def test_hints_belong_to_the_stage_where_it_tries_again(run_file: Path) -> None:
    """They decide which re-attempts are made; without any, RL may have others than fine-tuning had."""
    other = ["--loss.hint.detectors", '["permission"]', "--loss.hint.generators", '["template", "judge"]']
    plain, changed = (STAGE.run_of(of(run_file, *words)) for words in ([], other))
    assert plain == changed
    again = ["--sft.samples", "1", "--sft.reattempts", "true"]
    plain, changed = (STAGE.run_of(of(run_file, *again, *words)) for words in ([], other))
    assert (changed.loss.hint.detectors, changed.loss.hint.generators) == (("permission",), ("template",))
    assert any(name.startswith(STAGE.decides) for name in decisive(changed, "loss.hint.")), "RL does not start from others"
    assert decisive(plain, *STAGE.decides) != decisive(changed, *STAGE.decides)


def test_nothing_to_learn_from_is_refused(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to learn from"):
        of(run_file, "--sft.oracle", "false")
    with pytest.raises(ConfigError, match="there is no attempt to repeat"):
        of(run_file, "--sft.reattempts", "true")
    with pytest.raises(ConfigError, match=r"sft\.traces: no such file"):
        of(run_file, "--sft.traces", '["nowhere.jsonl"]')
    with pytest.raises(ConfigError, match=r"sft\.steps is the same for all arms"):
        resolve_arm(of(run_file, "--arms.main.sft.steps", "7"), "main")


@pytest.fixture
def oracles(world: World, run_file: Path) -> list[Trajectory]:
    """Roll the oracle out on the tasks, in another tokenizer's ids."""
    finish_in = run_file.parent / "oracle"
    done = composer_here(
        "rollout", "--tasks", str(world.tasks), "--policy", "oracle", "--out", str(finish_in), cwd=run_file.parent
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (finish_in / "trajectories.jsonl").read_text().splitlines()]
    return [from_json(Trajectory, row) for row in rows]


def sources(config: RunConfig, world: World, **changed: object) -> DemonstrationSources:
    _, tokenizer = load_to_sample(str(world.policy))
    known = {
        "sft": config.sft,
        "renderer": ChatRenderer(tokenizer),
        "tasks": load_tasks(world.tasks),
        "held_out": load_tasks(world.held_out),
        "budgets": Budgets(),
    }
    return DemonstrationSources(**{**known, **changed})


def test_sources_are_counted_and_what_does_not_teach_is_left_out(
    world: World, run_file: Path, tmp_path: Path, oracles: list[Trajectory]
) -> None:
    first, second, third, fourth = oracles
    (held, *_) = (task.spec.task_id for task in load_tasks(world.held_out))
    grade = GradeReport(reward=1.0, outcomes={}, alarms=("reads frames: sys._getframe",))
    others = {
        "failed": replace(first, reward=0.0),
        "the same as another": second,
        "of a held-out task": replace(third, task_id=held),
        "raised an alarm": replace(third, grade=grade, task_id="elsewhere"),
        "not graded": replace(third, reward=Unscored("the box broke"), task_id="elsewhere"),
    }
    foreign = replace(third, task_id="foreign", reward=UNKNOWN_OUTCOME)
    traces = tmp_path / "traces.jsonl"
    rows = [first, second, fourth, foreign, *(replace(one, trajectory_id=why) for why, one in others.items())]
    traces.write_text("".join(json.dumps(to_json(replace(one, trajectory_id=str(n)))) + "\n" for n, one in enumerate(rows)))
    words = ["--sft.oracle", "false", "--sft.samples", "2", "--sft.reattempts", "true"]
    config = of(run_file, "--sft.traces", f'["{traces}"]', *words)
    asked: list[tuple[int, int, str]] = []

    async def roll_out(siblings: int, engine: Engine | None, what: str, tasks: Sequence[AnyTask]) -> list[Group]:
        assert engine is None
        asked.append((len(tasks), siblings, what))
        broken = replace(first, trajectory_id="broken", reward=Unscored("out of time"), prompt_ids=(), turns=())
        tried = (replace(first, reward=0.0), broken), (fourth,)
        return [Group(group_id=f"-3/{each[0].task_id}", task_id=each[0].task_id, trajectories=each) for each in tried]

    async def try_again(groups: Sequence[Group]) -> list[Group]:
        asked.append((len(groups), 1, "hinted"))
        failed = groups[0].trajectories[0]
        good = replace(failed, reward=1.0, trajectory_id=f"{failed.trajectory_id}/again", turns=(failed.turns[0], *third.turns))
        return [Group(group_id="again", task_id=failed.task_id, trajectories=(good,))]

    from_all = sources(config, world)
    from_all.check()
    found = asyncio.run(from_all.gather(roll_out, try_again, tmp_path / "kept"))
    assert asked == [(4, 2, "samples"), (2, 1, "hinted")]
    assert found.counts == {
        "samples: failed": 1,
        "samples: not graded": 1,
        "samples": 1,
        "hinted re-attempts": 1,
        "traces.jsonl": 3,
        "traces.jsonl, of unknown outcome": 1,
        **{f"traces.jsonl: {why}": 1 for why in others},
    }
    assert found.of_unknown_outcome == 1
    assert len(found.sampled) == 4
    assert found.sampled[-1].turns == third.turns, "its first turn is that of the failed sample, which counts already"
    trajectories = [one for one in found.trajectories if one.turns[1:] != third.turns]
    assert len({one.trajectory_id for one in found.trajectories}) == len(found.trajectories) == 6
    assert len(trajectories) == 5
    assert held not in {one.task_id for one in trajectories}
    renderer = from_all.renderer
    rendered = trajectories[1]  # its ids were another tokenizer's: they are written again by the policy's template
    assert rendered.prompt_ids == renderer.prompt_ids(rendered.messages, rendered.tools)
    assert renderer.decode(rendered.turns[-1].action_ids) == renderer.decode(trajectories[0].turns[-1].action_ids)
    again = asyncio.run(from_all.gather(roll_out, try_again, tmp_path / "kept"))
    assert again == found
    assert len(asked) == 2  # nothing is rolled out twice


@pytest.mark.parametrize("budget", ["context_tokens", "trajectory_tokens", "turn_tokens", "max_turns"])
def test_what_the_policy_could_not_do_in_its_budgets_is_left_out(
    world: World, run_file: Path, tmp_path: Path, oracles: list[Trajectory], budget: str
) -> None:
    traces = tmp_path / "traces.jsonl"
    traces.write_text("".join(json.dumps(to_json(one)) + "\n" for one in oracles))
    config = of(run_file, "--sft.traces", f'["{traces}"]', "--sft.oracle", "false")
    few = sources(config, world, budgets=replace(Budgets(), **{budget: 1}))
    few.check()

    async def roll_out(*_: object) -> list[Group]:
        raise AssertionError("nothing is to be rolled out")

    with pytest.raises(ConfigError, match=rf"no demonstration to learn from \(4 traces\.jsonl: beyond rollout\.{budget}\)"):
        asyncio.run(few.gather(roll_out, roll_out, tmp_path / "kept"))


LONG = """
def total(prices, rates, rounding):
    known = {name: price * (1 + rates.get(name, 0)) for name, price in prices.items() if price is not None}
    largest = max(known, key=lambda name: (known[name], name), default=None)
    return largest, rounding(sum(value for name, value in sorted(known.items()) if name != largest))
"""


def test_what_writes_the_code_of_a_held_out_task_is_no_demonstration(
    world: World, run_file: Path, oracles: list[Trajectory]
) -> None:
    """Whatever task it says that it is of. Rollouts of this run may have read that code: their tasks' trees hold it."""
    held = SimpleNamespace(spec=SimpleNamespace(task_id="held"), deleted_code=lambda: (LONG,))
    known = sources(of(run_file), world, held_out=[held])
    ids = tuple(known.renderer.tokenizer(LONG.replace("    ", "\t"), add_special_tokens=False)["input_ids"])
    (first, *rest) = oracles[0].turns
    copied = replace(oracles[0], turns=(replace(first, action_ids=ids, logprobs=(0.0,) * len(ids)), *rest))
    assert known._unfit(copied, 10, graded_elsewhere=True) == "writes what a held-out task deletes"
    assert known._unfit(copied, 10, graded_elsewhere=False) == ""
    assert known._unfit(replace(copied, task_id="held"), 10, graded_elsewhere=False) == "of a held-out task"


@pytest.mark.parametrize(
    "words",
    [
        ["--rollout.engine", "vllm", "--loss.rlvr.importance", "tis"],
        ["--rollout.engine", "vllm", "--loss.rlvr.importance", "tis", "--substrate.shard", "true"],
        ["--diloco.enabled", "true", "--steps", "150"],
        [
            *("--substrate.type", "ray", "--rollout.engine", "vllm", "--loss.rlvr.importance", "icepop"),
            *("--rollout.server_url", '["http://a:1", "http://b:1"]'),
        ],
        ["--curriculum.enabled", "true"],
        ["--loss.rlvr.kl_beta", "0.1", "--reward.kl_weight", "0.1"],
    ],
)
def test_the_stage_of_every_kind_of_run_can_be_resolved(run_file: Path, words: list[str]) -> None:
    stage = STAGE.run_of(of(run_file, *words))
    assert resolve_arm(stage, "main").steps == 8
    assert (stage.loss.rlvr.kl_beta, stage.reward.kl_weight, stage.diloco.enabled, stage.curriculum.enabled) == (
        0,
        0,
        False,
        False,
    )


def test_rl_does_not_start_from_what_other_settings_made(run_file: Path) -> None:
    config = of(run_file)
    stage = STAGE.run_of(config)
    folder = stage.out / stage.name
    (folder / "ckpt" / "main" / "step_00008").mkdir(parents=True)
    (folder / "ckpt" / "main" / "step_00008" / "MANIFEST.sha256").write_text("")
    (folder / "config.toml").write_text(to_toml(stage))
    assert started_from(config, BEFORE_RL).model.path == str(folder / "ckpt" / "main" / "step_00008")
    assert started_from(of(run_file, "--eval.every", "3"), BEFORE_RL).model.path == str(folder / "ckpt" / "main" / "step_00008")
    for changed in (["--sft.samples", "3"], ["--seed", "5"], ["--tasks.forgeable", "true"]):
        with pytest.raises(ConfigError, match="was made with other settings") as refused:
            started_from(of(run_file, *changed), BEFORE_RL)
        assert changed[0].removeprefix("--") in str(refused.value)
