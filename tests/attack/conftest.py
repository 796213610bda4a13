from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from once import made_once  # of tests/tools
from suite import build_methods, build_task, tasks_by_name  # beside this file

from composer_replication.sandbox import Sandbox, open_sandbox
from composer_replication.tasks.store import Task


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return tasks_by_name(made_once(tmp_path_factory, "attack", build_task) / "till-tasks")["discounted"]


@pytest.fixture(scope="session")
def methods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    return tasks_by_name(made_once(tmp_path_factory, "methods", build_methods) / "hamper-tasks")


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    return open_sandbox()
