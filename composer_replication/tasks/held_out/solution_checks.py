"""Hidden checks for tasks that come with a solution instead of being deleted here: they test what the solution changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from composer_replication.languages.functions import Function
from composer_replication.languages.layout import RepositoryLayout
from composer_replication.languages.python.changes import changed_functions
from composer_replication.languages.registry import build_language
from composer_replication.sandbox.grading.grade import grade
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.submission import is_editable
from composer_replication.sandbox.protocol import Limits, Sandbox, Tree
from composer_replication.tasks.files import solved_tree
from composer_replication.tasks.held_out.book import make_hidden_book
from composer_replication.tasks.held_out.choice import choose_proven, without_broken
from composer_replication.tasks.held_out.left_out import asked_of, find_told, with_told
from composer_replication.tasks.sources.layout import guess_layout
from composer_replication.types import TaskSpec, Unscored
from composer_replication.types.errors import SandboxError, SourceError
from composer_replication.types.held_out_checks import HeldOutChecks


def checks_of_solution(spec: TaskSpec, repo: Path, gold: Mapping[str, bytes], *, sandbox: Sandbox, python: Path) -> HeldOutChecks:
    """Return checks that the solved tree satisfies; the programs among them fail on the tree `repo` without the solution. With
    them comes what the solution needs, for the tripwire, and how many parts of it nothing asks for.

    Args:
        spec: the task, whose tests are known to hold.
        gold: the solution, by POSIX path.

    Returns:
        None of a kind where the tests do nothing that can be written down, or have no expectation to turn around; none at all
        where no package of the task's language is found in the tree.

    Raises:
        SandboxError: the sandbox broke.
        StorageError: the solved tree cannot be written.
    """
    language = build_language(spec.language)
    limits = Limits(wall_s=spec.test_timeout_s, cpu_s=spec.test_timeout_s)
    runner = language.runner(sandbox, python, spec.python_path, limits)
    with solved_tree(repo, gold) as solved:
        try:
            checks = language.checks_of_solution(spec, repo, gold, solved, runner)
        except SourceError:
            return HeldOutChecks()
    while True:
        report = grade(replace(spec, hidden=checks), repo, dict(gold), sandbox=sandbox, python=python)
        if isinstance(report.reward, Unscored):
            raise SandboxError(f"task {spec.task_id} could not be graded: {report.reward.reason}")
        if not report.hidden_broken:
            sources = {path: content for path, content in gold.items() if language.is_source(path)}
            return replace(checks, profile=language.profile(sources, report.events))
        checks = without_broken(checks, report.hidden_broken)


def programs_of_solution(
    spec: TaskSpec, repo: Path, gold: Mapping[str, bytes], solved: Path, runner: CodeRunner
) -> HeldOutChecks:
    """Choose programs over what a solution in Python changes; see `Language.checks_of_solution`."""
    passing = frozenset({*spec.fail_to_pass, *spec.pass_to_pass})
    book = make_hidden_book(runner, solved, layout=_layout(spec, solved), passing=passing, seed=0)
    changed = _changed(repo, gold)
    told = find_told(book.programs, changed, runner=runner, repo=repo, solved=solved, gold=gold)
    checks = choose_proven(
        book,
        [*changed, *asked_of(told, book.programs, changed, solved)],
        frozenset(spec.fail_to_pass),
        runner=runner,
        gold=Tree(base=solved),
        task=Tree(base=repo),
        seed=spec.task_id,
    )
    return replace(with_told(checks, told, book.programs), untold=sum(not one.programs for one in told))


def _layout(spec: TaskSpec, solved: Path) -> RepositoryLayout:
    """Return a layout of the task's own tests only, and of sources that a submission may change. Raises SourceError."""
    layout = guess_layout(solved)
    tests = {test_id.partition("::")[0] for test_id in (*spec.fail_to_pass, *spec.pass_to_pass)}
    sources = tuple(path for path in layout.sources if is_editable(spec, path))
    return replace(layout, tests=tuple(sorted(tests)), sources=sources, python_path=spec.python_path)


def _changed(repo: Path, gold: Mapping[str, bytes]) -> list[Function]:
    """Return the functions that the solution adds or changes."""
    found: list[Function] = []
    for path, content in gold.items():
        if path.endswith(".py"):
            found += changed_functions(path, (repo / path).read_bytes() if (repo / path).is_file() else b"", content)
    return found
