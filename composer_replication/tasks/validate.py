"""Is a candidate a task? Only what was proven with real runs in the sandbox and with the real grader becomes one."""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from composer_replication.errors import SandboxError
from composer_replication.hidden_checks import HiddenChecks
from composer_replication.sandbox.grading import grade
from composer_replication.sandbox.protocol import Ending, Limits, Sandbox, Tree
from composer_replication.sandbox.pytest_run import TestRun, run_pytest
from composer_replication.tasks.baseline import Baseline
from composer_replication.tasks.delete import body_of, delete_bodies
from composer_replication.tasks.describe import describe
from composer_replication.tasks.hidden import HiddenBook, prove_calls, without
from composer_replication.tasks.impossible import make_impossible
from composer_replication.tasks.layout import Layout
from composer_replication.tasks.leak import LeakScanner
from composer_replication.tasks.select import Candidate
from composer_replication.tasks.source import Source
from composer_replication.tasks.store import Task, write_task
from composer_replication.types import Deletion, Outcome, TaskSpec, Unscored

__all__ = ["Validator", "Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one candidate."""

    candidate: str
    """Its key."""
    task_id: str
    """Of the task it would be or is."""
    dropped: str = ""
    """Why it is no task; empty when it is one."""
    flaky: int = 0
    """Tests left out because two equal runs differed."""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data, the keyword arguments of this class."""
        return asdict(self)


class _DroppedError(Exception):
    """The candidate is no task; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Validator:
    """Turns candidates into task folders below `staging`. Safe to call from several threads."""

    source: Source
    layout: Layout
    baseline: Baseline
    scanner: LeakScanner
    sandbox: Sandbox
    python: Path
    staging: Path
    task_timeout_s: float
    """Wall-clock limit of one run of a task's tests, in seconds; kept in the task."""
    pass_to_pass_cap: int
    """Most pass-to-pass tests a task gets."""
    seed: int
    hidden: HiddenBook = field(default_factory=HiddenBook)
    impossible: float = 0.0
    """Share of the tasks that become impossible ones."""

    def validate(self, candidate: Candidate) -> Verdict:
        """Delete, see which tests fail, write the task, and prove it with the grader.

        A fail-to-pass test has failed twice without the feature (in the first run and when the untouched tree was graded) and
        passed three times with it (in both runs of the baseline and when the gold code was graded); a pass-to-pass test has
        passed in all five. Tests that did otherwise are left out and what remains is proven again.

        Raises:
            SandboxError: the box broke; says nothing about the candidate.
            StorageError: the task cannot be written.
        """
        start = time.monotonic()
        task_id = self._task_id(candidate)
        dropped, flaky = "", 0
        try:
            flaky = self._build(candidate, task_id)
        except _DroppedError as reason:
            dropped = str(reason)
        seconds = round(time.monotonic() - start, 3)
        return Verdict(candidate=candidate.key, task_id=task_id, dropped=dropped, flaky=flaky, seconds=seconds)

    def _build(self, candidate: Candidate, task_id: str) -> int:
        """Write a proven task or raise; returns the number of flaky tests left out."""
        originals = {f.path: (self.source.tree / f.path).read_bytes() for f in candidate.functions}
        deleted = {
            path: delete_bodies(content, [f for f in candidate.functions if f.path == path])
            for path, content in originals.items()
        }
        leak = self.scanner.find([body_of(originals[f.path], f) for f in candidate.functions], deleted)
        if leak is not None:
            raise _DroppedError(leak)
        pool = self._tests_of_files(originals) - candidate.tests
        failing, passing = self._first_run(candidate, deleted, pool)
        flaky: set[str] = set()
        hidden, dropped = self._hidden_checks(candidate, deleted, failing), 0
        while failing:
            kept = sorted(passing, key=lambda i: (i not in candidate.tests, i))[: self.pass_to_pass_cap]
            spec = replace(self._spec(candidate, task_id, failing, kept), hidden=hidden)
            provenance = {
                "covering_tests": len(candidate.tests),
                "pass_to_pass_found": len(passing),
                "pass_to_pass_cap": self.pass_to_pass_cap,
                "flaky_tests": len(flaky),
                "seed": self.seed,
                "held_out_calls": len(hidden.calls),
                "held_out_new": sum(not call.seen for call in hidden.calls),
                "anti_tests": len(hidden.anti_tests),
                "hidden_dropped": dropped,
            }
            root = self.staging / task_id
            task = write_task(spec, root, pristine=self.source.tree, deleted=deleted, provenance=provenance)
            unsteady, broken = self._grade_both_ways(task)
            if broken:
                hidden, dropped = without(hidden, broken), dropped + len(broken)
                continue
            if not unsteady:
                if random.Random(f"{self.seed} impossible {candidate.key}").random() < self.impossible:
                    seed = f"{self.seed} {task_id}"
                    make_impossible(task, self.source.tree, deleted, sandbox=self.sandbox, python=self.python, seed=seed)
                return len(flaky)
            flaky |= unsteady
            failing, passing = failing - flaky, passing - flaky
        raise _DroppedError("its tests are flaky" if flaky & candidate.tests else "no test fails without it")

    def _hidden_checks(self, candidate: Candidate, deleted: Mapping[str, bytes], failing: Set[str]) -> HiddenChecks:
        """Those of the project that concern the candidate; the calls fail on its tree."""
        checks = self.hidden.for_task(candidate.functions, failing, seed=f"{self.seed} {candidate.key}")
        if not checks.calls:
            return checks
        limits = Limits(wall_s=self.task_timeout_s, cpu_s=self.task_timeout_s)
        tree = Tree(base=self.source.tree, changes=deleted)
        return prove_calls(checks, self.sandbox, tree, python=self.python, python_path=self.layout.python_path, limits=limits)

    def _spec(self, candidate: Candidate, task_id: str, failing: Set[str], passing: list[str]) -> TaskSpec:
        return TaskSpec(
            task_id=task_id,
            source=self.source.label,
            source_digest=self.source.digest,
            instruction=describe(candidate.functions),
            deleted=tuple(Deletion(path=f.path, qualname=f.qualname, lines=f.lines) for f in candidate.functions),
            fail_to_pass=tuple(sorted(failing)),
            pass_to_pass=tuple(sorted(passing)),
            editable=self.layout.editable,
            python_path=self.layout.python_path,
            test_timeout_s=self.task_timeout_s,
        )

    def _first_run(
        self, candidate: Candidate, deleted: Mapping[str, bytes], pool: frozenset[str]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """The covering and sampled tests that fail and those that pass without the feature.

        When a test file cannot be imported, all its tests count, and fail.
        """
        tree = Tree(base=self.source.tree, changes=deleted)
        ids = sorted(candidate.tests | self._sample(pool, candidate.key))
        run = self._run(tree, ids)
        broken_files = {error.partition(": ")[0].partition("::")[0] for error in run.collect_errors}
        lost = {i for i in self.baseline.passing if i.partition("::")[0] in broken_files}
        if lost - set(ids):
            ids = sorted({*ids, *lost})
            run = self._run(tree, ids)
        passing = frozenset(i for i in ids if run.outcomes.get(i) is Outcome.PASSED)
        return frozenset(ids) - passing, passing

    def _run(self, tree: Tree, ids: list[str]) -> TestRun:
        limits = Limits(wall_s=self.task_timeout_s, cpu_s=self.task_timeout_s)
        run = run_pytest(self.sandbox, tree, python=self.python, test_ids=ids, python_path=self.layout.python_path, limits=limits)
        match run.ending:
            case Ending.TIMEOUT:
                raise _DroppedError(f"its tests do not finish within {limits.wall_s:g} s (--task-timeout)")
            case Ending.OUT_OF_MEMORY:
                raise _DroppedError(f"its tests need more than {limits.memory_mb} MB of memory")
            case Ending.OUTPUT_LIMIT:
                raise _DroppedError(f"its tests write more than {limits.disk_mb} MB to disk")
        ended_early = not run.collect_errors and all(o is Outcome.MISSING for o in run.outcomes.values())
        if run.ending is not Ending.EXITED or run.tampered or ended_early:
            raise _DroppedError("the test process dies before it can report")
        return run

    def _grade_both_ways(self, task: Task) -> tuple[set[str], tuple[int, ...]]:
        """The gold code must get reward 1 and the untouched tree 0.

        Returns the tests that prevent it by being flaky, and the numbers of the hidden checks the gold code does not satisfy.
        """
        unsteady: set[str] = set()
        expected: tuple[tuple[dict[str, bytes], tuple[str, ...]], ...]
        expected = ((task.gold_files(), (*task.spec.fail_to_pass, *task.spec.pass_to_pass)), ({}, task.spec.pass_to_pass))
        for files, should_pass in expected:
            report = grade(task.spec, task.repo, files, sandbox=self.sandbox, python=self.python)
            if isinstance(report.reward, Unscored):
                raise SandboxError(f"task {task.spec.task_id} could not be graded: {report.reward.reason}")
            if report.hidden_broken:
                return set(), report.hidden_broken
            passed = {i for i, outcome in report.outcomes.items() if outcome is Outcome.PASSED}
            if files and (not passed or (report.reward != 1.0 and passed == set(should_pass))):
                raise _DroppedError(f"the gold code gets reward {report.reward:g}: {report.reasons[0]}")
            unsteady |= passed ^ set(should_pass)
        return unsteady, ()

    def _tests_of_files(self, paths: Mapping[str, bytes]) -> frozenset[str]:
        """The passing tests that run a line of any of these files."""
        found = (tests for path in paths for tests in self.baseline.coverage.get(path, {}).values())
        return frozenset().union(*found) & self.baseline.passing

    def _sample(self, pool: frozenset[str], key: str) -> frozenset[str]:
        """At most `pass_to_pass_cap` ids, the same for the same candidate and seed."""
        rng = random.Random(f"{self.seed} {key}")
        return frozenset(rng.sample(sorted(pool), min(len(pool), self.pass_to_pass_cap)))

    def _task_id(self, candidate: Candidate) -> str:
        """Readable, fit for a file name, and the same for the same deletion from the same tree."""
        feature, others = candidate.functions[0], len(candidate.functions) - 1
        name = f"{self.source.name}-{feature.qualname}" + (f"-and-{others}" if others else "")
        slug = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[:80]
        digest = hashlib.sha256(f"{self.source.digest} {candidate.key}".encode()).hexdigest()
        return f"{slug}-{digest[:8]}"
