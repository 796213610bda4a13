"""Tasks are drawn by how often they are solved: half-solved ones most, hopeless ones hardly, harder ones when it is time."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from composer_replication.config import CurriculumConfig, RunConfig
from composer_replication.policy_gradient import has_signal
from composer_replication.tasks.store import Task
from composer_replication.trainer.collector import RolloutCollector
from composer_replication.trainer.rewards import group_verdicts
from composer_replication.trainer.sampling.curriculum import Curriculum
from composer_replication.types import Deletion, Group, Reward, StopReason, TaskSpec, Trajectory, Unscored
from composer_replication.types.errors import CheckpointError, SandboxError

SEED = 0


def task(name: str, difficulty: float = 0.0) -> Task:
    spec = TaskSpec(
        task_id=name, source="s", source_digest="0", instruction="i", deleted=(), fail_to_pass=("t",), pass_to_pass=(),
        editable=(),
    )  # fmt: skip
    return Task(spec, Path(name), {"difficulty": difficulty})


def group(name: str, *rewards: Reward) -> Group:
    trajectories = [
        Trajectory(
            trajectory_id=f"{name}{i}", task_id=name, policy_version=0, messages=(), tools=(), prompt_ids=(1,), turns=(),
            stop_reason=StopReason.SUBMITTED, temperature=1.0, reward=reward,
        )
        for i, reward in enumerate(rewards)
    ]  # fmt: skip
    return Group(group_id=name, task_id=name, trajectories=tuple(trajectories))


def names(tasks: list[Task]) -> list[str]:
    return [t.spec.task_id for t in tasks]


TASKS = [task(name) for name in "abcdefgh"]


def test_of_tasks_that_always_fail_those_that_come_near_are_drawn_more_and_nothing_else_changes() -> None:
    """`curriculum.prm_credit`: a process reward model says how good the turns of failed rollouts are."""
    with_scores, without = (Curriculum(CurriculumConfig(enabled=True, prm_credit=0.5, levels=2), TASKS, SEED) for _ in range(2))
    groups = [group(name, 0.0, 0.0, Unscored("broken"), 0.0) for name in "abcd"] + [group("e", 1.0, 1.0)]
    scores = {f"{name}{i}": 0.9 if name == "a" else 0.1 for name in "abcde" for i in range(4)}
    for step in (1, 2):
        with_scores.learn(groups, step, scores)
        without.learn(groups, step)
    drawn = [
        Counter(name for step in range(400) for name in names(one.choose(TASKS[:4], SEED, step, 1)))
        for one in (with_scores, without)
    ]
    assert drawn[0]["a"] > 1.4 * drawn[1]["a"]
    assert drawn[0]["b"] < drawn[1]["b"]
    records = [one.records for one in (with_scores, without)]
    assert records[0]["a"].near == pytest.approx(1.8 * 0.5 * 3 * 0.9)
    assert records[0]["e"] == records[1]["e"], "what passed needs no credit"
    assert all(records[0][name].rate == records[1][name].rate for name in "abcde")
    assert all(records[0][name].failed_visits == 2 for name in "abcd")
    assert with_scores.unlocked == without.unlocked
    again = Curriculum(CurriculumConfig(enabled=True, prm_credit=0.5, levels=2), TASKS, SEED)
    again.load_state_dict(json.loads(json.dumps(with_scores.state_dict())))
    assert again.weight("a", 3) == with_scores.weight("a", 3)


def test_half_solved_tasks_are_drawn_most_and_solved_ones_still_sometimes() -> None:
    curriculum = Curriculum(CurriculumConfig(enabled=True), TASKS, SEED)
    for step in range(1, 6):
        curriculum.learn([group("a", 1.0, 1.0, 1.0, 1.0), group("b", 1.0, 0.0, 1.0, 0.0)], step)
        curriculum.learn([group(name, 1.0, 1.0, 1.0, 0.0) for name in "cdefgh"], step)
    drawn = Counter(name for step in range(400) for name in names(curriculum.choose(TASKS, SEED, step, 2)))
    assert drawn["b"] > max(drawn[name] for name in "cdefgh")
    assert 0 < drawn["a"] < min(drawn[name] for name in "bcdefgh") / 2


def test_a_step_has_no_task_twice_and_is_a_function_of_step_and_rates() -> None:
    curriculum = Curriculum(CurriculumConfig(enabled=True), TASKS, SEED)
    steps = [names(curriculum.choose(TASKS, SEED, step, 5)) for step in range(50)]
    assert all(len(set(step)) == 5 for step in steps)
    assert steps == [names(curriculum.choose(list(reversed(TASKS)), SEED, step, 5)) for step in range(50)]
    assert steps != [names(curriculum.choose(TASKS, SEED + 1, step, 5)) for step in range(50)]
    assert names(curriculum.choose(TASKS, SEED, 1, 5)) != names(curriculum.choose(TASKS, SEED, 1, 5, refill=1))
    assert sorted(names(curriculum.choose(TASKS, SEED, 1, 20))) == list("abcdefgh")


def test_what_always_fails_is_left_alone_but_for_a_probe() -> None:
    curriculum = Curriculum(CurriculumConfig(enabled=True, quarantine_after=2, probe_every=10), TASKS, SEED)
    curriculum.learn([group("a", 0.0, 0.0)], 1)
    assert not curriculum.is_quarantined("a")
    curriculum.learn([group("a", 0.0, Unscored("box"))], 2)
    assert curriculum.is_quarantined("a")
    assert curriculum.metrics()["curriculum/quarantined"] == 1.0
    assert not any("a" in names(curriculum.choose(TASKS, SEED, step, 4)) for step in range(3, 12))
    assert any("a" in names(curriculum.choose(TASKS, SEED, step, 4)) for step in range(12, 40))
    curriculum.learn([group("a", 0.0, 1.0)], 12)
    assert not curriculum.is_quarantined("a")


def test_what_always_fails_makes_up_a_steps_number_and_no_refills() -> None:
    curriculum = Curriculum(CurriculumConfig(enabled=True, quarantine_after=1, probe_every=10), TASKS, SEED)
    curriculum.learn([group("a", 0.0, 0.0)], 1)
    assert names(curriculum.choose(TASKS, SEED, 2, 8))[-1] == "a"
    assert sorted(names(curriculum.choose(TASKS, SEED, 2, 8, refill=1))) == list("bcdefgh")
    assert sorted(names(curriculum.choose(TASKS, SEED, 11, 8, refill=1))) == list("abcdefgh"), "a probe is due"


def test_without_a_verdict_nothing_is_learnt() -> None:
    curriculum = Curriculum(CurriculumConfig(enabled=True), TASKS, SEED)
    curriculum.learn([group("a", Unscored("box"), Unscored("box"))], 1)
    assert curriculum.records == {}


def test_levels_are_taken_up_as_the_easier_ones_are_solved() -> None:
    tasks = [task(name, difficulty) for name, difficulty in zip("abcd", (0.1, 0.9, 0.2, 0.8), strict=True)]
    curriculum = Curriculum(CurriculumConfig(enabled=True, levels=2, promote_at=0.7), tasks, SEED)
    assert {name for step in range(20) for name in names(curriculum.choose(tasks, SEED, step, 2))} == {"a", "c"}
    assert set(names(curriculum.choose(tasks, SEED, 1, 3))) > {"a", "c"}, "the number is made up"
    solved = (1.0,) * 8
    curriculum.learn([group("a", *solved)], 1)
    assert curriculum.unlocked == 2, "half of the level was visited, and solved"
    assert "b" in {name for step in range(20) for name in names(curriculum.choose(tasks, SEED, step, 2))}
    hopeless = Curriculum(CurriculumConfig(enabled=True, levels=2), tasks, SEED)
    hopeless.learn([group("a", 1.0, 0.0), group("c", 0.0, 0.0)], 1)
    assert hopeless.unlocked == 1


def test_hopeless_tasks_hold_no_level_up() -> None:
    """Though most of a level is left alone, the next is taken up when the rest of it is solved, and not before."""
    curriculum = Curriculum(CurriculumConfig(enabled=True, levels=2, quarantine_after=2), TASKS, SEED)
    hopeless = [group(name, 0.0, 0.0) for name in "abc"]
    curriculum.learn(hopeless, 1)
    curriculum.learn(hopeless, 2)
    assert [name for name in "abcd" if curriculum.is_quarantined(name)] == ["a", "b", "c"]
    assert curriculum.unlocked == 1
    curriculum.learn([group("d", 1.0, 0.0)], 3)
    assert curriculum.unlocked == 1
    solve(curriculum, 4, "d")
    assert curriculum.unlocked == 2


@pytest.mark.parametrize(("siblings", "decay"), [(2, 0.8), (8, 0.8), (2, 0.0), (4, 0.5)])
def test_the_pass_rate_that_is_said_to_be_unreachable_is(siblings: int, decay: float) -> None:
    most = CurriculumConfig(enabled=True, levels=2, decay=decay, promote_at=1.0).unreachable(siblings)
    assert most is not None
    for promote_at, unlocked in ((most - 1e-6, 2), (most + 1e-6, 1)):
        config = CurriculumConfig(enabled=True, levels=2, decay=decay, promote_at=promote_at)
        assert (config.unreachable(siblings) is None) == (unlocked == 2)
        curriculum = Curriculum(config, TASKS[:2], SEED)
        for step in range(200):
            curriculum.learn([group("a", *(1.0,) * siblings)], step)
        assert curriculum.unlocked == unlocked


def test_the_state_survives_a_checkpoint() -> None:
    curriculum = Curriculum(CurriculumConfig(enabled=True, levels=3), TASKS, SEED)
    for step in range(1, 4):
        curriculum.learn([group("a", 1.0, 0.0, 0.0), group("b", 1.0, 1.0), group("c", 0.0, 0.0)], step)
    restored = Curriculum(CurriculumConfig(enabled=True, levels=3), TASKS, SEED)
    restored.load_state_dict(json.loads(json.dumps(curriculum.state_dict())))
    assert restored.records == curriculum.records
    assert [names(restored.choose(TASKS, SEED, s, 3)) for s in range(9)] == [
        names(curriculum.choose(TASKS, SEED, s, 3)) for s in range(9)
    ]


def with_tests(root: Path, name: str, functions: int = 1, difficulty: float = 0.0) -> Task:
    """A task with four fail-to-pass tests in a file."""
    (root / name / "repo").mkdir(parents=True)
    (root / name / "repo" / "test_m.py").write_text("".join(f"def test_{i}():\n    pass\n" for i in range(4)))
    spec = TaskSpec(
        task_id=name, source="s", source_digest="0", instruction="i", pass_to_pass=(), editable=(),
        deleted=tuple(Deletion(path="m.py", qualname=f"f{i}", lines=3) for i in range(functions)),
        fail_to_pass=tuple(f"test_m.py::test_{i}" for i in range(4)),
    )  # fmt: skip
    return Task(spec, root / name, {"difficulty": difficulty})


def test_a_solved_task_shows_fewer_of_its_tests_and_a_hopeless_one_more_again(tmp_path: Path) -> None:
    config = CurriculumConfig(enabled=True, visible_tests=(1.0, 0.5, 0.25), quarantine_after=2)
    curriculum = Curriculum(config, [with_tests(tmp_path, "a")], SEED)
    solved, seen = group("a", *(1.0,) * 6), []
    for step in range(1, 5):
        seen.append(len(curriculum.hidden_tests("a")))
        curriculum.learn([solved], step)
        assert curriculum.metrics()["curriculum/withheld/mean"] == seen[-1] / 4, "as it was practised on"
    assert seen == [0, 2, 3, 3]
    failed = group("a", 0.0, 0.0)
    for step in range(5, 9):
        curriculum.learn([failed], step)
        seen.append(len(curriculum.hidden_tests("a")))
        assert not curriculum.is_quarantined("a")
    assert seen[4:] == [3, 2, 2, 0]
    curriculum.learn([failed], 9)
    curriculum.learn([failed], 10)
    assert curriculum.is_quarantined("a"), "with all its tests there is no way back"


def test_fewer_tests_make_a_solved_task_worth_practising_on_again(tmp_path: Path) -> None:
    tasks = [with_tests(tmp_path, name) for name in "ab"]
    curriculum = Curriculum(CurriculumConfig(enabled=True, visible_tests=(1.0, 0.25)), tasks, SEED)
    before = curriculum.weight("a", 1)
    curriculum.learn([group("a", *(1.0,) * 8)], 1)
    assert curriculum.weight("a", 2) == before
    plain = Curriculum(CurriculumConfig(enabled=True), tasks, SEED)
    plain.learn([group("a", *(1.0,) * 8)], 1)
    assert plain.weight("a", 2) < before
    assert plain.hidden_tests("a") == frozenset()


def test_a_task_that_shows_fewer_tests_counts_as_solved_for_the_levels(tmp_path: Path) -> None:
    tasks = [with_tests(tmp_path, "easy", 1, 0.2), with_tests(tmp_path, "hard", 4, 0.7)]
    curriculum = Curriculum(CurriculumConfig(enabled=True, levels=2, visible_tests=(1.0, 0.5)), tasks, SEED)
    curriculum.learn([group("easy", *(1.0,) * 8)], 1)
    assert curriculum.unlocked == 2
    assert curriculum.metrics()["curriculum/functions/mean"] == 1.0
    curriculum.learn([group("hard", 1.0, 0.0), group("easy", 1.0, 0.0)], 2)
    assert curriculum.metrics()["curriculum/functions/mean"] == 2.5, "larger groups are taken up as smaller ones are solved"


def test_what_is_withheld_survives_a_checkpoint_and_follows_from_the_seed(tmp_path: Path) -> None:
    config, tasks = CurriculumConfig(enabled=True, visible_tests=(1.0, 0.5)), [with_tests(tmp_path, "a")]
    curriculum = Curriculum(config, tasks, SEED)
    curriculum.learn([group("a", *(1.0,) * 8)], 1)
    restored = Curriculum(config, tasks, SEED)
    restored.load_state_dict(json.loads(json.dumps(curriculum.state_dict())))
    assert restored.hidden_tests("a") == curriculum.hidden_tests("a") != frozenset()
    others = [Curriculum(config, tasks, seed) for seed in range(1, 9)]
    for other in others:
        other.load_state_dict(curriculum.state_dict())
    assert {other.hidden_tests("a") for other in others} != {curriculum.hidden_tests("a")}


def of_source(name: str, *functions: str, source: str = "s", mode: str = "stub") -> Task:
    found = task(name)
    deleted = tuple(Deletion(path="m.py", qualname=function, lines=3) for function in functions)
    spec = dataclasses.replace(found.spec, deleted=deleted, source_digest=source)
    return Task(spec, found.root, {"difficulty": 0.1, "mode": mode})


def solve(curriculum: Curriculum, step: int, *tasks: str) -> None:
    curriculum.learn([group(name, *(1.0,) * 8) for name in tasks], step)


def pair(curriculum: Curriculum) -> list[str] | None:
    found = curriculum.to_join()
    return None if found is None else names(list(found))


def test_two_solved_tasks_of_one_source_are_joined_the_smallest_first() -> None:
    tasks = [of_source("a", "f", "g"), of_source("b", "h"), of_source("c", "i"), of_source("d", "j", source="other")]
    curriculum = Curriculum(CurriculumConfig(enabled=True, join_up_to=4), tasks, SEED)
    solve(curriculum, 1, "a", "d")
    assert pair(curriculum) is None, "of different sources"
    solve(curriculum, 2, "b", "c")
    assert pair(curriculum) == ["b", "c"]
    joined = of_source("bc", "h", "i")
    curriculum.add_joined(tasks[1], tasks[2], joined)
    assert pair(curriculum) is None, "none is taken twice, and the new one is not solved"
    assert "bc" in {name for step in range(9) for name in names(curriculum.choose([*tasks, joined], SEED, step, 3))}
    solve(curriculum, 3, "bc")
    assert pair(curriculum) == ["a", "bc"]
    assert curriculum.metrics()["curriculum/joined"] == 1.0
    curriculum.add_joined(tasks[0], joined, None)
    assert pair(curriculum) is None, "nor is a pair that became none tried again"
    assert curriculum.metrics()["curriculum/joined"] == 1.0


def test_a_joined_task_has_no_more_functions_than_asked() -> None:
    tasks = [of_source("a", "f", "g"), of_source("b", "h"), of_source("c", "h")]
    for most, expected in ((1, None), (2, None), (3, ["b", "a"])):
        curriculum = Curriculum(CurriculumConfig(enabled=True, join_up_to=most), tasks, SEED)
        solve(curriculum, 1, "a", "b", "c")
        assert pair(curriculum) == expected, "b and c delete the same function"


def test_a_task_shows_its_fewest_tests_before_it_is_joined(tmp_path: Path) -> None:
    tasks = [with_tests(tmp_path, name) for name in "ab"]
    for number, found in enumerate(tasks):
        deleted = (dataclasses.replace(found.spec.deleted[0], qualname=f"f{number}"),)
        tasks[number] = dataclasses.replace(found, spec=dataclasses.replace(found.spec, deleted=deleted))
    curriculum = Curriculum(CurriculumConfig(enabled=True, visible_tests=(1.0, 0.5), join_up_to=2), tasks, SEED)
    solve(curriculum, 1, "a", "b")
    assert pair(curriculum) is None
    solve(curriculum, 2, "a", "b")
    assert pair(curriculum) == ["a", "b"]


@pytest.mark.parametrize("shares", [[], [0.0], [0.5, 0.5], [0.5, 1.0], [1.5]])
def test_shares_fall(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="visible_tests"):
        CurriculumConfig.model_validate({"visible_tests": shares})


class Simulated(RolloutCollector):
    """A policy that solves one task half of the time, four always and three never."""

    async def _roll_out(self, tasks: Sequence[Task], siblings: int, *, step: int, version: int, phase: str) -> list[Group]:
        verdicts = {"a": (1.0, 0.0), **dict.fromkeys("bcde", (1.0, 1.0)), **dict.fromkeys("fgh", (0.0, 0.0))}
        return [group(t.spec.task_id, *verdicts[t.spec.task_id]) for t in tasks]


NOTES: list[str] = []


def join(first: Task, second: Task) -> Task | str:
    """What the context does, without a proof; nothing comes of `c`."""
    if "c" in (first.spec.task_id, second.spec.task_id):
        return "no test fails without it"
    return of_source("h", *(d.qualname for t in (first, second) for d in t.spec.deleted))


def simulated(tasks: Sequence[Task] = TASKS, **curriculum: object) -> Simulated:
    config = RunConfig.model_validate(
        {
            "model": {"path": "m"},
            "tasks": {"train": "t"},
            "rollout": {"groups": 2, "group_size": 2, "refills": 1},
            "curriculum": curriculum,
        }
    )
    by_id = {task.spec.task_id: task for task in tasks}
    context = SimpleNamespace(train=tasks, join=join, coding=SimpleNamespace(train=tasks, task=by_id.__getitem__))
    journal = SimpleNamespace(arm="main", note=NOTES.append)
    engine = SimpleNamespace(rest=lambda: None)
    return Simulated(cast(Any, context), config, cast(Any, engine), cast(Any, None), cast(Any, journal))


def test_the_actor_practises_on_what_the_curriculum_chooses() -> None:
    actor = simulated(enabled=True, floor=0.01)
    useful, visited = 0, Counter[str]()
    for step in range(1, 61):
        groups = asyncio.run(actor.collect(step, 0))
        visited.update(g.task_id for g in groups)
        useful += any(has_signal(group_verdicts(g)) for g in groups)
    assert actor.curriculum is not None
    assert actor.curriculum.records["a"].last_step > 50
    assert visited["a"] == max(visited.values()), "what is solved half of the time is practised on most"
    assert useful >= 40
    assert actor.curriculum.metrics()["curriculum/quarantined"] == 3.0


def test_off_by_default_every_pass_takes_every_task() -> None:
    actor = simulated()
    assert actor.curriculum is None
    visited = Counter(g.task_id for step in range(1, 9) for g in asyncio.run(actor.collect(step, 0)))
    assert min(visited[name] for name in "abcdefgh") >= 2


def test_the_actor_practises_on_what_was_joined_and_a_resumed_one_too() -> None:
    tasks = [of_source(name, name) for name in "bcdef"]
    actor = simulated(tasks, enabled=True, join_up_to=2)
    visited = [g.task_id for step in range(1, 31) for g in asyncio.run(actor.collect(step, 0))]
    assert actor.curriculum is not None
    joined = [(*pair, made) for *pair, made in actor.curriculum.joined]
    assert {made for *_, made in joined} == {"", "h"}
    assert "h" in visited
    assert any("b and c are solved; not joined: no test fails without it" in note for note in NOTES)
    assert any("d and e are solved; joined into h" in note for note in NOTES)
    resumed = simulated(tasks, enabled=True, join_up_to=2)
    resumed.load_state_dict(json.loads(json.dumps(actor.state_dict())))
    assert resumed.curriculum is not None
    assert resumed.curriculum.state_dict() == actor.curriculum.state_dict()
    steps = [[[g.task_id for g in asyncio.run(a.collect(step, 0))] for step in range(31, 41)] for a in (actor, resumed)]
    assert steps[0] == steps[1]


def test_a_box_that_breaks_puts_joining_off(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = simulated([of_source(name, name) for name in "bd"], enabled=True, join_up_to=2)
    broken: list[str] = []

    def refuse(first: Task, second: Task) -> Task | str:
        if len(broken) < 2:
            broken.append(first.spec.task_id)
            raise SandboxError("the box broke", fix="try again")
        return join(first, second)

    monkeypatch.setattr(actor.context, "join", refuse)
    for step in range(1, 11):
        assert asyncio.run(actor.collect(step, 0)), "what was rolled out is not lost"
    assert actor.curriculum is not None
    assert broken == ["b", "b"]
    assert actor.curriculum.joined == [("b", "d", "h")]
    assert any("not joined now: the box broke" in note for note in NOTES)


def test_a_joined_task_that_cannot_be_made_again_stops_a_resumed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = simulated([of_source(name, name) for name in "bd"], enabled=True, join_up_to=2)
    monkeypatch.setattr(actor.context, "join", lambda *_: "no test fails without it")
    with pytest.raises(CheckpointError, match="h, joined of b and d, is gone") as refused:
        actor.load_state_dict({"curriculum": {"unlocked": 1, "records": {}, "joined": [["b", "d", "h"]]}})
    assert "restore its folder" in str(refused.value.fix)
