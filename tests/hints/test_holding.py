from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import bad, call, ok, renderer, trajectory

from composer_replication.config import RunConfig
from composer_replication.hints import HintContext, detectors_named, generators_named, hold_turns, insert_hints
from composer_replication.trainer.signals import HintSources, SignalMaker
from composer_replication.types import Group, Hint, HintedTurn, Trajectory


def failing(turns: int = 5, task: str = "t0") -> Trajectory:
    made = [(call("read_file", path=f"{number}.py"), bad("path_not_found") if number == 1 else ok()) for number in range(turns)]
    return trajectory(*made, task=task)


def hinted(*places: tuple[Trajectory, int]) -> tuple[HintedTurn, ...]:
    hints = [Hint(trajectory_id=one.trajectory_id, turn=n, kind="k", text="Hint: look.", source="s") for one, n in places]
    return insert_hints([one for one, _ in places], hints, renderer()).hinted


@given(st.integers(0, 6), st.sets(st.integers(0, 4), min_size=1), st.integers(0, 2**63 - 1))
def test_held_turns_are_others_of_the_trajectory_read_without_a_hint(per_hint, errors, seed):
    t = failing()
    told = hinted(*((t, n) for n in errors))
    held = list(hold_turns([t, failing(task="t1")], told, per_hint=per_hint, seed=seed))
    numbers = [turn.turn for turn in held]
    assert len(numbers) == len(set(numbers)) == min(per_hint * len(errors), len(t.turns) - len(errors))
    assert errors.isdisjoint(numbers)
    for turn in held:
        assert (turn.trajectory_id, turn.action_ids) == (t.trajectory_id, t.turns[turn.turn].action_ids)
        assert turn.teacher_ids == (*t.context_ids(turn.turn), *turn.action_ids)
        assert turn.student_start == turn.teacher_start == t.action_start(turn.turn)
    assert all(turn.held for turn in held)
    assert not any(turn.held for turn in told)
    assert held == list(hold_turns([t], told, per_hint=per_hint, seed=seed))


def test_every_other_turn_is_drawn_by_some_seed_and_a_silent_turn_by_none():
    t = failing()
    told = hinted((t, 1))
    drawn = {turn.turn for seed in range(60) for turn in hold_turns([t], told, per_hint=1, seed=seed)}
    assert drawn == {0, 2, 3, 4}
    t = failing(turns=2)
    silent = dataclasses.replace(t, turns=(dataclasses.replace(t.turns[0], action_ids=(), logprobs=()), t.turns[1]))
    assert list(hold_turns([silent], hinted((silent, 1)), per_hint=1, seed=0)) == []


def test_errors_without_a_hint_and_turns_beyond_the_window_are_not_held():
    t = failing()
    told = hinted((t, 1))
    errors, window = [(t.trajectory_id, 3)], t.action_start(4)
    drawn = {
        turn.turn
        for seed in range(40)
        for turn in hold_turns([t], told, per_hint=1, seed=seed, errors=errors, context_window=window)
    }
    assert drawn == {0, 2}


def test_a_hint_of_a_trajectory_that_is_not_there():
    with pytest.raises(KeyError):
        list(hold_turns([failing(task="other")], hinted((failing(), 1)), per_hint=1, seed=0))


@pytest.mark.parametrize(
    ("hint", "held"), [({}, 1), ({"held_turns": 3}, 3), ({"held_turns": 0}, 0), ({"self_teacher": "live"}, 0)]
)
def test_the_signals_of_a_step_hold_turns_and_count_them_apart(hint, held):
    config = RunConfig.model_validate(
        {"name": "r", "steps": 1, "model": {"path": "m"}, "tasks": {"train": "tasks"}, "loss": {"hint": hint}}
    )
    names = config.loss.hint
    sources = HintSources(
        contexts={"t0": HintContext()},
        gold={},
        detectors=detectors_named(names.detectors),
        generators=generators_named(names.generators),
    )
    maker = SignalMaker(config=config, sources=sources, renderer=renderer(), context_window=4096)
    t = failing()
    group = Group(group_id="g", task_id="t0", trajectories=(t,))
    signals = maker.make(1, [group])
    assert [turn.held for turn in signals.hinted] == [False] + [True] * held
    assert len(signals.hints) == 1
    assert (signals.metrics["hint/turns"], signals.metrics["hint/held"]) == (1.0, held)
    batch = maker.batch([group], signals, ())
    assert float(batch["hint_denominator"]) == sum(len(turn.action_ids) for turn in signals.hinted)
