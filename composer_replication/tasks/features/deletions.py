"""Deletions that may become tasks, and what decides on them: the project is read, compiled and searched for once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from composer_replication.languages.python.functions import Function, Skipped, find_functions
from composer_replication.sandbox import Limits
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.tasks.features.decide import BuildWork
from composer_replication.tasks.features.select import Candidate, choose_candidates
from composer_replication.tasks.files import kept
from composer_replication.tasks.held_out.book import HIDDEN_BOOK, make_hidden_book
from composer_replication.tasks.proofs.baseline import Baseline
from composer_replication.tasks.proofs.bytecode import compile_tree
from composer_replication.tasks.proofs.copies import find_copies
from composer_replication.tasks.proofs.leak import LeakScanner
from composer_replication.tasks.proofs.validate import Validator
from composer_replication.tasks.report import BuildEvent, BuildOptions, Progress
from composer_replication.tasks.sources.accepted import AcceptedProject
from composer_replication.tasks.sources.layout import RepositoryLayout
from composer_replication.tasks.store import digests_of, docs_of

CHECKS = "hidden.json"
"""The file of a build's state with its checks from the project's tests."""


def deletions_of(
    project: AcceptedProject, baseline: Baseline, runner: CodeRunner, state: Path, options: BuildOptions, tell: Progress
) -> BuildWork[Candidate]:
    """Return the deletions of functions that the passing tests cover.

    Raises:
        SandboxError: the sandbox broke.
        StorageError: `state` cannot be written.
    """
    tree, layout = project.fetched.tree, project.layout
    functions, skipped = _functions(tree, layout, options)
    candidates, uncovered = choose_candidates(functions, baseline.coverage, baseline.passing, options=options)
    hidden = kept(
        state / CHECKS,
        lambda: make_hidden_book(runner, tree, layout=layout, passing=baseline.passing, seed=options.seed),
        HIDDEN_BOOK.validate_python,
        partial(HIDDEN_BOOK.dump_python, mode="json"),
    )
    tell(BuildEvent("searching"))
    files = {path: (tree / path).read_bytes() for path in layout.sources}
    validator = Validator(
        source=project.fetched,
        layout=layout,
        options=options,
        baseline=baseline,
        hidden=hidden,
        compiled=compile_tree(runner, tree, state / "compiled", layout=layout),
        files=files,
        digests=digests_of(tree),
        docs=docs_of(tree),
        licence=project.licence,
        benchmarks=project.benchmarks,
        credentials=project.credentials,
        scanner=LeakScanner(tree),
        copies=find_copies(runner.sandbox, runner.python, files, [function.key for function in functions]),
        runner=replace(runner, limits=Limits(wall_s=options.task_timeout_s, cpu_s=options.task_timeout_s)),
        staging=state / "staged",
    )
    return BuildWork(
        validator=validator, candidates=candidates, skipped=(*skipped, *uncovered), notes=tuple(hidden.notes), jobs=options.jobs
    )


def _functions(tree: Path, layout: RepositoryLayout, options: BuildOptions) -> tuple[list[Function], list[Skipped]]:
    functions: list[Function] = []
    skipped: list[Skipped] = []
    for path in layout.sources:
        found, left = find_functions(path, (tree / path).read_bytes(), keep_docstring=options.keep_docstring)
        functions += found
        skipped += left
    return functions, skipped
