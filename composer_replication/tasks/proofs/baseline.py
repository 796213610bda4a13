"""The intact project: do its tests pass, twice, and which lines does each of them run?"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.languages.layout import RepositoryLayout
from composer_replication.sandbox.grading.languages import language_named
from composer_replication.sandbox.grading.pytest_run import CodeRunner, CoverageByTest, TestRun
from composer_replication.sandbox.protocol import Ending, Limits, Tree
from composer_replication.types import Outcome
from composer_replication.types.errors import SourceError

_MIN_PASSING = 0.5
_NAMED = 3
_NEUTRAL = frozenset({Outcome.SKIPPED, Outcome.XFAILED, Outcome.XPASSED})


class UnhealthyError(SourceError):
    """Tests do not run, or most of them fail, in the environment at hand; another one may help."""

    def __init__(self, message: str, *, fix: str, lines: Sequence[str]) -> None:
        super().__init__(message, fix=fix)
        self.lines = lines
        """Messages of pytest about files and tests that fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Results of the project's own tests before anything is deleted."""

    passing: frozenset[str]
    """Ids that passed in both runs."""
    flaky: tuple[str, ...]
    """Ids that passed in one of them only, or of a function whose ids differ."""
    failing: tuple[str, ...]
    """Ids that failed, and files that could not be imported, as `id: why`."""
    skipped: int
    coverage: CoverageByTest
    """Coverage of the sources only."""


def measure_baseline(runner: CodeRunner, tree: Path, *, layout: RepositoryLayout, installed: bool) -> Baseline:
    """Run all tests twice, once with coverage per test, and once in an interpreter of its own.

    Where the two runs find other parameters of a test function, none of its ids is relied on: pytest has numbered objects in an
    order that depends on addresses, and a few have the same number by chance.

    Args:
        installed: the project's dependencies were installed for this build, so that is no longer the advice.

    Raises:
        UnhealthyError: pytest stops before any test, or fewer than half of the tests pass.
        SourceError: the tests hang, are absent, or run none of the package's lines.
        SandboxError: the sandbox broke.
        TaskError: the interpreter has no pytest or no coverage.
    """
    whole = Tree(base=tree)
    first, coverage = runner.run_with_coverage(whole, layout.tests)
    _check_ending(first, runner.limits)
    if not first.outcomes and not first.collect_errors:
        raise _nothing_ran(runner, whole, layout)
    second = dataclasses.replace(runner, fresh=True).run(whole, (), layout.tests)
    _check_ending(second, runner.limits)
    editable = () if language_named(runner.language).tests_in_sources else layout.sources
    ids = {test_id for test_id in (*first.outcomes, *second.outcomes) if _is_usable(test_id, editable)}
    unsteady = {test_id.partition("[")[0] for test_id in first.outcomes.keys() ^ second.outcomes.keys()}
    passed = [{i for i in ids if run.outcomes.get(i) is Outcome.PASSED} for run in (first, second)]
    passing = frozenset(i for i in passed[0] & passed[1] if i.partition("[")[0] not in unsteady)
    failing = [f"{i}: {first.failures.get(i, o)}" for i, o in first.outcomes.items() if o not in (Outcome.PASSED, *_NEUTRAL)]
    baseline = Baseline(
        passing=passing,
        flaky=tuple(sorted((passed[0] | passed[1]) - passing)),
        failing=(*first.collect_errors, *sorted(failing)),
        skipped=sum(outcome in _NEUTRAL for outcome in first.outcomes.values()),
        coverage={path: lines for path, lines in coverage.items() if path in layout.sources},
    )
    _check_health(baseline, runner.python, installed)
    return baseline


def _is_usable(test_id: str, editable: Container[str]) -> bool:
    """Return False for ids that cannot be written down, and for tests in files that the agent may edit and that grading would
    take from it, such as doctests."""
    return test_id.partition("::")[0] not in editable and "\0" not in test_id and test_id.isprintable()


