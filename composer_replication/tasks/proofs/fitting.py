"""The environment that a project's tests run in, found by running them: little at first, and more as failures ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name

from composer_replication.sandbox import Tree
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.proofs.baseline import Baseline, UnhealthyError, measure_baseline
from composer_replication.tasks.proofs.leak import INSTALLED, copies_of
from composer_replication.tasks.sources.declared import Declared, declared_requirements, name_of
from composer_replication.tasks.sources.environment import make_environment
from composer_replication.tasks.sources.installed import bringing
from composer_replication.tasks.sources.layout import RepositoryLayout
from composer_replication.tasks.sources.source import PristineTree
from composer_replication.tasks.sources.wanted import TOOLS, asked_for, first_wanted, imported_modules
from composer_replication.types.errors import SourceError

_MOST_ENVIRONMENTS = 12
_OLDER = ("pytest<9", "pytest<8", "pytest<7")
"""Tried in turn where a project's tests do not run with the newest pytest that it allows."""
_SHARE_TO_ASK = 0.02
"""Tests of a healthy project that fail, as a share of all, above which another environment is tried for their sake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """An environment in which a project's tests pass."""

    runner: CodeRunner
    baseline: Baseline
    notes: tuple[str, ...]
    """What was left out of it, or taken though the project does not declare it, and why."""


def fit_environment(
    project: PristineTree,
    layout: RepositoryLayout,
    folder: Path,
    *,
    runner_of: Callable[[Path], CodeRunner],
    base: Path | None = None,
) -> Fitted:
    """Make an environment in `folder` in which the tests of a project run, and run them.

    The first one has what the project runs with, what its tests import and the pytest plugins that it declares for them. What
    failures ask for is added; what brings the project itself, or cannot be installed, is left out unless the project runs with
    it; and older releases of pytest are tried where nothing else helps.

    Args:
        runner_of: returns what runs tests with an interpreter.
        base: the interpreter to make environments with.

    Raises:
        SourceError: no environment was found; the reason is that of the last one.
        SandboxError: the sandbox broke.
    """
    search = _Search(project, layout, declared_requirements(project.tree, project.name))
    reason: SourceError | None = None
    for _ in range(_MOST_ENVIRONMENTS):
        try:
            runner = runner_of(search.environment(folder, base, runner_of))
            baseline = search.baseline(runner)
        except _AnotherError:
            continue
        except UnhealthyError as error:
            reason = error
            if not search.learn(error.lines, at_any_cost=True) and not search.older():
                raise
            continue
        if not search.learn_of(baseline):
            return Fitted(runner=runner, baseline=baseline, notes=tuple(search.notes))
    raise reason or SourceError(
        f"no environment was found for the tests in {_MOST_ENVIRONMENTS} attempts: {'; '.join(search.notes)}",
        fix="make one yourself, and name its interpreter with --python PATH",
    )


class _AnotherError(Exception):
    """This environment does not do, and another is worth a try."""


