"""Tasks made by undoing a change: the solved tree without it, its tests in place, proven by the real grader.

The change is a row's gold patch or a commit of a project's history.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer_replication.languages.layout import RepositoryLayout
from composer_replication.sandbox.grading.grade import grade
from composer_replication.sandbox.protocol import Sandbox
from composer_replication.tasks.held_out.choice import numbers_of
from composer_replication.tasks.held_out.solution_checks import checks_of_solution
from composer_replication.tasks.proofs.task_copies import refuse_shown
from composer_replication.tasks.store import Task, write_task
from composer_replication.types import Outcome, TaskSpec, Unscored
from composer_replication.types.errors import SandboxError, SourceError


class NotConfirmedError(SourceError):
    """Real runs do not confirm a reversion."""

    def __init__(self, name: str, found: str, *, fix: str) -> None:
        super().__init__(f"{name} does not hold here: {found}", fix=fix)
        self.found = found
        """What the runs showed instead."""


def editable_of(layout: RepositoryLayout, paths: Iterable[str], tests: Iterable[str]) -> tuple[str, ...]:
    """Return the allow list of a reversion: the project's sources, and what the change touches but the files of its tests.

    Args:
        paths: files that the change touches.
        tests: ids of the task's tests.
    """
    named = {test_id.partition("::")[0] for test_id in tests}
    return tuple(dict.fromkeys([*layout.editable, *(glob.escape(path) for path in paths if path not in named)]))


def write_reversion(
    spec: TaskSpec,
    root: Path,
    *,
    name: str,
    pristine: Path,
    before: Mapping[str, bytes | None],
    facts: Mapping[str, Any],
    sandbox: Sandbox,
    python: Path,
) -> Task:
    """Write a task at `root`, proven with the grader: gold code 1 and untouched tree 0, twice each.

    Pass-to-pass tests that do not pass every time are left out, and what remains is proven again, with its hidden checks.

    Args:
        spec: the task without hidden checks.
        name: how errors name it.
        pristine: the solved tree.
        before: by POSIX path, the files that the change touches as they were; None for one that it adds.
        facts: for `provenance`; the numbers of flaky tests and of hidden checks are added.

    Raises:
        NotConfirmedError: a fail-to-pass test or a hidden check does not hold every time.
        TaskError: a sandbox shows the solution.
        SandboxError: the sandbox broke.
        StorageError: the task cannot be written.
    """
    task = write_task(spec, root, pristine=pristine, deleted=before, provenance={**facts, "flaky_tests": 0})
    refuse_shown(task, sandbox, python)
    unsteady = _prove(task, name, sandbox, python)
    spec = replace(spec, pass_to_pass=tuple(i for i in spec.pass_to_pass if i not in unsteady))
    spec = replace(spec, hidden=checks_of_solution(spec, task.repo, task.gold_files(), sandbox=sandbox, python=python))
    counted = {"flaky_tests": len(unsteady), **numbers_of(spec.hidden), "parts_not_asked": spec.hidden.untold}
    if spec != task.spec:
        task = write_task(spec, root, pristine=pristine, deleted=before, provenance={**facts, **counted})
        _prove(task, name, sandbox, python)
    return task


def _prove(task: Task, name: str, sandbox: Sandbox, python: Path) -> frozenset[str]:
    """Grade the gold code and the untouched tree, twice each; return the pass-to-pass tests that did not always pass.

    Raises:
        NotConfirmedError: a fail-to-pass test passed without the change or did not pass with it, or a hidden check did not hold.
        SandboxError: the sandbox broke.
    """
    spec, unsteady = task.spec, set[str]()
    for files in (task.gold_files(), {}) * 2:
        report = grade(spec, task.repo, files, sandbox=sandbox, python=python)
        if isinstance(report.reward, Unscored):
            raise SandboxError(f"{name} could not be graded: {report.reward.reason}")
        passed = {i for i, outcome in report.outcomes.items() if outcome is Outcome.PASSED}
        wrong = [i for i in spec.fail_to_pass if (i in passed) is not bool(files)]
        if wrong or not spec.fail_to_pass:
            what = "does not pass with" if files else "passes without"
            found = f"{wrong[0]} {what} its patch" if wrong else "it names no fail-to-pass test"
            raise NotConfirmedError(name, found, fix="name an interpreter that has what its tests need: --python PATH")
        if files and report.hidden_broken:
            raise NotConfirmedError(name, report.reasons[0], fix="leave it out")
        unsteady |= set(spec.pass_to_pass) - passed
    return frozenset(unsteady)
