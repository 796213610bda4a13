"""The runs that prove a task: its tests twice without the feature, and the real grader on the tree with and without it."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Container, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from composer_replication.languages.functions import Function
from composer_replication.languages.protocol import Language
from composer_replication.sandbox.grading.grade import grade, judge
from composer_replication.sandbox.grading.languages import graded_language, seen_failing
from composer_replication.sandbox.grading.pytest_run import CodeRunner, TestRun
from composer_replication.sandbox.grading.submission import is_editable
from composer_replication.sandbox.protocol import Ending, Limits, Tree
from composer_replication.tasks.held_out.choice import without_broken
from composer_replication.types import Outcome, TaskSpec, Unscored
from composer_replication.types.errors import SandboxError
from composer_replication.types.held_out_checks import HeldOutChecks


class NoTaskError(Exception):
    """The candidate is not a task; the message says why, in words that count the candidates alike."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail
        """What the reason says for this one alone."""


class ForgeableError(NoTaskError):
    """The candidate's reward could be forged."""

    def __init__(self, weakness: str) -> None:
        super().__init__(f"forgeable (--forgeable keeps it): {weakness.partition(':')[0]}")
        self.weakness = weakness


class DispensableError(NoTaskError):
    """The candidate is solved without some of its functions."""

    def __init__(self, functions: Collection[str]) -> None:
        super().__init__("it is solved without one of its functions")
        self.functions = functions
        """Their keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """Two equal runs of tests without the feature."""

    failing: frozenset[str]
    passing: frozenset[str]
    """Tests that passed in both runs."""
    unsteady: frozenset[str]
    """Tests that passed in one of them."""
    second: TestRun


def run_without(tree: Tree, ids: Set[str], runner: CodeRunner) -> Without:
    """Run the tests `ids` twice over the tree without the feature.

    Args:
        runner: its limits are those of one run.

    Raises:
        NoTaskError: they do not get to their end.
        SandboxError: the sandbox broke.
    """
    limits = replace(runner.limits, wall_s=2 * runner.limits.wall_s, cpu_s=2 * runner.limits.cpu_s)
    first, second = replace(runner, limits=limits).run_twice(tree, sorted(ids))
    match second.ending:
        case Ending.TIMEOUT:
            raise NoTaskError(f"its tests do not finish within {runner.limits.wall_s:g} s (--task-timeout)")
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


def lost_tests(without: Without, passing: Set[str]) -> frozenset[str]:
    """Return the tests among `passing` in files that cannot be imported without the feature."""
    broken = {error.partition(": ")[0].partition("::")[0] for error in without.second.collect_errors}
    return frozenset(i for i in passing if i.partition("::")[0] in broken)


def sample_tests(pool: Set[str], near: Container[str], most: int, seed: str) -> frozenset[str]:
    """Return at most `most` ids of `pool`, the same for the same seed.

    They come from few test files, because each costs its collection in every run: those of `near` first.
    """
    rng = random.Random(seed)
    by_file: dict[str, list[str]] = {}
    for test_id in sorted(pool):
        by_file.setdefault(test_id.partition("::")[0], []).append(test_id)
    files = sorted(by_file)
    rng.shuffle(files)
    files.sort(key=lambda file: file not in near)
    taken: list[str] = []
    for file in files:
        room = most - len(taken)
        taken += by_file[file] if len(by_file[file]) <= room else rng.sample(by_file[file], room)
    return frozenset(taken)


def refuse_without_imports(without: Without) -> None:
    """Refuse a task when test files cannot be imported without its functions. Raises NoTaskError."""
    if without.second.collect_errors and Outcome.PASSED not in without.second.outcomes.values():
        raise NoTaskError("no test file can be imported without it")


def without_functions(
    language: Language, files: Mapping[str, bytes], functions: Sequence[Function], mode: str, python_path: Sequence[str]
) -> Mapping[str, bytes]:
    """Return the files that change when `functions` are deleted, in a mode that the language has.

    Args:
        files: every source of the project, by POSIX path.

    Raises:
        NoTaskError: a file that has to change cannot be read.
    """
    try:
        return language.without(files, functions, mode, python_path)
    except SyntaxError as error:
        raise NoTaskError(str(error)) from error


def refuse_dispensable(spec: TaskSpec, trees: Mapping[str, Tree], runner: CodeRunner) -> None:
    """Refuse a task of several functions that is solved without one of them.

    Args:
        trees: for each function the gold tree without this one alone.

    Raises:
        DispensableError: the tests and held-out programs hold without some of them, one at a time.
        SandboxError: the sandbox broke.
    """
    needless = [
        key
        for key, tree in (trees if len(trees) > 1 else {}).items()
        if runner.run(tree, spec.fail_to_pass, ("-x",)).passed and not seen_failing(runner, tree, spec.hidden.programs)
    ]
    if needless:
        raise DispensableError(needless)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """A task that holds, and what was left out of it."""

    spec: TaskSpec
    """With a profile of the gold code."""
    failing: frozenset[str]
    passing: frozenset[str]
    flaky: frozenset[str]
    """Tests left out because equal runs differed."""
    hidden_dropped: int
    """Hidden checks that the gold code does not satisfy."""


def prove(
    spec_of: Callable[[Set[str], Set[str], HeldOutChecks], TaskSpec],
    without: Without,
    hidden: HeldOutChecks,
    gold: Path,
    deleted: Collection[str],
    runner: CodeRunner,
    *,
    covering: Set[str],
) -> Proven:
    """Grade the tree with and without the feature; leave out what does not hold, and prove what remains again.

    Args:
        spec_of: makes the task of failing tests, passing tests and hidden checks, or raises NoTaskError.
        gold: the tree with the feature.
        deleted: paths of the files that change.
        covering: tests that run the deleted functions.

    Raises:
        NoTaskError: nothing remains, or the code lies where no submission may write.
        SandboxError: the sandbox broke.
    """
    failing, passing, flaky, dropped = without.failing, without.passing, without.unsteady, 0
    while failing:
        spec = spec_of(failing, passing, hidden)
        if not all(is_editable(spec, path) for path in deleted):
            raise NoTaskError("its code lies where no submission may write")
        unsteady, broken, events = _grade_both_ways(spec, gold, without.second, runner)
        if broken:
            hidden, dropped = without_broken(hidden, broken), dropped + len(broken)
        elif unsteady:
            flaky, failing, passing = flaky | unsteady, failing - unsteady, passing - unsteady
        else:
            profile = graded_language(spec).profile({path: (gold / path).read_bytes() for path in deleted}, events)
            spec = replace(spec, hidden=replace(hidden, profile=profile))
            return Proven(spec=spec, failing=failing, passing=passing, flaky=flaky, hidden_dropped=dropped)
    raise NoTaskError("its tests are flaky" if flaky & covering else "no test fails without it")


def _grade_both_ways(
    spec: TaskSpec, gold: Path, without: TestRun, runner: CodeRunner
) -> tuple[frozenset[str], tuple[int, ...], tuple[str, ...]]:
    """Check that the gold code gets reward 1 and the tree without it 0.

    The gold code is graded as the tree `gold` without a change, the other tree by the run `without`.

    Returns:
        The tests that prevent it by being flaky, the numbers of the hidden checks the gold code does not satisfy, and the kinds
        of audit events it causes.

    Raises:
        NoTaskError: it is otherwise.
        SandboxError: the sandbox broke.
    """
    report = grade(spec, gold, {}, sandbox=runner.sandbox, python=runner.python)
    if isinstance(report.reward, Unscored):
        raise SandboxError(f"task {spec.task_id} could not be graded: {report.reward.reason}")
    if report.hidden_broken:
        return frozenset(), report.hidden_broken, ()
    passed = {i for i, outcome in report.outcomes.items() if outcome is Outcome.PASSED}
    unsteady = report.outcomes.keys() - passed
    if not passed or (report.reward != 1.0 and not unsteady):
        raise NoTaskError(f"the gold code gets reward {report.reward:g}: {report.reasons[0]}")
    if judge(spec, without, Limits(wall_s=spec.test_timeout_s)).reward != 0.0:
        raise NoTaskError("no test fails without it")
    return frozenset(unsteady), (), report.events