@dataclass(slots=True)
class _Search:
    project: PristineTree
    layout: RepositoryLayout
    declared: Declared
    wanted: dict[str, str] = field(default_factory=dict)
    """By canonical name: the requirements of the next environment."""
    refused: set[str] = field(default_factory=set)
    """Names that were left out, and are not taken again."""
    notes: list[str] = field(default_factory=list)
    _pytests: list[str] = field(default_factory=lambda: list(_OLDER))
    _own: frozenset[str] = frozenset()
    """Names that modules of the tree may have."""

    def __post_init__(self) -> None:
        paths = [path for path in tree_files(self.project.tree) if path.endswith(".py")]
        self._own = frozenset(part.removesuffix(".py") for path in paths for part in path.split("/"))
        tests = self._tests_among(set(paths).difference(self.layout.sources))
        self.wanted = first_wanted(self.declared, imported_modules(self.project.tree, tests) - self._own)

    def environment(self, folder: Path, base: Path | None, runner_of: Callable[[Path], CodeRunner]) -> Path:
        """Make the environment of what is wanted now, and see to it that the project is not in it.

        Raises:
            _AnotherError: something was left out, and another environment may do.
            SourceError: it cannot be made, or what the project runs with brings the project itself.
        """
        box = runner_of(Path("/")).sandbox
        project = self.project
        try:
            python = make_environment(folder, project.tree, project.name, self.wanted.values(), sandbox=box, base=base)
        except SourceError as error:
            optional = self._optional()
            named = {name for name in optional if _names(error.message, name)}
            plugins = {name for name in optional if name.startswith("pytest-")}
            self._leave_out(named or plugins or optional, f"cannot be installed ({error.message})", error)
            raise _AnotherError from error
        if copy := next(iter(copies_of(INSTALLED, box, python, project.tree, self.layout.imports).items()), None):
            bring = bringing(folder, project.name)
            what = (
                "pytest"
                if bring & set(TOOLS)
                else ", ".join(sorted(bring & self.wanted.keys() - self._optional())) or "something"
            )
            itself = SourceError(
                f"{what} in the environment for the tests needs {project.name} itself, so a copy of {copy[0]} is installed "
                f"({copy[1]}), which would give the answers away",
                fix="it cannot be built from with an environment of its own tests; take another project",
            )
            self._leave_out(self._optional() & bring, f"needs {project.name} itself", itself)
            raise _AnotherError
        return python

    def baseline(self, runner: CodeRunner) -> Baseline:
        """Run the tests, if all their files can be imported, or nothing more is known that would help.

        Raises:
            _AnotherError: more is wanted.
            SourceError, UnhealthyError: as `measure_baseline`.
        """
        collected = runner.run(Tree(base=self.project.tree), (), ("--collect-only", *self.layout.tests))
        if self.learn(collected.collect_errors, at_any_cost=False):
            raise _AnotherError
        return measure_baseline(runner, self.project.tree, layout=self.layout, installed=True)

    def learn_of(self, baseline: Baseline) -> bool:
        """Want what the failures of a healthy project ask for, if they are many; return whether anything is new."""
        many = len(baseline.failing) > _SHARE_TO_ASK * len(baseline.passing)
        return many and self.learn(baseline.failing, at_any_cost=False)

    def learn(self, lines: Iterable[str], *, at_any_cost: bool) -> bool:
        """Want what failures ask for; return whether anything of it is new.

        Args:
            at_any_cost: take also what the project does not declare, under the name that the failures give it.
        """
        asked = asked_for(lines, self.declared, self._own)
        known = {name_of(line) for line in self.declared.every}
        new = {
            name: line
            for name, line in asked.items()
            if name not in self.wanted and name not in self.refused and (at_any_cost or name in known)
        }
        new.pop(canonicalize_name(self.project.name), None)
        self.wanted |= new
        self.notes += [
            f"{name} was installed, which the tests ask for and the project does not declare" for name in new.keys() - known
        ]
        return bool(new)

    def older(self) -> bool:
        """Want an older pytest; return False when none is left."""
        if not self._pytests:
            return False
        self.wanted["pytest"] = self._pytests.pop(0)
        self.notes = [note for note in self.notes if not note.startswith("pytest<")]
        self.notes.append(f"{self.wanted['pytest']} was installed: the tests do not run with newer ones")
        return True

    def _optional(self) -> set[str]:
        """Return the names that an environment can do without."""
        return self.wanted.keys() - {name_of(line) for line in self.declared.runtime} - set(TOOLS)

    def _leave_out(self, names: Iterable[str], why: str, otherwise: SourceError) -> None:
        """Leave names out of the next environment. Raises `otherwise` where there are none."""
        left = sorted(names)
        if not left:
            raise otherwise
        for name in left:
            self.refused.add(name)
            del self.wanted[name]
            self.notes.append(f"{name} was left out of the environment: it {why}")

    def _tests_among(self, paths: Iterable[str]) -> list[str]:
        """Return the files that pytest reads: those of the tests, and every conftest."""
        tests = self.layout.tests
        return [p for p in paths if p.rpartition("/")[2] == "conftest.py" or any(p == t or p.startswith(f"{t}/") for t in tests)]


def _names(message: str, name: str) -> bool:
    words = {canonicalize_name(word) for word in message.replace("=", " ").replace("<", " ").replace(">", " ").split()}
    return name in {word.strip(".,:;()'\"") for word in words}
