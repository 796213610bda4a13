"""Tasks of the projects in Java, built when they are first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from java_jars import served, unpacked
from java_projects import PROJECTS, write

from composer_replication.languages.java.settings import find_jdk
from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks import BuildOptions, Task, build_tasks, load_tasks
from composer_replication.types import GradeReport

STUB = 'throw new UnsupportedOperationException("not implemented");'


class JavaBuild:
    """A project's tasks, and the environment that they were built in."""

    def __init__(self, folder: Path, name: str) -> None:
        out = folder / "tasks"
        self.source = write(folder / name, PROJECTS[name])
        self.report = build_tasks(str(self.source), out, BuildOptions(trivial=True, install=True, timeout_s=300))
        self.python = out / ".venv" / "bin" / "python"
        self.tasks = {task.spec.deleted[0].qualname: task for task in load_tasks(out)}

    def graded(self, name: str, changes: dict[str, bytes | None], sandbox: Sandbox) -> GradeReport:
        """Grade work on the task of a method."""
        task = self.tasks[name]
        return grade(task.spec, task.repo, changes, sandbox=sandbox, python=self.python)


@pytest.fixture(scope="session")
def maven_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose settings of Maven name a repository with JUnit."""
    if find_jdk("/nowhere") is None:
        pytest.fail(
            "there is no JDK with javac below /usr/lib/jvm, which the tests of Java need: apt-get install openjdk-17-jdk-headless"
        )
    home = tmp_path_factory.mktemp("maven-home")
    with served(unpacked(tmp_path_factory.mktemp("debian")), home):
        yield home


@pytest.fixture(scope="session")
def java_built(maven_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], JavaBuild]:
    """Build the tasks of a project when they are first needed."""
    made: dict[str, JavaBuild] = {}

    def get(name: str) -> JavaBuild:
        if name not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("HOME", str(maven_home))
                made[name] = JavaBuild(tmp_path_factory.mktemp(name), name)
        return made[name]

    return get


def with_body(task: Task, body: str, more: str = "", head: str = "") -> dict[str, bytes | None]:
    """Return a submission with this body, more members at the end of the class, and imports behind the package."""
    path = task.spec.deleted[0].path
    text = (task.repo / path).read_text()
    assert text.count(STUB) == 1
    text = text.replace(STUB, body)
    text = text[: text.rindex("}")] + more + "\n}\n"
    package, _, rest = text.partition(";\n")
    return {path: f"{package};\n{head}{rest}".encode()}
