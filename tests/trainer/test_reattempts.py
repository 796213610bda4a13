"""Hinted re-attempts: a failed rollout goes on from its error turn with a hint, and its record has none."""

from __future__ import annotations

import asyncio
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_replay import WRONG, edit, solution
from world import World, finish

from composer_replication.config import load_config
from composer_replication.envs.coding import CodingEnv
from composer_replication.envs.oracle import call_turn as call
from composer_replication.observe import RunDir, Terminal
from composer_replication.quickstart.policy import tiny_tokenizer
from composer_replication.rollouts.collect import run_rollouts
from composer_replication.rollouts.protocol import Budgets, Sample, SampleRequest
from composer_replication.rollouts.reattempt import Reattempt
from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.store import Task
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.collector import RolloutCollector
from composer_replication.trainer.pairs.reattempts import failures_with_hints, pairs_of_reattempts
from composer_replication.trainer.stages.imitation import DemonstrationCollector
from composer_replication.types import Group, HintedTurn, Message, StopReason, Trajectory, Unscored
from composer_replication.types.errors import ConfigError

SEARCH = call("search", pattern="NotImplementedError")
BUDGETS = Budgets(turn_tokens=400, trajectory_tokens=2000, context_tokens=4000, max_turns=6)


@pytest.fixture(scope="module")
def task(world: World) -> Task:
    return load_tasks(world.tasks)[0]


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(tiny_tokenizer())


class Written:
    """An engine that says what was written down, and remembers what it was asked."""

    context_window = 4000

    def __init__(self, renderer: ChatRenderer, *turns: Message) -> None:
        self.renderer = renderer
        self.turns = list(turns)
        self.asked: list[SampleRequest] = []

    def sample(self, requests: list[SampleRequest], *, temperature: float) -> list[Sample]:
        self.asked += requests
        ids = [self.renderer.assistant_ids(self.turns.pop(0)) for _ in requests]
        return [Sample(ids=tuple(each), logprobs=(-0.5,) * len(each), finished=True) for each in ids]

    def close(self, sessions: list[str]) -> None:
        del sessions


def roll_out(rollout_of: object, engine: Written) -> Trajectory:
    (found,) = asyncio.run(
        run_rollouts([rollout_of], engine=engine, temperature=1.0, policy_version=3, at_once=1)  # type: ignore[list-item]
    )
    return found


def env_of(task: Task) -> CodingEnv:
    return CodingEnv(task, sandbox=open_sandbox(), python=Path(sys.executable))


def failed_rollout(task: Task, renderer: ChatRenderer) -> Trajectory:
    from composer_replication.rollouts.agent_loop import Rollout

    engine = Written(renderer, SEARCH, edit(task, WRONG), call("run_tests"), call("submit"))
    return roll_out(Rollout("1/t/0", env_of(task), renderer, BUDGETS, seed=0, context_tokens=4000), engine)


def hinted(renderer: ChatRenderer, failed: Trajectory, turn: int = 1) -> HintedTurn:
    before = [*renderer.strip_generation_prompt(failed.context_ids(turn)), *renderer.hint_ids("Hint: think.")]
    context = (*before, *renderer.generation_prompt_ids)
    return HintedTurn(
        trajectory_id=failed.trajectory_id,
        turn=turn,
        student_start=failed.action_start(turn),
        teacher_ids=(*context, *failed.turns[turn].action_ids),
        teacher_start=len(context),
        action_ids=failed.turns[turn].action_ids,
    )


def again(task: Task, renderer: ChatRenderer, failed: Trajectory, *turns: Message) -> tuple[Trajectory, Written]:
    engine = Written(renderer, *turns)
    turn, switch = hinted(renderer, failed), "loss.replay.reattempts = 0"
    rollout = Reattempt(failed, turn, env_of(task), renderer, BUDGETS, seed=0, context_tokens=4000, switch=switch)
    return roll_out(rollout, engine), engine


