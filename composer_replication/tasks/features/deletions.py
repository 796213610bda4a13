"""Deletions that may become tasks, and what decides on them: the project is read, compiled and searched for once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from composer_replication.languages.functions import Function, Skipped
from composer_replication.languages.layout import RepositoryLayout
from composer_replication.languages.protocol import Language
from composer_replication.sandbox import Limits
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.tasks.features.decide import BuildWork
from composer_replication.tasks.features.select import Candidate, choose_candidates
from composer_replication.tasks.features.twins import find_twins
from composer_replication.tasks.files import kept
from composer_replication.tasks.proofs.baseline import Baseline
from composer_replication.tasks.proofs.leak import LeakScanner
from composer_replication.tasks.proofs.validate import Validator
from composer_replication.tasks.report import BuildEvent, BuildOptions, Progress
from composer_replication.tasks.sources.accepted import AcceptedProject
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
    language = project.language
    functions, skipped = _functions(language, tree, layout, options)
    files = {path: (tree / path).read_bytes() for path in layout.sources}
    twins = find_twins(functions, files)
    candidates, uncovered = choose_candidates(functions, baseline.coverage, baseline.passing, options=options, twins=twins)
    hidden = kept(
        state / CHECKS,
        lambda: language.make_book(runner, tree, layout, baseline.passing, options.seed),
        language.book_from_json,
        language.book_to_json,
    )
    tell(BuildEvent("searching"))
    validator = Validator(
        source=project.fetched,
        layout=layout,
        options=options,
        baseline=baseline,
        hidden=hidden,
        language=language,
        compiled=language.compiled(runner, tree, state / "compiled", layout),
        files=files,
        digests=digests_of(tree),
        docs=docs_of(tree),
        licence=project.licence,
        benchmarks=project.benchmarks,
        credentials=project.credentials,
        scanner=LeakScanner(tree),
        copies=language.find_copies(runner.sandbox, runner.python, files, [function.key for function in functions]),
        runner=replace(runner, limits=Limits(wall_s=options.task_timeout_s, cpu_s=options.task_timeout_s)),
        staging=state / "staged",
        taken={candidate.key for candidate in candidates},
    )
    return BuildWork(
        validator=validator, candidates=candidates, skipped=(*skipped, *uncovered), notes=tuple(hidden.notes), jobs=options.jobs
    )


def _functions(
    language: Language, tree: Path, layout: RepositoryLayout, options: BuildOptions
) -> tuple[list[Function], list[Skipped]]:
    functions: list[Function] = []
    skipped: list[Skipped] = []
    for path in layout.sources:
        found, left = language.find_functions(path, (tree / path).read_bytes(), options.keep_docstring)
        functions += found
        skipped += left
    return functions, skipped
