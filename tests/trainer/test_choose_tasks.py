"""The data cursor is the step number: every pass is a permutation, and nothing but seed and step decides."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from composer_replication.trainer.actor import choose_tasks

TASKS = list("abcdefghij")


def test_a_pass_takes_every_task_once_in_another_order() -> None:
    first = [t for step in (1, 2) for t in choose_tasks(TASKS, 0, step, 5)]
    second = [t for step in (3, 4) for t in choose_tasks(TASKS, 0, step, 5)]
    assert sorted(first) == sorted(second) == TASKS
    assert first != second
    assert first != [t for step in (1, 2) for t in choose_tasks(TASKS, 1, step, 5)]


@given(step=st.integers(1, 50), count=st.integers(1, len(TASKS)), seed=st.integers(0, 3))
def test_a_step_has_no_task_twice(step: int, count: int, seed: int) -> None:
    chosen = choose_tasks(TASKS, seed, step, count)
    assert len(set(chosen)) == count
    assert chosen == choose_tasks(TASKS, seed, step, count)
