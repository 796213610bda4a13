"""Proof that a candidate makes a task, by real runs in the sandbox and by the real grader."""

from __future__ import annotations

import hashlib
import random
import re
import threading
import time
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from composer_replication.languages.functions import body_of
from composer_replication.languages.layout import RepositoryLayout
from composer_replication.languages.protocol import Language
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Tree
from composer_replication.tasks.describe import describe
from composer_replication.tasks.feature import Feature
from composer_replication.tasks.features.select import Candidate, covering_tests
from composer_replication.tasks.held_out.choice import numbers_of
from composer_replication.tasks.held_out.impossible import make_impossible
from composer_replication.tasks.proofs.baseline import Baseline
from composer_replication.tasks.proofs.leak import LeakScanner
from composer_replication.tasks.proofs.proof import (
    DispensableError,
    ForgeableError,
    NoTaskError,
    Without,
    lost_tests,
    prove,
    refuse_dispensable,
    refuse_without_imports,
    run_without,
    sample_tests,
    without_functions,
)
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.sources.benchmarks import Benchmarks
from composer_replication.tasks.sources.credentials import Credential
from composer_replication.tasks.sources.source import PristineTree
from composer_replication.tasks.store import Task, write_task
from composer_replication.types import Deletion, TaskSpec
from composer_replication.types.held_out_checks import HeldOutChecks


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateVerdict:
    """The verdict on one candidate."""

    candidate: str
    """`Candidate.key`, which names the functions it deletes."""
    task_id: str
    """Id of the task, whether or not it is written."""
    weakness: str = ""
    """Why its reward can be forged (`HeldOutChecks.weakness`)."""
    dropped: str = ""
    """Why it is not a task; empty when it is one."""
    detail: str = ""
    """What `dropped` says for this one alone."""
    python: str = ""
    """Interpreter of its tests where that is not the build's: a path, relative to the build's folder where it lies there."""
    impossible: bool = False
    flaky: int = 0
    """Tests left out because two equal runs differed."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Validator:
    """Turns candidates into task folders below `staging`. Safe to call from several threads."""

    source: PristineTree
    layout: RepositoryLayout
    options: BuildOptions
    baseline: Baseline
    hidden: Any
    """The language's book of held-out checks."""
    language: Language
    compiled: Path
    """The source's tree with its bytecode (`compile_tree`): what the tests run on."""
    files: Mapping[str, bytes]
    """The layout's sources, by POSIX path."""
    digests: Mapping[str, str]
    """Digests of the source's tree (`digests_of`)."""
    docs: Mapping[str, str]
    """The project's documentation, by path."""
    licence: str
    benchmarks: Benchmarks
    credentials: tuple[Credential, ...]
    """Credentials in the source's tree."""
    scanner: LeakScanner
    copies: Mapping[str, str]
    """`Function.key` -> a file outside of the tree that has its code, and that a sandbox can read."""
    runner: CodeRunner
    """Its limits are those of one run of a task's tests."""
    staging: Path
    taken: set[str]
    """Keys of the candidates, and of those that became smaller ones."""
    taken_lock: threading.Lock = field(default_factory=threading.Lock)

    def validate(self, candidate: Candidate) -> CandidateVerdict:
        """Delete, see which tests fail, prove it with the grader, and write the task.

        A fail-to-pass test has failed twice without the feature (the second run is the one that the untouched tree is graded by)
        and passed three times with it (in both runs of the baseline and when the gold code was graded); a pass-to-pass test has
        passed in all five. Tests that did otherwise are left out and what remains is proven again.

        Raises:
            SandboxError: the sandbox broke; says nothing about the candidate.
            StorageError: the task cannot be written.
        """
        start = time.monotonic()
        task_id = self._task_id(candidate)
        dropped, detail, flaky, weakness, impossible = "", "", 0, "", False
        try:
            task_id, (flaky, weakness, impossible) = self._needed(candidate)
        except ForgeableError as reason:
            dropped, weakness = str(reason), reason.weakness
        except NoTaskError as reason:
            dropped, detail = str(reason), reason.detail
        seconds = round(time.monotonic() - start, 3)
        return CandidateVerdict(
            candidate=candidate.key,
            task_id=task_id,
            weakness=weakness,
            dropped=dropped,
            detail=detail,
            impossible=impossible,
            flaky=flaky,
            seconds=seconds,
        )

    def _needed(self, candidate: Candidate) -> tuple[str, tuple[int, str, bool]]:
        """Prove a task of the candidate or, of a whole feature, of those of its functions that are needed; return its id and what
        `_build` returns. Raises as `_build`."""
        while True:
            task_id = self._task_id(candidate)
            try:
                return task_id, self._build(candidate, task_id)
            except DispensableError as reason:
                smaller = self._without(candidate, reason.functions)
                if smaller is None:
                    raise
                candidate = smaller

    def _without(self, candidate: Candidate, dispensable: Collection[str]) -> Candidate | None:
        """Return the candidate without these functions; None where that is no feature, or another candidate is about the same."""
        kept = tuple(function for function in candidate.functions if function.key not in dispensable)
        if self.options.mode != "feature" or len(kept) < self.options.min_group_size or kept[0] is not candidate.functions[0]:
            return None
        covered = (covering_tests(function, self.baseline.coverage, self.baseline.passing) for function in kept)
        smaller = Candidate(functions=kept, tests=frozenset().union(*covered))
        with self.taken_lock:
            if smaller.key in self.taken:
                return None
            self.taken.add(smaller.key)
        return smaller

    def _build(self, candidate: Candidate, task_id: str) -> tuple[int, str, bool]:
        """Prove a task and write it, or raise; return the number of flaky tests left out, why its reward can be forged, and
        whether it was made impossible."""
        deleted = without_functions(self.language, self.files, candidate.functions, self.options.mode, self.layout.python_path)
        bodies = [body_of(self.files[f.path], f) for f in candidate.functions]
        self._refuse(candidate, bodies)
        leak = self.scanner.find(bodies, deleted)
        if leak is not None:
            raise NoTaskError(leak)
        ahead = self.language.weakness_ahead(self.hidden, candidate.functions, self._seed(candidate))
        if ahead and not self.options.forgeable:
            raise ForgeableError(ahead)
        without = self._run_without(candidate, deleted)
        hidden = self._hidden_checks(candidate, deleted, without.failing)

        def spec_of(failing: Set[str], passing: Set[str], hidden: HeldOutChecks) -> TaskSpec:
            if hidden.weakness and not self.options.forgeable:
                raise ForgeableError(hidden.weakness)
            kept = sorted(passing, key=lambda i: (i not in candidate.tests, i))[: self.options.pass_to_pass_cap]
            return replace(self._spec(candidate, task_id, failing, kept), hidden=hidden)

        proven = prove(spec_of, without, hidden, self.compiled, deleted, self.runner, covering=candidate.tests)
        refuse_dispensable(proven.spec, self._each_left_out(candidate), self.runner)
        facts = {
            "pass_to_pass_found": len(proven.passing),
            "flaky_tests": len(proven.flaky),
            "hidden_dropped": proven.hidden_dropped,
        }
        task = self._write(proven.spec, candidate, deleted, {**facts, **self._check_strength(candidate, proven.spec)})
        return len(proven.flaky), proven.spec.hidden.weakness, self._perhaps_impossible(task, candidate, deleted)

    def _refuse(self, candidate: Candidate, bodies: Sequence[bytes]) -> None:
        """Drop what no model should learn, before anything runs."""
        if self.benchmarks.instance_with(bodies) is not None:
            raise NoTaskError("a benchmark has it (--benchmark)")
        if self.options.benchmarks:
            asked = describe(self._feature(candidate, ()), "full")  # whatever the instruction's wording: a run chooses it
            if self.benchmarks.instance_asking(asked) is not None:
                raise NoTaskError("a benchmark asks for it (--benchmark)")
        if any(c.path == f.path and f.first_line <= c.line <= f.last_line for c in self.credentials for f in candidate.functions):
            raise NoTaskError("a credential is in its code (--allow-credentials)")
        copy = next((self.copies[f.key] for f in candidate.functions if f.key in self.copies), None)
        if copy is not None:
            raise NoTaskError(f"its code can be read on this machine ({copy})")

    def _hidden_checks(self, candidate: Candidate, deleted: Mapping[str, bytes], failing: Set[str]) -> HeldOutChecks:
        """Return the project's checks that concern the candidate; the programs fail on its tree."""
        checks = self.language.choose_checks(
            self.hidden,
            candidate.functions,
            failing,
            runner=self.runner,
            gold=Tree(base=self.compiled),
            task=Tree(base=self.compiled, changes=deleted),
            seed=self._seed(candidate),
        )
        if checks.weakness and not self.options.forgeable:
            raise ForgeableError(checks.weakness)
        return checks

    def _seed(self, candidate: Candidate) -> str:
        return f"{self.options.seed} {candidate.key}"

    def _each_left_out(self, candidate: Candidate) -> dict[str, Tree]:
        """Return for each function the gold tree without it."""
        mode, python_path = self.options.mode, self.layout.python_path
        return {
            function.key: Tree(
                base=self.compiled, changes=without_functions(self.language, self.files, [function], mode, python_path)
            )
            for function in candidate.functions
        }

    def _check_strength(self, candidate: Candidate, spec: TaskSpec) -> dict[str, int]:
        """Count the mutants of the gold code and how many the fail-to-pass tests kill; drop a candidate that kills too few."""
        if not self.options.mutants:
            return {}
        path = candidate.functions[0].path
        functions = [f for f in candidate.functions if f.path == path]
        mutants = self.language.mutants(self.files[path], functions, self.options.mutants, self._seed(candidate))
        trees = (Tree(base=self.compiled, changes={path: mutant}) for mutant in mutants)
        # the first test that fails ends the run
        killed = sum(not self.runner.run(tree, spec.fail_to_pass, ("-x",)).passed for tree in trees)
        if killed < self.options.kill_rate * len(mutants):
            raise NoTaskError("its tests are weak (--mutants, --kill-rate)")
        return {"mutants": len(mutants), "mutants_killed": killed}

    def _write(self, spec: TaskSpec, candidate: Candidate, deleted: Mapping[str, bytes], facts: Mapping[str, int]) -> Task:
        provenance = {
            "mode": self.options.mode,
            "keep_docstring": self.options.keep_docstring,
            "difficulty": candidate.difficulty,
            "licence": self.licence,
            "covering_tests": len(candidate.tests),
            "pass_to_pass_cap": self.options.pass_to_pass_cap,
            "seed": self.options.seed,
            **numbers_of(spec.hidden),
            **facts,
        }
        root = self.staging / spec.task_id
        return write_task(spec, root, pristine=self.source.tree, deleted=deleted, provenance=provenance, digests=self.digests)

    def _perhaps_impossible(self, task: Task, candidate: Candidate, deleted: Mapping[str, bytes]) -> bool:
        """Turn the requested share of the tasks into impossible ones; return whether this is one now."""
        if random.Random(f"{self.options.seed} impossible {candidate.key}").random() >= self.options.impossible:
            return False
        seed = f"{self.options.seed} {task.spec.task_id}"
        return make_impossible(task, self.source.tree, deleted, sandbox=self.runner.sandbox, python=self.runner.python, seed=seed)

    def _feature(self, candidate: Candidate, fail_to_pass: tuple[str, ...]) -> Feature:
        return Feature(
            functions=candidate.functions,
            sources=self.files,
            fail_to_pass=fail_to_pass,
            docs=self.docs,
            removed=self.language.removes(self.options.mode),
            language=self.language,
        )

    def _spec(self, candidate: Candidate, task_id: str, failing: Set[str], passing: list[str]) -> TaskSpec:
        fail_to_pass = tuple(sorted(failing))
        return TaskSpec(
            task_id=task_id,
            source=self.source.label,
            source_digest=self.source.digest,
            instruction=describe(self._feature(candidate, fail_to_pass), self.options.instruction),
            deleted=tuple(Deletion(path=f.path, qualname=f.qualname, lines=f.lines) for f in candidate.functions),
            fail_to_pass=fail_to_pass,
            pass_to_pass=tuple(sorted(passing)),
            editable=self.layout.editable,
            python_path=self.layout.python_path,
            language=self.language.name,
            tests_in_sources=self.language.tests_in_sources,
            test_timeout_s=self.options.task_timeout_s,
        )

    def _run_without(self, candidate: Candidate, deleted: Mapping[str, bytes]) -> Without:
        """Run the covering tests and a sample of others of the same files without the feature, twice.

        When a test file cannot be imported, all its tests count, and fail.
        """
        tree = Tree(base=self.compiled, changes=deleted)
        pool = self._tests_of_files(deleted) - candidate.tests
        near = {test_id.partition("::")[0] for test_id in candidate.tests}
        sample = sample_tests(pool, near, self.options.pass_to_pass_cap, self._seed(candidate))
        ids = candidate.tests | sample
        without = run_without(tree, ids, self.runner)
        lost = lost_tests(without, self.baseline.passing)
        if lost - ids:
            without = run_without(tree, ids | lost, self.runner)
        if broken := self.language.broken_without(without.second.collect_errors):
            raise NoTaskError(broken)
        if self.language.removes(self.options.mode):
            refuse_without_imports(without)
        return without

    def _tests_of_files(self, paths: Mapping[str, bytes]) -> frozenset[str]:
        """Return the passing tests that run a line of any of these files."""
        found = (tests for path in paths for tests in self.baseline.coverage.get(path, {}).values())
        return frozenset().union(*found) & self.baseline.passing

    def _task_id(self, candidate: Candidate) -> str:
        """Return a readable id, fit for a file name, and the same for the same deletion from the same tree."""
        feature, others = candidate.functions[0], len(candidate.functions) - 1
        name = f"{self.source.name}-{feature.qualname}" + (f"-and-{others}" if others else "")
        mode = "" if self.options.mode == "stub" else f"{self.options.mode} "
        digest = hashlib.sha256(f"{mode}{self.source.digest} {candidate.key}".encode()).hexdigest()
        return f"{slug_of(name)}-{digest[:8]}"


def slug_of(name: str) -> str:
    """Return the beginning of a task's id for a project or functions of this name."""
    return re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[:80]
