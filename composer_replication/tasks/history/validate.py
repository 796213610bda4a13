"""Proof that a commit makes a task: its code is undone, its tests stay, and real runs decide."""

from __future__ import annotations

import hashlib
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from composer_replication.languages.python.functions import find_functions
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.submission import is_editable
from composer_replication.sandbox.protocol import Command, Limits, Tree
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.tasks.features.select import covering_tests
from composer_replication.tasks.history.changes import CodeChange, change_of
from composer_replication.tasks.history.clone import tree_of
from composer_replication.tasks.history.environments import CommitEnvironments
from composer_replication.tasks.history.log import HistoryCommit, merged_subjects
from composer_replication.tasks.history.message import instruction_of
from composer_replication.tasks.proofs.baseline import Baseline
from composer_replication.tasks.proofs.leak import LeakScanner, gives_away, is_distinctive
from composer_replication.tasks.proofs.proof import ForgeableError, NoTaskError, Without, lost_tests, run_without, sample_tests
from composer_replication.tasks.proofs.reversion import NotConfirmedError, editable_of, write_reversion
from composer_replication.tasks.proofs.validate import CandidateVerdict, slug_of
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.sources.accepted import AcceptedProject, accept
from composer_replication.tasks.sources.benchmarks import Benchmarks
from composer_replication.tasks.sources.credentials import credentials_in
from composer_replication.tasks.sources.source import PristineTree
from composer_replication.tasks.store import Task
from composer_replication.types import TaskSpec
from composer_replication.types.errors import SandboxError, SourceError, TaskError

_NONE_FAILS = "no test fails without it"