def _check_ending(run: TestRun, limits: Limits) -> None:
    match run.ending:
        case Ending.EXITED:
            return
        case Ending.TIMEOUT:
            message = f"the project's tests did not finish within {limits.wall_s:g} s"
            fix = "raise --timeout SECONDS, or name fewer tests with --tests PATH"
        case Ending.OUT_OF_MEMORY:
            message, fix = f"the project's tests need more than {limits.memory_mb} MB of memory", "name fewer tests: --tests PATH"
        case Ending.OUTPUT_LIMIT:
            message, fix = f"the project's tests write more than {limits.disk_mb} MB to disk", "name fewer tests: --tests PATH"
        case _:
            message, fix = f"the project's tests crash (exit status {run.returncode})", "name other tests: --tests PATH"
    raise SourceError(message, fix=fix)


def _nothing_ran(runner: CodeRunner, tree: Tree, layout: RepositoryLayout) -> SourceError:
    """Say why there is not a single outcome, in the words of what runs the tests."""
    said = runner.why_nothing_ran(tree, layout.tests)
    if not said:
        return SourceError("no test was found that runs in the project", fix="name the tests: --tests PATH")
    return UnhealthyError(
        f"the tests stopped before the first one: {said[-1]}",
        fix=f"name an interpreter whose pytest and plugins suit the project (this is {runner.python}): --python PATH",
        lines=said,
    )


def _check_health(baseline: Baseline, python: Path, installed: bool) -> None:
    passing, failing = len(baseline.passing), len(baseline.failing)
    if passing and passing >= _MIN_PASSING * (passing + failing + len(baseline.flaky)):
        if not baseline.coverage:
            raise SourceError(
                "the project's tests pass but run none of the package's lines",
                fix="name the package that they test: --package PATH",
            )
        return
    if not passing and not failing:
        raise SourceError("no test was found that runs in the project", fix="name the tests: --tests PATH")
    shown = "".join(f"\n  {line}" for line in baseline.failing[:_NAMED])
    more = f"\n  and {failing - _NAMED} more" if failing > _NAMED else ""
    unsteady = f", {len(baseline.flaky)} pass only sometimes" if baseline.flaky else ""
    message = f"{passing} of the project's tests pass, {failing} fail or cannot be imported{unsteady}:{shown}{more}"
    raise UnhealthyError(message, fix=_advice(baseline.failing, python, installed), lines=baseline.failing)


def _advice(failing: Iterable[str], python: Path, installed: bool) -> str:
    modules = dict.fromkeys(name for line in failing for name in re.findall(r"No module named '([^']+)'", line))
    if not modules:
        return "make the tests pass on a machine without network, or name those that do: --tests PATH"
    missing = f"{python} lacks {', '.join(list(modules)[:5])}: "
    if installed:
        return (
            f"{missing}the project does not declare it, or builds it itself; make an environment that has it and not the "
            "project, and name its interpreter with --python PATH"
        )
    return missing + "name an interpreter that has the project's dependencies with --python PATH, or install them with --install"


def baseline_to_json(baseline: Baseline) -> dict[str, Any]:
    """Return plain data; each set of tests is written once."""
    ids = sorted(baseline.passing | {i for lines in baseline.coverage.values() for tests in lines.values() for i in tests})
    number = {test_id: n for n, test_id in enumerate(ids)}
    sets: dict[frozenset[str], int] = {}
    files = {
        path: {str(line): sets.setdefault(tests, len(sets)) for line, tests in sorted(lines.items())}
        for path, lines in sorted(baseline.coverage.items())
    }
    return {
        "ids": ids,
        "passing": [number[i] for i in sorted(baseline.passing)],
        "flaky": list(baseline.flaky),
        "failing": list(baseline.failing),
        "skipped": baseline.skipped,
        "sets": [sorted(number[i] for i in tests) for tests in sets],
        "files": files,
    }


def baseline_from_json(data: dict[str, Any]) -> Baseline:
    """Invert `baseline_to_json`. Raises KeyError, IndexError or TypeError on a record of another shape."""
    ids: Sequence[str] = data["ids"]
    sets = [frozenset(ids[n] for n in numbers) for numbers in data["sets"]]
    return Baseline(
        passing=frozenset(ids[n] for n in data["passing"]),
        flaky=tuple(data["flaky"]),
        failing=tuple(data["failing"]),
        skipped=data["skipped"],
        coverage={path: {int(line): sets[n] for line, n in lines.items()} for path, lines in data["files"].items()},
    )
