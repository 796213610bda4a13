"""The environment that the tests of a commit run in: that of a newer commit while they pass there, or else another."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from composer_replication.languages.layout import RepositoryLayout
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.tasks.files import restored, storage_errors, write_whole
from composer_replication.tasks.proofs.baseline import Baseline, UnhealthyError, measure_baseline
from composer_replication.tasks.proofs.fitting import fit_environment, wanted_at_first
from composer_replication.tasks.proofs.leak import refuse_copies
from composer_replication.tasks.proofs.proof import NoTaskError
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.sources.environment import made_for, make_environment
from composer_replication.tasks.sources.source import PristineTree
from composer_replication.types.errors import SourceError

_FILE, _FOLDER = "environments.json", ".venvs"
_MOST = 4
"""Environments that are tried beside the build's own: each costs a search."""
_UNHEALTHY = "most of its tests fail in the environments there are"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedEnvironment:
    """One that was looked for because the tests of a commit failed in the newer ones."""

    number: int
    """Of the commit (`HistoryCommit.number`): it serves this one and older ones."""
    first: tuple[str, ...]
    """The requirements that the search began with."""
    requirements: tuple[str, ...] = ()
    """What it holds; none where none was found."""
    why: str = ""
    """Why none was found."""


class CommitEnvironments:
    """Finds the interpreter of each commit. What was found is kept, so that a build that goes on finds the same.

    With `install`, commits have to be asked about one after the other, newest first; some may be asked about again.

    Args:
        out: the build's folder, which gets the environments.
        runner: of the newest commit's tests.
        newest: the newest commit's tree.

    Raises:
        TaskError: the build's state is another release's.
    """

    def __init__(
        self, out: Path, state: Path, runner: CodeRunner, options: BuildOptions, newest: PristineTree, layout: RepositoryLayout
    ) -> None:
        self._out, self._file, self._runner, self._options = out, state / _FILE, runner, options
        self._first = wanted_at_first(newest, layout) if options.install else ()
        self._tried: list[TriedEnvironment] = restored(self._file, _read) or []
        self._checked: set[tuple[Path, tuple[str, ...]]] = set()

    @property
    def newest(self) -> CodeRunner:
        """What runs the tests of the newest commit."""
        return self._runner

    def runner_at(self, number: int, project: PristineTree, layout: RepositoryLayout) -> CodeRunner:
        """Return what runs the tests of a commit, as far as is known before they have run.

        Raises:
            SourceError: an environment that is gone cannot be made again, or has a copy of the project.
            SandboxError: the sandbox broke.
        """
        fitting = [place for place, tried in enumerate(self._tried) if tried.number <= number and tried.requirements]
        python = self._made(fitting[-1], project) if fitting else self._runner.python
        runner = replace(self._runner, python=python, python_path=layout.python_path)
        if (python, layout.imports) not in self._checked:
            refuse_copies(runner.sandbox, python, project.tree, layout.imports, installed=self._options.install)
            self._checked.add((python, layout.imports))
        return runner

    def measure(self, number: int, project: PristineTree, layout: RepositoryLayout) -> tuple[CodeRunner, Baseline]:
        """Run the tests of a commit, and look for another environment where most of them fail.

        Args:
            number: of the commit.

        Raises:
            NoTaskError: there is none.
            SourceError: the tests hang, are absent, or run none of the package's lines.
            SandboxError: the sandbox broke.
            StorageError: an environment cannot be written.
        """
        runner = self.runner_at(number, project, layout)
        try:
            return runner, measure_baseline(runner, project.tree, layout=layout, installed=self._options.install)
        except UnhealthyError as error:
            return self._another(number, project, layout, error)

    def name_of(self, python: Path) -> str:
        """Return the interpreter of an environment as a verdict names it; empty for the build's own."""
        if python == self._runner.python:
            return ""
        return python.relative_to(self._out.absolute()).as_posix()

    def _another(
        self, number: int, project: PristineTree, layout: RepositoryLayout, error: UnhealthyError
    ) -> tuple[CodeRunner, Baseline]:
        """Look for an environment for a commit, unless that was done for the same requirements or too often."""
        known = [tried for tried in self._tried if tried.number <= number]
        first = wanted_at_first(project, layout) if self._options.install else ()
        same = next((tried for tried in known if tried.first == first), None)
        if not self._options.install or first == self._first or same is not None or len(known) >= _MOST:
            raise NoTaskError(_UNHEALTHY, same.why if same and same.why else error.message) from error
        folder = self._folder(len(self._tried))
        try:
            with storage_errors(folder):
                folder.parent.mkdir(exist_ok=True)
                fitted = fit_environment(project, layout, folder, runner_of=self._runner_of(layout), base=self._options.python)
            refuse_copies(fitted.runner.sandbox, fitted.runner.python, project.tree, layout.imports, installed=True)
        except SourceError as reason:
            self._remember(TriedEnvironment(number=number, first=first, why=reason.message))
            raise NoTaskError(_UNHEALTHY, reason.message) from reason
        self._remember(TriedEnvironment(number=number, first=first, requirements=tuple(made_for(folder))))
        return fitted.runner, fitted.baseline

    def _runner_of(self, layout: RepositoryLayout) -> Callable[[Path], CodeRunner]:
        return lambda python: replace(self._runner, python=python, python_path=layout.python_path)

    def _made(self, place: int, project: PristineTree) -> Path:
        """Return the interpreter of an environment, which is made again where it is gone."""
        lines, folder = self._tried[place].requirements, self._folder(place)
        with storage_errors(folder):
            folder.parent.mkdir(exist_ok=True)
            sandbox, base = self._runner.sandbox, self._options.python
            return make_environment(folder, project.tree, project.name, lines, sandbox=sandbox, base=base)

    def _folder(self, place: int) -> Path:
        return self._out.absolute() / _FOLDER / str(place + 2)  # the build's own is the first

    def _remember(self, tried: TriedEnvironment) -> None:
        self._tried.append(tried)
        write_whole(self._file, json.dumps([asdict(one) for one in self._tried]).encode())


def _read(found: list[dict[str, Any]]) -> list[TriedEnvironment]:
    """Read what was tried. Raises KeyError or TypeError on a record of another shape."""
    return [
        TriedEnvironment(
            number=int(one["number"]), first=tuple(one["first"]), requirements=tuple(one["requirements"]), why=str(one["why"])
        )
        for one in found
    ]