def test_a_reattempt_reads_the_hint_and_its_record_has_none(task: Task, renderer: ChatRenderer) -> None:
    failed = failed_rollout(task, renderer)
    assert failed.reward == 0.0
    found, engine = again(task, renderer, failed, edit(task, solution(task)), call("run_tests"), call("submit"))
    assert (found.reward, found.stop_reason, found.trajectory_id) == (1.0, StopReason.SUBMITTED, "1/t/0/again")
    turn = hinted(renderer, failed)
    assert engine.asked[0].new_ids == turn.teacher_ids[: turn.teacher_start]
    assert engine.asked[1].new_ids == found.turns[1].observation_ids, "the session goes on after the hint"
    assert found.turns[0] == failed.turns[0]
    assert found.context_ids(1) == failed.context_ids(1)
    hint = renderer.hint_ids("Hint: think.")
    whole = found.context_ids(len(found.turns))
    assert not any(whole[i : i + len(hint)] == tuple(hint) for i in range(len(whole)))
    (pair,) = pairs_of_reattempts([(failed, turn)], [found])
    assert (pair.prompt_ids, pair.rejected_ids) == (failed.context_ids(1), failed.turns[1].action_ids)
    assert pair.chosen_ids == tuple(renderer.assistant_ids(edit(task, solution(task))))


def test_only_what_passes_is_learnt_and_the_same_thing_once(task: Task, renderer: ChatRenderer) -> None:
    failed = failed_rollout(task, renderer)
    worse, _ = again(task, renderer, failed, edit(task, "return 12345"), call("submit"))
    good, _ = again(task, renderer, failed, edit(task, solution(task)), call("submit"))
    turn = hinted(renderer, failed)
    assert worse.reward == 0.0
    assert pairs_of_reattempts([(failed, turn)], [worse]) == []
    assert [one.confidence for one in pairs_of_reattempts([(failed, turn)] * 2, [good, good])] == [1.0]
    (seldom,) = pairs_of_reattempts([(failed, turn)] * 4, [worse, good, worse, good])
    assert seldom.confidence == 0.5, "half of the re-attempts in this place passed"
    same = replace(good, turns=(good.turns[0], replace(good.turns[1], action_ids=turn.action_ids), *good.turns[2:]))
    assert pairs_of_reattempts([(failed, turn)], [same]) == []
    assert pairs_of_reattempts([(failed, turn)], [replace(good, reward=Unscored("the box broke"))]) == []
    refused = tuple(replace(result, status="path_not_found") for result in good.turns[1].results)
    idle = replace(good, turns=(good.turns[0], replace(good.turns[1], results=refused), *good.turns[2:]))
    assert pairs_of_reattempts([(failed, turn)], [idle]) == [], "something later made the tests pass"
    assert pairs_of_reattempts([(failed, turn)], [replace(good, turns=good.turns[:1])]) == [], "there was no room for a turn"


def test_an_episode_that_does_not_come_back_is_not_scored(task: Task, renderer: ChatRenderer) -> None:
    failed = failed_rollout(task, renderer)
    other = tuple(replace(result, status="path_not_found") for result in failed.turns[0].results)
    elsewhere = replace(failed, turns=(replace(failed.turns[0], results=other), *failed.turns[1:]))
    found, engine = again(task, renderer, elsewhere, call("submit"))
    assert isinstance(found.reward, Unscored)
    assert "search did not end as it did the first time" in found.reward.reason
    assert found.reward.reason.endswith("or set loss.replay.reattempts = 0")
    assert engine.asked == []


class Resting(Written):
    def rest(self) -> None:
        """There is no device to leave."""


