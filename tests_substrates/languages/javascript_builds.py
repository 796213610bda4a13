"""Tasks of the projects in JavaScript, built when they are first needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from javascript_projects import PROJECTS, write

from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks import BuildOptions, Task, build_tasks, load_tasks
from composer_replication.types import GradeReport

STUB = 'throw new Error("not implemented");'


class Built:
    """A project's tasks, and the environment that they were built in."""

    def __init__(self, folder: Path, name: str) -> None:
        out = folder / "tasks"
        build_tasks(
            str(write(folder / name, PROJECTS[name])),
            out,
            BuildOptions(trivial=True, install=True, timeout_s=300, forgeable=True),
        )
        self.python = out / ".venv" / "bin" / "python"
        self.tasks = {task.spec.deleted[0].qualname: task for task in load_tasks(out)}

    def graded(self, name: str, changes: dict[str, bytes | None], sandbox: Sandbox) -> GradeReport:
        """Grade work on the task of a function."""
        task = self.tasks[name]
        return grade(task.spec, task.repo, changes, sandbox=sandbox, python=self.python)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    """Build the tasks of a project when they are first needed."""
    made: dict[str, Built] = {}

    def get(name: str) -> Built:
        if name not in made:
            made[name] = Built(tmp_path_factory.mktemp(name), name)
        return made[name]

    return get


def with_body(task: Task, body: str, more: str = "") -> dict[str, bytes | None]:
    """Return a submission with this body, and more behind the file."""
    path = task.spec.deleted[0].path
    text = (task.repo / path).read_text()
    assert text.count(STUB) == 1
    head = "// @ts-nocheck\n" if path.endswith(".ts") else ""
    return {path: (head + text.replace(STUB, body) + "\n" + more).encode()}
