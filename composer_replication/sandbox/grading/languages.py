"""The languages that tasks are written in, by name: what the grader asks of each.

A language is one object. Ours are here; others come with an entry point of the group `composer_replication.languages`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.python_grading import PythonGrading
from composer_replication.sandbox.protocol import Ending, Installation, Limits, Sandbox, Tree
from composer_replication.types import TaskSpec
from composer_replication.types.errors import TaskError
from composer_replication.types.held_out_checks import GoldProfile, HeldOutProgram

GROUP = "composer_replication.languages"
_OWN = {
    "go": "composer_replication.languages.go.language:GO",
    "java": "composer_replication.languages.java.language:JAVA",
    "javascript": "composer_replication.languages.javascript.language:JAVASCRIPT",
    "rust": "composer_replication.languages.rust.language:RUST",
}
_PYTHON = PythonGrading()


class GradedLanguage(Protocol):
    """What grading, and an agent's tools, ask of a task's language."""

    @property
    def name(self) -> str: ...

    @property
    def tests_in_sources(self) -> bool:
        """Return whether tests may lie in files that agents edit: its runner takes the tests of a tree's base, whatever changes
        say."""
        ...

    def runner(self, sandbox: Sandbox, python: Path, python_path: Sequence[str], limits: Limits) -> CodeRunner:
        """Return what runs the project's tests, each run in a fresh sandbox.

        Args:
            python: the interpreter of the environment that has what the tests need.
        """
        ...

    def refuse_environment(self, task: TaskSpec, python: Path, installed: Installation) -> None:
        """Refuse an environment in which the code under test can find the deleted code. Raises TaskError."""
        ...

    def wrong_programs(self, runner: CodeRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
        """Return the numbers of the programs whose answers are wrong, all of them when the sandbox ended early; and its ending.

        Raises SandboxError.
        """
        ...

    def check_programs(self, programs: Sequence[HeldOutProgram]) -> None:
        """Check that held-out programs, which may be anybody's, have the form that `wrong_programs` reads. Raises TaskError."""
        ...

    def profile(self, sources: Mapping[str, bytes], events: Sequence[str]) -> GoldProfile:
        """Return what the gold code needs of the things that `alarms` names: of the files that it changes, and the events of its
        graded run."""
        ...

    def alarms(
        self, task: TaskSpec, pristine: Path, changes: Mapping[str, bytes | None], events: Iterable[str], *, runs: bool
    ) -> tuple[str, ...]:
        """Return what a submission does beyond the gold code, one sentence for each kind of thing.

        Args:
            pristine: the task's own tree.
            changes: the submission's files.
            events: kinds of events that its code caused in the tests.
            runs: a test passed.
        """
        ...

    def shell_setup(self, python_path: Sequence[str], python: Path) -> str:
        """Return lines of a shell script after which an agent's commands find the language's tools.

        Args:
            python_path: `TaskSpec.python_path`.
            python: the interpreter of the environment.
        """
        ...


@cache
def language_named(name: str) -> Any:
    """Return a language as grading knows it, a `GradedLanguage`; one other than Python is a `languages.protocol.Language` too.

    Raises:
        TaskError: there is none of that name.
    """
    if name == _PYTHON.name:
        return _PYTHON
    known = _known()
    if name not in known:
        raise TaskError(f"there is no language {name!r}", fix=f"one of {', '.join(language_names())}, or install what brings it")
    module, _, attribute = known[name].partition(":")
    return getattr(import_module(module), attribute)


def language_names() -> list[str]:
    """Return the names of all languages, Python last: a project of another one often has Python files too."""
    return [*sorted(_known()), _PYTHON.name]


@cache
def _known() -> dict[str, str]:
    return {**_OWN, **{entry.name: entry.value for entry in entry_points(group=GROUP)}}


def graded_language(task: TaskSpec) -> GradedLanguage:
    """Return the language of a task. Raises TaskError as `language_named`."""
    found: GradedLanguage = language_named(task.language)
    return found


def seen_failing(runner: CodeRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> list[int]:
    """Return the numbers of the programs whose answers were seen to be wrong: none when the sandbox ended early, which proves
    nothing of a check. Raises SandboxError."""
    language: GradedLanguage = language_named(runner.language)
    wrong, ending = language.wrong_programs(runner, tree, programs)
    return wrong if ending is Ending.EXITED else []
