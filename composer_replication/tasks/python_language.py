"""Python, as the builder of tasks knows it, beside what grading knows (`sandbox.grading.python_grading`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

from composer_replication.languages.functions import Function, Skipped
from composer_replication.languages.layout import RepositoryLayout, below
from composer_replication.languages.python.delete import delete_bodies
from composer_replication.languages.python.functions import find_functions
from composer_replication.languages.python.mutate import mutants_of
from composer_replication.languages.python.outline import outline
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.python_grading import PythonGrading
from composer_replication.sandbox.protocol import Sandbox, Tree
from composer_replication.tasks.held_out.book import HIDDEN_BOOK, HiddenBook, make_hidden_book
from composer_replication.tasks.held_out.choice import choose_proven, joint_weakness
from composer_replication.tasks.held_out.solution_checks import programs_of_solution
from composer_replication.tasks.proofs.bytecode import compile_tree
from composer_replication.tasks.proofs.copies import find_copies
from composer_replication.tasks.sources.layout import guess_layout
from composer_replication.types import TaskSpec
from composer_replication.types.held_out_checks import HeldOutChecks


class Python(PythonGrading):
    """See `languages.protocol.Language`."""

    modes = ("stub", "delete", "feature", "commits")
    extras = ("mutants", "impossible")
    requirements = None
    system_requirements = ()
    libraries = ()

    def holds(self, paths: Sequence[str]) -> bool:
        """Return whether there is any Python file."""
        return any(path.endswith(".py") for path in paths)

    def built_files(self, files: Mapping[str, bytes]) -> Set[str]:
        """Return what lies in `build`, `dist` and `site`, where they are no packages."""
        return below(files, [name for name in ("build", "dist", "site") if f"{name}/__init__.py" not in files])

    def layout(self, tree: Path, packages: Sequence[str], tests: Sequence[str]) -> RepositoryLayout:
        """Guess packages and tests."""
        return guess_layout(tree, packages=packages, tests=tests)

    def prepare(self, python: Path, tree: Path, *, fetch: bool) -> tuple[str, ...]:
        """Do nothing: an environment is ready when it is installed."""
        del python, tree, fetch
        return ()

    def find_functions(self, path: str, source: bytes, keep_docstring: bool) -> tuple[list[Function], list[Skipped]]:
        """Find functions with `ast`."""
        return find_functions(path, source, keep_docstring=keep_docstring)

    def is_source(self, path: str) -> bool:
        """Return whether a file is a module."""
        return path.endswith(".py")

    def without(
        self, files: Mapping[str, bytes], functions: Sequence[Function], mode: str, python_path: Sequence[str]
    ) -> Mapping[str, bytes]:
        """Delete bodies in the mode `stub`, else functions with their imports."""
        if mode == "stub":
            paths = dict.fromkeys(function.path for function in functions)
            return {path: delete_bodies(files[path], [f for f in functions if f.path == path]) for path in paths}
        from composer_replication.languages.python.remove import remove_functions

        return remove_functions(files, functions, python_path)

    def removes(self, mode: str) -> bool:
        """Return whether more than bodies is deleted."""
        return mode != "stub"

    def broken_without(self, errors: Sequence[str]) -> str:
        """Return nothing: a file that cannot be imported fails its tests, and the others run."""
        del errors
        return ""

    def outline(self, source: bytes, qualname: str) -> tuple[str, str]:
        """Return signature and docstring."""
        return outline(source, qualname)

    def mutants(self, source: bytes, functions: Sequence[Function], most: int, seed: str) -> list[bytes]:
        """Change operators, constants and conditions."""
        return mutants_of(source, functions, most, seed)

    def compiled(self, runner: CodeRunner, tree: Path, folder: Path, layout: RepositoryLayout) -> Path:
        """Add the bytecode of the modules."""
        return compile_tree(runner, tree, folder, layout=layout)

    def find_copies(self, sandbox: Sandbox, python: Path, sources: Mapping[str, bytes], keys: Sequence[str]) -> Mapping[str, str]:
        """Search every Python file and its bytecode."""
        return find_copies(sandbox, python, sources, keys)

    def make_book(self, runner: CodeRunner, tree: Path, layout: RepositoryLayout, passing: Set[str], seed: int) -> HiddenBook:
        """Record the steps of the tests."""
        return make_hidden_book(runner, tree, layout=layout, passing=frozenset(passing), seed=seed)

    def book_to_json(self, book: HiddenBook) -> Any:
        """Return plain data."""
        return _dump_book(book)

    def book_from_json(self, data: Any) -> HiddenBook:
        """Invert `book_to_json`."""
        return HIDDEN_BOOK.validate_python(data)

    def weakness_ahead(self, book: Any, functions: Sequence[Function], seed: str) -> str:
        """Return nothing: programs are chosen by what they tell apart, which has to be run."""
        del book, functions, seed
        return ""

    def choose_checks(
        self,
        book: HiddenBook,
        functions: Sequence[Function],
        failing: Set[str],
        *,
        runner: CodeRunner,
        gold: Tree,
        task: Tree,
        seed: str,
    ) -> HeldOutChecks:
        """Choose programs that kill every mutant."""
        return choose_proven(book, functions, failing, runner=runner, gold=gold, task=task, seed=seed)

    def checks_of_solution(
        self, spec: TaskSpec, repo: Path, gold: Mapping[str, bytes], solved: Path, runner: CodeRunner
    ) -> HeldOutChecks:
        """Choose programs over what the solution changes."""
        return programs_of_solution(spec, repo, gold, solved, runner)

    def joint_weakness(self, checks: HeldOutChecks, functions: Sequence[Function], runner: CodeRunner, gold: Tree) -> str:
        """Try the mutants of all functions together."""
        return joint_weakness(checks.programs, functions, runner, gold)


_dump_book = partial(HIDDEN_BOOK.dump_python, mode="json")
PYTHON = Python()
