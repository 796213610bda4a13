"""What building tasks asks of a language, beside what grading asks (`sandbox.grading.languages`).

To add one: write an object with these methods, name it in an entry point of the group `composer_replication.languages`, and run
`tests/languages/contract.py` over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Protocol

from composer_replication.languages.functions import Function, Skipped
from composer_replication.languages.layout import RepositoryLayout
from composer_replication.sandbox.grading.languages import GradedLanguage
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Sandbox, Tree
from composer_replication.types import TaskSpec
from composer_replication.types.held_out_checks import HeldOutChecks


class Language(GradedLanguage, Protocol):
    """A language that tasks can be built in."""

    @property
    def modes(self) -> tuple[str, ...]:
        """The ways of deletion that it has, of `DeletionMode`."""
        ...

    @property
    def extras(self) -> tuple[str, ...]:
        """Names of the options of a build that not every language has, and this one has: `mutants`, `impossible`."""
        ...

    @property
    def requirements(self) -> tuple[str, ...] | None:
        """Python packages that bring its tools, for an environment of its own; None where the project's tests decide."""
        ...

    @property
    def system_requirements(self) -> tuple[str, ...]:
        """Packages of Debian that an image needs, beside `requirements`."""
        ...

    @property
    def libraries(self) -> tuple[str, ...]:
        """Python packages that this object itself imports: `prepare` and grading need them."""
        ...

    def holds(self, paths: Sequence[str]) -> bool:
        """Return whether files of these paths are a project of this language."""
        ...

    def built_files(self, files: Mapping[str, bytes]) -> Set[str]:
        """Return the paths of those of a project's files that builds write: copies of its code."""
        ...

    def layout(self, tree: Path, packages: Sequence[str], tests: Sequence[str]) -> RepositoryLayout:
        """Find packages and tests below `tree`; what is given is taken as it is.

        Raises:
            NoTestsError: there are no tests.
            SourceError: there are no packages, or a path that was given is not there.
        """
        ...

    def prepare(self, python: Path, tree: Path, *, fetch: bool) -> tuple[str, ...]:
        """Make ready what every run of the tests needs, in the environment of `python`; return notes for people on what it lacks.

        Args:
            fetch: ask the network for what the project requires.

        Raises:
            SourceError: something cannot be had.
        """
        ...

    def find_functions(self, path: str, source: bytes, keep_docstring: bool) -> tuple[list[Function], list[Skipped]]:
        """Find the deletable functions of one file in order, and what was skipped and why."""
        ...

    def is_source(self, path: str) -> bool:
        """Return whether a file of this path is code of this language."""
        ...

    def without(
        self, files: Mapping[str, bytes], functions: Sequence[Function], mode: str, python_path: Sequence[str]
    ) -> Mapping[str, bytes]:
        """Return the files that change when `functions` are deleted. Raises SyntaxError for one that cannot be changed."""
        ...

    def removes(self, mode: str) -> bool:
        """Return whether a mode removes functions whole, not only their bodies."""
        ...

    def broken_without(self, errors: Sequence[str]) -> str:
        """Return why a deletion is no task, where test files could not be built or imported without it; empty where that is one.

        Args:
            errors: `TestRun.collect_errors`.
        """
        ...

    def outline(self, source: bytes, qualname: str) -> tuple[str, str]:
        """Return a function's signature in one line, and what its documentation says (empty where there is none)."""
        ...

    def mutants(self, source: bytes, functions: Sequence[Function], most: int, seed: str) -> list[bytes]:
        """Return wrong versions of a source file, at most `most`."""
        ...

    def compiled(self, runner: CodeRunner, tree: Path, folder: Path, layout: RepositoryLayout) -> Path:
        """Return a tree like `tree` on which the tests run faster, below `folder` or `tree` itself."""
        ...

    def find_copies(self, sandbox: Sandbox, python: Path, sources: Mapping[str, bytes], keys: Sequence[str]) -> Mapping[str, str]:
        """Return where a sandbox can read functions of `sources` outside of the tree, by their keys. Raises SandboxError."""
        ...

    def make_book(self, runner: CodeRunner, tree: Path, layout: RepositoryLayout, passing: Set[str], seed: int) -> Any:
        """Return all held-out checks of a project, made once; `notes` says what is missing of them. Raises SandboxError."""
        ...

    def book_to_json(self, book: Any) -> Any:
        """Return a book as plain data."""
        ...

    def book_from_json(self, data: Any) -> Any:
        """Invert `book_to_json`. Raises ValueError on data of another shape."""
        ...

    def weakness_ahead(self, book: Any, functions: Sequence[Function], seed: str) -> str:
        """Return why a task that deletes `functions` has no evidence, where the book alone tells; empty where it may have."""
        ...

    def choose_checks(
        self,
        book: Any,
        functions: Sequence[Function],
        failing: Set[str],
        *,
        runner: CodeRunner,
        gold: Tree,
        task: Tree,
        seed: str,
    ) -> HeldOutChecks:
        """Choose the checks of a task that deletes `functions`; its programs fail on `task`, or there is a weakness.

        Args:
            failing: its fail-to-pass tests.
            gold: the tree with the functions.

        Raises:
            SandboxError: the sandbox broke.
        """
        ...

    def checks_of_solution(
        self, spec: TaskSpec, repo: Path, gold: Mapping[str, bytes], solved: Path, runner: CodeRunner
    ) -> HeldOutChecks:
        """Choose the checks of a task that came with a solution instead of being deleted here.

        Args:
            repo: its tree.
            gold: the solution, by path.
            solved: the tree with the solution.

        Raises:
            SourceError: the tree has no package of this language.
            SandboxError: the sandbox broke.
        """
        ...

    def joint_weakness(self, checks: HeldOutChecks, functions: Sequence[Function], runner: CodeRunner, gold: Tree) -> str:
        """Return why the programs of several tasks are no evidence for all their functions together; empty where they are."""
        ...