@pytest.mark.parametrize(
    ("kind", "switch"),
    [(RolloutCollector, "loss.replay.reattempts = 0"), (DemonstrationCollector, "sft.reattempts = false")],
)
def test_an_episode_that_does_not_come_back_names_the_switch_of_its_stage(
    task: Task, renderer: ChatRenderer, run_file: Path, kind: type[RolloutCollector], switch: str
) -> None:
    failed = failed_rollout(task, renderer)
    other = tuple(replace(result, status="path_not_found") for result in failed.turns[0].results)
    elsewhere = replace(failed, turns=(replace(failed.turns[0], results=other), *failed.turns[1:]))
    context = SimpleNamespace(train=[task], make_env=lambda *_: env_of(task), terminal=Terminal(), reward=None)
    journal = SimpleNamespace(arm="main")
    collector = kind(context, load_config(run_file), Resting(renderer), renderer, journal)  # type: ignore[arg-type]
    (found,) = asyncio.run(collector.try_again(1, 0, [(elsewhere, hinted(renderer, failed))], counted=False))
    assert isinstance(found.reward, Unscored)
    assert found.reward.reason.endswith(f"or set {switch}")
    field, _, value = switch.partition(" = ")
    words = ["--sft.enabled", "true", "--sft.samples", "1", "--sft.reattempts", "true", f"--{field}", value]
    off = load_config(run_file, words)
    assert not (off.sft.reattempts if field.startswith("sft.") else off.loss.replay.reattempts)


def test_only_graded_failures_with_a_hint_are_tried_again(task: Task, renderer: ChatRenderer) -> None:
    failed = failed_rollout(task, renderer)
    siblings = [
        replace(failed, trajectory_id=name, reward=reward)
        for name, reward in (("a", 0.0), ("b", 1.0), ("c", Unscored("broken")), ("d", 0.0), ("e", 0.0))
    ]
    group = Group(group_id="g", task_id=failed.task_id, trajectories=tuple(siblings))
    turns = [replace(hinted(renderer, failed, turn), trajectory_id=name) for name in "abcd" for turn in (2, 1)]
    held = replace(turns[0], trajectory_id="e", teacher_start=turns[0].student_start)
    assert [(one.trajectory_id, turn.turn) for one, turn in failures_with_hints([group], [*turns, held])] == [("a", 1), ("d", 1)]


def test_reattempts_without_hints_are_refused(run_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"replay.reattempts goes on from hinted turns"):
        load_config(run_file, ["--loss.replay.reattempts", "2", "--loss.hint.weight", "0"])
    with pytest.raises(ConfigError, match=r"reattempts"):
        load_config(run_file, ["--loss.replay.reattempts", "2", "--loss.replay.variant", "dpo"])


@pytest.mark.slow
def test_a_run_tries_again_records_it_and_resumes_to_the_same(run_file: Path) -> None:
    options = {"replay.reattempts": "3", "replay.weight": "1", "hint.detectors": '["no_tool_call"]'}
    words = [word for name, value in options.items() for word in (f"--loss.{name}", value)]

    def train(name: str, steps: int, *more: str) -> RunDir:
        finish(
            "train", str(run_file), *words, "--checkpoint_every", "1", "--steps", str(steps), "--name", name, *more, cwd=folder
        )
        return RunDir(folder / "runs" / name)

    folder = run_file.parent
    whole = train("whole", 2)
    lines = [line.values for line in whole.read_metrics() if "reattempt/tried" in line.values]
    assert [line["reattempt/tried"] for line in lines] == [3.0, 3.0]
    for step in (1, 2):
        first = {one.trajectory_id for one in whole.read_trajectories("main", step)}
        tried = whole.read_reattempts("main", step)
        assert len(tried) == 3
        assert {one.trajectory_id.removesuffix("/again") for one in tried} <= first
    second = whole.read_reattempts("main", 2)
    shutil.rmtree(whole.ckpt_path / "main" / "step_00002")
    train("whole", 2, "--resume")
    assert whole.read_reattempts("main", 2) == second
    whole.truncate_after("main", 1)
    assert whole.read_reattempts("main", 2) == []
    assert len(whole.read_reattempts("main", 1)) == 3
