"""The environment that a project's tests run in, found by running them: little at first, and more as failures ask for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name

from composer_replication.languages.layout import RepositoryLayout
from composer_replication.sandbox import Tree
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.proofs.baseline import Baseline, UnhealthyError, measure_baseline
from composer_replication.tasks.proofs.leak import INSTALLED, copies_of
from composer_replication.tasks.sources.declared import Declared, declared_requirements, name_of, names_in
from composer_replication.tasks.sources.environment import make_environment
from composer_replication.tasks.sources.installed import bringing
from composer_replication.tasks.sources.source import PristineTree
from composer_replication.tasks.sources.wanted import TOOLS, asked_for, first_wanted, imported_modules
from composer_replication.types.errors import SourceError

_MOST_ENVIRONMENTS = 12
_OLDER = ("pytest<9", "pytest<8", "pytest<7")
"""Tried in turn where a project's tests do not run with the newest pytest that it allows."""
_OF_PYTEST = re.compile(r"pytest|pluggy|fixture|conftest|\bnose\b|stopped before the first")
"""Words of failures that another pytest may mend."""
_SHARE_TO_ASK = 0.02
"""Tests of a healthy project that fail, as a share of all, above which another environment is tried for their sake."""
_CONFLICT = re.compile(r"conflicting dependencies|ResolutionImpossible|Cannot install")
_NAMING = re.compile(r"(?:No matching distribution found for|satisfies the requirement|Cannot install|^)\s*(?P<names>[^(\n]*)")
"""Where pip, or the building of a wheel, says which requirement is the matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """An environment in which a project's tests pass."""

    runner: CodeRunner
    baseline: Baseline
    notes: tuple[str, ...]
    """One sentence for each distribution that was left out, or installed though the project does not declare it."""


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
    it; and older releases of pytest are tried where nothing else helps. Of those in which the tests run, the one with the most
    passing tests is taken.

    Args:
        runner_of: returns what runs tests with an interpreter.
        base: the interpreter to make environments with.

    Raises:
        SourceError: no environment was found; the reason is that of the last one with a pytest that nothing asked to be older.
        SandboxError: the sandbox broke.
    """
    search = _Search(project, layout, declared_requirements(project.tree, project.name), folder, base, runner_of)
    best: tuple[dict[str, tuple[str, ...]], Baseline, tuple[str, ...]] | None = None
    reason: UnhealthyError | None = None
    for _ in range(_MOST_ENVIRONMENTS):
        try:
            runner = runner_of(search.environment())
            baseline = search.baseline(runner)
        except _AnotherError:
            continue
        except SourceError as error:
            if best is not None:
                break
            if not isinstance(error, UnhealthyError):
                raise reason or error from None
            if reason is None or not search.is_older:
                reason = error
            if not search.learn(error.lines, at_any_cost=True) and not (_about_pytest(error) and search.older()):
                raise reason from None
            continue
        if best is not None and len(baseline.passing) < len(best[1].passing):
            break
        best = dict(search.wanted), baseline, tuple(search.notes)
        if not search.learn_of(baseline):
            return Fitted(runner=runner, baseline=baseline, notes=best[2])
    if best is None:
        raise reason or SourceError(
            f"no environment was found for the tests in {_MOST_ENVIRONMENTS} attempts: {'; '.join(search.notes)}",
            fix="make one yourself, and name its interpreter with --python PATH",
        )
    search.wanted = best[0]
    return Fitted(runner=runner_of(search.environment()), baseline=best[1], notes=best[2])


def _about_pytest(error: UnhealthyError) -> bool:
    """Return whether another pytest may mend what failed, by what it says."""
    return any(_OF_PYTEST.search(line) for line in (error.message, *error.lines))


class _AnotherError(Exception):
    """This environment does not do, and another is worth a try."""


@dataclass(slots=True)
class _Search:
    project: PristineTree
    layout: RepositoryLayout
    declared: Declared
    folder: Path
    base: Path | None
    runner_of: Callable[[Path], CodeRunner]
    wanted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By canonical name: the requirements of the next environment."""
    refused: set[str] = field(default_factory=set)
    """Names that were left out, and are not taken again."""
    notes: list[str] = field(default_factory=list)
    _pytests: list[str] = field(default_factory=lambda: list(_OLDER))
    _own: frozenset[str] = frozenset()
    """Modules that the tests import from the tree."""
    _tried_again: bool = False

    def __post_init__(self) -> None:
        self.wanted, self._own = _first_of(self.project, self.layout, self.declared)

    def environment(self) -> Path:
        """Make the environment of what is wanted now, and see to it that the project is not in it.

        Raises:
            _AnotherError: something was left out, and another environment may do.
            SourceError: it cannot be made, or what the project runs with brings the project itself.
        """
        project, box = self.project, self.runner_of(Path("/")).sandbox
        lines = [line for lines in self.wanted.values() for line in lines]
        try:
            python = make_environment(self.folder, project.tree, project.name, lines, sandbox=box, base=self.base)
        except SourceError as error:
            self._without_culprits(error)
            raise _AnotherError from error
        if copy := next(iter(copies_of(INSTALLED, box, python, project.tree, self.layout.imports).items()), None):
            bring = bringing(self.folder, project.name)
            needing = sorted(bring & self.wanted.keys() - self._optional())
            what = "pytest" if bring & set(TOOLS) else ", ".join(needing) or "something"
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
        known = names_in(self.declared.every)
        new = {
            name: lines
            for name, lines in asked_for(lines, self.declared, self._own).items()
            if name not in self.wanted and name not in self.refused and (at_any_cost or name in known)
        }
        new.pop(canonicalize_name(self.project.name), None)
        self.wanted |= new
        self.notes += [
            f"{name} was installed, which the tests ask for and the project does not declare"
            for name in new.keys() - known.keys()
        ]
        return bool(new)

    @property
    def is_older(self) -> bool:
        """True when an older pytest is wanted than the project asks for."""
        return len(self._pytests) < len(_OLDER)

    def older(self) -> bool:
        """Want an older pytest; return False when none is left."""
        if not self._pytests:
            return False
        older = self._pytests.pop(0)
        self.wanted["pytest"] = (older,)
        self.notes = [note for note in self.notes if not note.startswith("pytest<")]
        self.notes.append(f"{older} was installed: the tests do not run with newer releases")
        return True

    def _without_culprits(self, error: SourceError) -> None:
        """Want less, or the same once more, after an environment could not be made. Raises `error` where the reason is something
        that the project runs with, or nothing can be left out."""
        optional, named = self._optional(), _named(error.message, self.wanted)
        if named and _CONFLICT.search(error.message):
            pinned = {name for name in named & {*optional, *TOOLS} if self.wanted[name] != (name,)}
            if pinned:
                self.wanted |= {name: (name,) for name in pinned}
                self.notes += [
                    f"{name} was installed in another version than declared: pip found none" for name in sorted(pinned)
                ]
                return
        elif named - optional:
            raise error
        if not named and not self._tried_again:
            self._tried_again = True  # an index may not answer for a moment
            return
        plugins = {name for name in optional if name.startswith("pytest-")}
        self._leave_out(named & optional or plugins or optional, f"cannot be installed ({error.message})", error)

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


