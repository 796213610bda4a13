"""Commits that may become tasks, and what decides on them."""

from __future__ import annotations

from pathlib import Path

from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.tasks.features.decide import BuildWork
from composer_replication.tasks.history.clone import REPOSITORY
from composer_replication.tasks.history.environments import CommitEnvironments
from composer_replication.tasks.history.log import HistoryCommit, read_history
from composer_replication.tasks.history.validate import CommitValidator
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.sources.accepted import AcceptedProject


def commits_of(
    project: AcceptedProject, runner: CodeRunner, out: Path, state: Path, options: BuildOptions
) -> BuildWork[HistoryCommit]:
    """Return the commits of a cloned history that change code and tests, newest first.

    Args:
        project: the newest commit's.
        runner: of its tests.
        out, state: the build's folder, and that of its state.

    Raises:
        ConfigError: the options name a revision that is not there.
        SourceError: git cannot read the clone.
        TaskError: the build's state is another release's.
    """
    repository = state / REPOSITORY
    candidates, skipped = read_history(repository, options)
    validator = CommitValidator(
        repository=repository,
        newest=project.fetched,
        options=options,
        benchmarks=project.benchmarks,
        environments=CommitEnvironments(out, state, runner, options, project.fetched, project.layout),
        staging=state / "staged",
    )
    jobs = 1 if options.install else options.jobs  # an environment serves the commits that are older
    return BuildWork(validator=validator, candidates=candidates, skipped=tuple(skipped), jobs=jobs)
