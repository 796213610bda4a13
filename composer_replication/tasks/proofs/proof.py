"""The runs that prove a task: its tests twice without the feature, and the real grader on the tree with and without it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from composer_replication.sandbox.grading.grade import grade, judge
from composer_replication.sandbox.grading.pytest_run import TestRun, run_pytest_twice
from composer_replication.sandbox.protocol import Ending, Limits, Sandbox, Tree
from composer_replication.types import Outcome, TaskSpec, Unscored
from composer_replication.types.errors import SandboxError

__all__ = ["NoTaskError", "Without", "grade_both_ways", "refuse_without_imports", "run_without"]


class NoTaskError(Exception):
    """The candidate is not a task; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """Two equal runs of tests without the feature."""

    failing: frozenset[str]
    passing: frozenset[str]
    """Tests that passed in both runs."""
    unsteady: frozenset[str]
    """Tests that passed in one of them."""
    second: TestRun


def run_without(
    tree: Tree, ids: Set[str], *, sandbox: Sandbox, python: Path, python_path: tuple[str, ...], seconds: float
) -> Without:
    """Run the tests `ids` twice over the tree without the feature.

    Args:
        seconds: limit of one run.

    Raises:
        NoTaskError: they do not get to their end.
        SandboxError: the sandbox broke.
    """
    limits = Limits(wall_s=2 * seconds, cpu_s=2 * seconds)
    first, second = run_pytest_twice(sandbox, tree, python=python, test_ids=sorted(ids), python_path=python_path, limits=limits)
    match second.ending:
        case Ending.TIMEOUT:
            raise NoTaskError(f"its tests do not finish within {seconds:g} s (--task-timeout)")
        case Ending.OUT_OF_MEMORY:
            raise NoTaskError(f"its tests need more than {limits.memory_mb} MB of memory")
        case Ending.OUTPUT_LIMIT:
            raise NoTaskError(f"its tests write more than {limits.disk_mb} MB to disk")
    ended_early = not second.collect_errors and all(o is Outcome.MISSING for o in second.outcomes.values())
    if second.ending is not Ending.EXITED or second.tampered or ended_early:
        raise NoTaskError("the test process dies before it can report")
    passed = [{i for i in ids if run.outcomes.get(i) is Outcome.PASSED} for run in (first, second)]
    return Without(
        failing=frozenset(ids) - passed[0] - passed[1],
        passing=frozenset(passed[0] & passed[1]),
        unsteady=frozenset(passed[0] ^ passed[1]),
        second=second,
    )


def refuse_without_imports(without: Without) -> None:
    """Refuse a task when test files cannot be imported without its functions. Raises NoTaskError."""
    if without.second.collect_errors and Outcome.PASSED not in without.second.outcomes.values():
        raise NoTaskError("no test file can be imported without it")


def grade_both_ways(
    spec: TaskSpec, gold: Path, without: TestRun, *, sandbox: Sandbox, python: Path
) -> tuple[frozenset[str], tuple[int, ...]]:
    """Check that the gold code gets reward 1 and the tree without it 0.

    The gold code is graded as the tree `gold` without a change, the other tree by the run `without`.

    Returns:
        The tests that prevent it by being flaky, and the numbers of the hidden checks the gold code does not satisfy.

    Raises:
        NoTaskError: it is otherwise.
        SandboxError: the sandbox broke.
    """
    report = grade(spec, gold, {}, sandbox=sandbox, python=python)
    if isinstance(report.reward, Unscored):
        raise SandboxError(f"task {spec.task_id} could not be graded: {report.reward.reason}")
    if report.hidden_broken:
        return frozenset(), report.hidden_broken
    passed = {i for i, outcome in report.outcomes.items() if outcome is Outcome.PASSED}
    unsteady = report.outcomes.keys() - passed
    if not passed or (report.reward != 1.0 and not unsteady):
        raise NoTaskError(f"the gold code gets reward {report.reward:g}: {report.reasons[0]}")
    if judge(spec, without, Limits(wall_s=spec.test_timeout_s)).reward != 0.0:
        raise NoTaskError("no test fails without it")
    return frozenset(unsteady), ()