@dataclass(frozen=True, kw_only=True)
class CommitValidator:
    """Turns commits into task folders below `staging`. Safe to call from several threads where nothing is installed."""

    repository: Path
    """The clone with the whole history."""
    newest: PristineTree
    options: BuildOptions
    benchmarks: Benchmarks
    environments: CommitEnvironments
    staging: Path

    def validate(self, candidate: HistoryCommit) -> CandidateVerdict:
        """Undo the code of a commit, see which tests fail, prove it with the grader, and write the task.

        A fail-to-pass test has passed in both runs of the whole suite after the commit, failed twice without its code, and did
        the same twice more when it was graded. What breaks the sandbox is no task where the sandbox works otherwise.

        Raises:
            SandboxError: the sandbox broke; says nothing about the commit.
            StorageError: the task cannot be written.
        """
        start = time.monotonic()
        verdict = CandidateVerdict(candidate=candidate.sha, task_id=self._task_id(candidate))
        try:
            verdict = self._build(candidate, verdict)
        except ForgeableError as reason:
            verdict = replace(verdict, dropped=str(reason), weakness=reason.weakness)
        except NoTaskError as reason:
            verdict = replace(verdict, dropped=str(reason), detail=reason.detail)
        except NotConfirmedError as reason:
            verdict = replace(verdict, dropped="it does not hold when it is graded", detail=reason.found)
        except SourceError as reason:
            verdict = replace(verdict, dropped=reason.message)
        except TaskError as reason:  # of `refuse_shown`
            verdict = replace(verdict, dropped="its code can be read on this machine", detail=reason.message)
        except SandboxError as reason:
            self._probe()
            verdict = replace(verdict, dropped="the sandbox broke on it", detail=reason.message)
        return replace(verdict, seconds=round(time.monotonic() - start, 3))

    def _build(self, commit: HistoryCommit, verdict: CandidateVerdict) -> CandidateVerdict:
        """Prove a task and write it, or raise; return the verdict."""
        with scratch_folder() as scratch:
            place = self.newest.label.rpartition("@")[0]
            solved = replace(tree_of(self.repository, commit.sha, scratch / "solved"), name=self.newest.name, label=place)
            parent = tree_of(self.repository, commit.parents[0], scratch / "parent")
            project = accept(solved, self.options, self.benchmarks)
            change = change_of(commit.paths, parent.tree, solved.tree, project.layout)
            instruction = self._instruction(commit, change)
            self._refuse(project, change, commit.message, instruction)
            tree = Tree(base=solved.tree, changes=change.before)
            self._refuse_untested(commit, project, change, tree)
            runner, baseline = self.environments.measure(commit.number, solved, project.layout)
            limits = Limits(wall_s=self.options.task_timeout_s, cpu_s=self.options.task_timeout_s)
            without = self._run_without(commit, change, baseline, tree, replace(runner, limits=limits))
            spec = self._spec(verdict.task_id, commit, project, change, without, instruction)
            task = self._write(spec, commit, project, change, runner)
        weakness = task.spec.hidden.weakness
        if weakness and not self.options.forgeable:
            shutil.rmtree(task.root, ignore_errors=True)
            raise ForgeableError(weakness)
        python = self.environments.name_of(runner.python)
        return replace(verdict, weakness=weakness, flaky=len(without.unsteady), python=python)

    def _instruction(self, commit: HistoryCommit, change: CodeChange) -> str:
        code = [text for text in (lines.decode(errors="replace") for lines in change.new_code()) if is_distinctive(text)]
        known = {f.key for path, old in change.before.items() if old for f in find_functions(path, old)[0]}
        named = {function.key: f"`{function.qualname}` in {function.path}" for function in change.functions}
        return instruction_of(
            commit.message,
            merged=merged_subjects(self.repository, commit),
            news=change.news,
            added=[name for key, name in named.items() if key not in known],
            changed=[name for key, name in named.items() if key in known],
            tests=change.tests,
            gives_away=lambda text: gives_away(text.replace("#", " "), code),
        )

    def _refuse(self, project: AcceptedProject, change: CodeChange, message: str, instruction: str) -> None:
        """Drop what no model should learn, and what the tree gives away, before anything runs."""
        code = change.new_code()
        if self.benchmarks.instance_with(code) is not None:
            raise NoTaskError("a benchmark has it (--benchmark)")
        if self.benchmarks.instance_asking(instruction) is not None:
            raise NoTaskError("a benchmark asks for it (--benchmark)")
        found = [str(one) for one in project.credentials if change.added_at(one.path, one.line)]
        if found:
            raise NoTaskError("a credential is in its code (--allow-credentials)", found[0])
        if credentials_in("message", f"{message}\n{instruction}".encode(errors="replace")):
            raise NoTaskError("a credential is in its message")
        before = {path: content or b"" for path, content in change.before.items()}
        leak = LeakScanner(project.fetched.tree).find(change.new_code_of_files(), before)
        if leak is not None:
            raise NoTaskError("its code is also somewhere else in the tree", leak)

    def _refuse_untested(self, commit: HistoryCommit, project: AcceptedProject, change: CodeChange, tree: Tree) -> None:
        """Drop a commit whose test files all pass without its code: one short run spares those of the whole suite."""
        if change.helpers or not change.tests:
            return
        runner = self.environments.runner_at(commit.number, project.fetched, project.layout)
        limits = Limits(wall_s=self.options.task_timeout_s, cpu_s=self.options.task_timeout_s)
        run = replace(runner, limits=limits).run(tree, change.tests)
        if run.passed and not run.collect_errors:
            raise NoTaskError(_NONE_FAILS)

    def _run_without(
        self, commit: HistoryCommit, change: CodeChange, baseline: Baseline, tree: Tree, runner: CodeRunner
    ) -> Without:
        """Run the tests of the files that the commit changes, and a sample of others, without its code, twice."""
        covering = [covering_tests(function, baseline.coverage, baseline.passing) for function in change.functions]
        near = frozenset[str]().union(*covering)
        ids = {i for i in baseline.passing if i.partition("::")[0] in change.tests} | (near if change.helpers else frozenset())
        files = {test_id.partition("::")[0] for test_id in near}
        sample = sample_tests(baseline.passing - ids, files, self.options.pass_to_pass_cap, f"{self.options.seed} {commit.sha}")
        without = run_without(tree, ids | sample, runner)
        lost = lost_tests(without, baseline.passing)
        if lost - ids - sample:
            without = run_without(tree, ids | sample | lost, runner)
        if not without.failing:
            raise NoTaskError("its tests are flaky" if without.unsteady else _NONE_FAILS)
        return without

    def _spec(
        self,
        task_id: str,
        commit: HistoryCommit,
        project: AcceptedProject,
        change: CodeChange,
        without: Without,
        instruction: str,
    ) -> TaskSpec:
        nearest = sorted(without.passing, key=lambda i: (i.partition("::")[0] not in change.tests, i))
        fail_to_pass, pass_to_pass = sorted(without.failing), sorted(nearest[: self.options.pass_to_pass_cap])
        spec = TaskSpec(
            task_id=task_id,
            source=f"{project.fetched.label}@{commit.sha}",
            source_digest=project.fetched.digest,
            instruction=instruction,
            deleted=(),
            fail_to_pass=tuple(fail_to_pass),
            pass_to_pass=tuple(pass_to_pass),
            editable=editable_of(project.layout, change.before, (*fail_to_pass, *pass_to_pass)),
            python_path=project.layout.python_path,
            test_timeout_s=self.options.task_timeout_s,
        )
        if not all(is_editable(spec, path) for path in change.before):
            raise NoTaskError("its code lies where no submission may write")
        return spec

    def _write(
        self, spec: TaskSpec, commit: HistoryCommit, project: AcceptedProject, change: CodeChange, runner: CodeRunner
    ) -> Task:
        facts = {
            "kind": "a commit of the project's history",
            "commit": commit.sha,
            "date": commit.date,
            "subject": commit.subject,
            "merge": len(commit.parents) > 1,
            "licence": project.licence,
            "seed": self.options.seed,
            "pass_to_pass_cap": self.options.pass_to_pass_cap,
        }
        return write_reversion(
            spec,
            self.staging / spec.task_id,
            name=f"commit {commit.sha[:10]}",
            pristine=project.fetched.tree,
            before=change.before,
            facts=facts,
            sandbox=runner.sandbox,
            python=runner.python,
        )

    def _probe(self) -> None:
        """Run a program that does nothing. Raises SandboxError where not even that works."""
        with scratch_folder() as scratch:
            runner = self.environments.newest
            (scratch / "tree").mkdir()
            command = Command(argv=(str(runner.python), "-I", "-c", "pass"), python=runner.python)
            runner.sandbox.run(Tree(base=scratch / "tree"), command)

    def _task_id(self, commit: HistoryCommit) -> str:
        """Return a readable id, fit for a file name, and the same for the same commit of the same source."""
        place = self.newest.label.rpartition("@")[0]
        digest = hashlib.sha256(f"{place} {commit.sha}".encode()).hexdigest()
        return f"{slug_of(f'{self.newest.name}-{commit.subject}')[:60].strip('-')}-{digest[:8]}"
