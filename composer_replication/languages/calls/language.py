"""What languages share whose evidence is held-out calls, and whose tasks keep signatures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from composer_replication.languages.calls.book import BOOK, CallBook, choose_calls, read_program, with_wrong_answers_only
from composer_replication.languages.calls.call import FunctionCall
from composer_replication.languages.functions import Function, Skipped, files_with_stubs
from composer_replication.languages.layout import RepositoryLayout
from composer_replication.languages.tripwire import alarms_of
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Ending, Installation, Limits, Sandbox, Tree
from composer_replication.types import TaskSpec
from composer_replication.types.held_out_checks import GoldProfile, HeldOutChecks, HeldOutProgram

PARSING = ("pydantic", "tree-sitter")
"""Packages that every such language reads sources and calls with, beside its grammar."""


class LanguageWithCalls(ABC):
    """The part of `languages.protocol.Language` that follows from held-out calls."""

    modes = ("stub",)
    extras = ()
    tests_in_sources = False
    system_requirements: tuple[str, ...] = ()
    runner_type: type[CodeRunner]
    """The class of what runs tests."""
    stub: str
    """The body of a deleted function."""
    kinds: Mapping[str, str] = {}
    """Name of what is worth a look in its code -> what the code does with it (`languages.tripwire`)."""

    @abstractmethod
    def is_source(self, path: str) -> bool:
        """Return whether a file of this path is code of this language."""

    @abstractmethod
    def layout(self, tree: Path, packages: Sequence[str], tests: Sequence[str]) -> RepositoryLayout:
        """See `Language.layout`."""

    @abstractmethod
    def find_functions(self, path: str, source: bytes, keep_docstring: bool) -> tuple[list[Function], list[Skipped]]:
        """See `Language.find_functions`."""

    @abstractmethod
    def make_book(self, runner: CodeRunner, tree: Path, layout: RepositoryLayout, passing: Set[str], seed: int) -> CallBook:
        """See `Language.make_book`."""

    @abstractmethod
    def telling(self, sources: Mapping[str, bytes]) -> set[str]:
        """Return the names of `kinds` in sources, and whether a file cannot be read."""

    @staticmethod
    @abstractmethod
    def is_call(call: FunctionCall) -> bool:
        """Return whether the language can make a call that anybody may have written down; it may raise what reading data of
        another shape raises."""

    @abstractmethod
    def wrong_programs(self, runner: CodeRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
        """See `GradedLanguage.wrong_programs`."""

    def check_programs(self, programs: Sequence[HeldOutProgram]) -> None:
        """Read each as a held-out call. Raises TaskError."""
        for program in programs:
            read_program(program, self.is_call)

    def runner(self, sandbox: Sandbox, python: Path, python_path: Sequence[str], limits: Limits) -> CodeRunner:
        """Return what runs the tests."""
        return self.runner_type(sandbox=sandbox, python=python, python_path=python_path, limits=limits)

    def built_files(self, files: Mapping[str, bytes]) -> Set[str]:
        """Return none: what is built lies elsewhere."""
        del files
        return frozenset()

    def without(
        self, files: Mapping[str, bytes], functions: Sequence[Function], mode: str, python_path: Sequence[str]
    ) -> Mapping[str, bytes]:
        """Delete bodies."""
        del mode, python_path
        return files_with_stubs(files, functions, self.stub)

    def broken_without(self, errors: Sequence[str]) -> str:
        """Return that the code does not compile, where tests could not be built."""
        return f"the code does not compile without it: {errors[0].partition(': ')[2]}" if errors else ""

    def refuse_environment(self, task: TaskSpec, python: Path, installed: Installation) -> None:
        """Do nothing: copies of the code are searched for when a task is built."""
        del task, python, installed

    def profile(self, sources: Mapping[str, bytes], events: Sequence[str]) -> GoldProfile:
        """Return what of the gold code is worth a look."""
        return GoldProfile(names=tuple(sorted(self.telling(sources))), events=tuple(events))

    def alarms(
        self, task: TaskSpec, pristine: Path, changes: Mapping[str, bytes | None], events: Iterable[str], *, runs: bool
    ) -> tuple[str, ...]:
        """Return an alarm for what the rest of the task's code does not have."""
        del events, runs
        return alarms_of(task, pristine, changes, is_source=self.is_source, telling_in=self.telling, kinds=self.kinds)

    def removes(self, mode: str) -> bool:
        """Return that signatures stay: other code names them."""
        del mode
        return False

    def mutants(self, source: bytes, functions: Sequence[Function], most: int, seed: str) -> list[bytes]:
        """Return none: held-out calls are what tells wrong work."""
        del source, functions, most, seed
        return []

    def compiled(self, runner: CodeRunner, tree: Path, folder: Path, layout: RepositoryLayout) -> Path:
        """Return the tree itself: what is compiled of it would give its functions away."""
        del runner, folder, layout
        return tree

    def book_to_json(self, book: CallBook) -> Any:
        """Return plain data."""
        return BOOK.dump_python(book, mode="json")

    def book_from_json(self, data: Any) -> CallBook:
        """Invert `book_to_json`."""
        return BOOK.validate_python(data)

    def weakness_ahead(self, book: CallBook, functions: Sequence[Function], seed: str) -> str:
        """Return what is wrong with the calls, which are chosen without running anything."""
        return choose_calls(book, functions, seed).weakness

    def choose_checks(
        self,
        book: CallBook,
        functions: Sequence[Function],
        failing: Set[str],
        *,
        runner: CodeRunner,
        gold: Tree,
        task: Tree,
        seed: str,
    ) -> HeldOutChecks:
        """Choose held-out calls that no trivial body answers and the task's own tree does not."""
        del failing, gold
        checks = choose_calls(book, functions, seed)
        return with_wrong_answers_only(checks, lambda programs: self.wrong_programs(runner, task, programs)[0])

    def checks_of_solution(
        self, spec: TaskSpec, repo: Path, gold: Mapping[str, bytes], solved: Path, runner: CodeRunner
    ) -> HeldOutChecks:
        """Choose held-out calls of the functions that the task names."""
        named = {(deletion.path, deletion.qualname) for deletion in spec.deleted}
        found = [function for path, source in gold.items() for function in self.find_functions(path, source, True)[0]]
        passing = frozenset({*spec.fail_to_pass, *spec.pass_to_pass})
        return self.choose_checks(
            self.make_book(runner, solved, self.layout(solved, (), ()), passing, 0),
            [function for function in found if (function.path, function.qualname) in named],
            frozenset(spec.fail_to_pass),
            runner=runner,
            gold=Tree(base=solved),
            task=Tree(base=repo),
            seed=spec.task_id,
        )

    def joint_weakness(self, checks: HeldOutChecks, functions: Sequence[Function], runner: CodeRunner, gold: Tree) -> str:
        """Return nothing: each function has calls of its own."""
        del checks, functions, runner, gold
        return ""
