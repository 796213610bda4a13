"""Python, as the grader knows it: pytest runs the tests, and programs of steps are the held-out evidence."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from composer_replication.sandbox.grading.programs import wrong_programs
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.tripwire import alarms_of, profile_of
from composer_replication.sandbox.protocol import Ending, Installation, Limits, Sandbox, Tree
from composer_replication.types import TaskSpec
from composer_replication.types.errors import TaskError
from composer_replication.types.held_out_checks import GoldProfile, HeldOutProgram


class PythonGrading:
    """See `sandbox.grading.languages.GradedLanguage`."""

    name = "python"
    tests_in_sources = False

    def runner(self, sandbox: Sandbox, python: Path, python_path: Sequence[str], limits: Limits) -> CodeRunner:
        """Return what runs pytest."""
        return CodeRunner(sandbox=sandbox, python=python, python_path=python_path, limits=limits)

    def refuse_environment(self, task: TaskSpec, python: Path, installed: Installation) -> None:
        """Refuse an interpreter that can import the deleted code from elsewhere."""
        for deletion in task.deleted:
            path = PurePosixPath(deletion.path)
            folder = next((folder for folder in task.python_path if path.is_relative_to(PurePosixPath(folder))), ".")
            name = path.relative_to(folder).parts[0].removesuffix(".py")
            if name in installed.modules:
                raise TaskError(
                    f"{python} has a copy of {name} installed, the code of {task.task_id}",
                    fix="name one without it: --python PATH",
                )

    def wrong_programs(self, runner: CodeRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
        """Replay programs of steps."""
        return wrong_programs(runner, tree, programs)

    def check_programs(self, programs: Sequence[HeldOutProgram]) -> None:
        """Do nothing: a step that cannot be read is one whose answer is wrong."""
        del programs

    def profile(self, sources: Mapping[str, bytes], events: Sequence[str]) -> GoldProfile:
        """Return the telling names of the Python files, and the events."""
        return profile_of([source for path, source in sources.items() if path.endswith(".py")], events)

    def alarms(
        self, task: TaskSpec, pristine: Path, changes: Mapping[str, bytes | None], events: Iterable[str], *, runs: bool
    ) -> tuple[str, ...]:
        """Return the alarms of the tripwire."""
        return alarms_of(task, pristine, changes, events, runs=runs)

    def shell_setup(self, python_path: Sequence[str], python: Path) -> str:
        """Put the project's folders on the path of imports."""
        del python
        paths = ":".join(f'"$PWD"/{shlex.quote(path)}' for path in python_path)
        return f"export PYTHONPATH={paths}\n"