def wanted_at_first(project: PristineTree, layout: RepositoryLayout) -> tuple[str, ...]:
    """Return the requirements of the environment that the search for a project's begins with, sorted."""
    wanted, _ = _first_of(project, layout, declared_requirements(project.tree, project.name))
    return tuple(sorted(line for lines in wanted.values() for line in lines))


def _first_of(
    project: PristineTree, layout: RepositoryLayout, declared: Declared
) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
    """Return a first environment's requirements by name, and the modules that the tests import from the tree."""
    paths = [path for path in tree_files(project.tree) if path.endswith(".py")]
    tests = _tests_among(set(paths).difference(layout.sources), layout)
    own = _importable(paths, {*layout.python_path, *(path.rpartition("/")[0] or "." for path in tests)})
    return first_wanted(declared, imported_modules(project.tree, tests) - own), own


def _tests_among(paths: Iterable[str], layout: RepositoryLayout) -> list[str]:
    """Return the files that pytest reads: those of the tests, and every conftest."""
    tests = layout.tests
    return [p for p in paths if p.rpartition("/")[2] == "conftest.py" or any(p == t or p.startswith(f"{t}/") for t in tests)]


def _importable(paths: Iterable[str], folders: Iterable[str]) -> frozenset[str]:
    """Return the top-level modules that files give to an interpreter with these folders, and the root, on its path."""
    prefixes = {"" if folder == "." else f"{folder}/" for folder in (".", *folders)}
    inside = (path.removeprefix(prefix) for path in paths for prefix in prefixes if path.startswith(prefix))
    return frozenset(path.partition("/")[0].removesuffix(".py") for path in inside)


def _named(message: str, wanted: Mapping[str, object]) -> set[str]:
    """Return which of the wanted names pip, or the building of a wheel, gives as the reason."""
    words = {word.strip(".,:;()'\"") for match in _NAMING.finditer(message) for word in match["names"].split()}
    return {name for word in words if (name := _canonical(word)) in wanted}


def _canonical(word: str) -> str:
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", word)
    return canonicalize_name(match[0].rstrip(".-_")) if match else ""
