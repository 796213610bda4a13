from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from suite import build_methods, build_task  # beside this file

from composer_replication.sandbox import Sandbox, open_sandbox
from composer_replication.tasks.store import Task


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return build_task(tmp_path_factory.mktemp("attack"))


@pytest.fixture(scope="session")
def methods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    return build_methods(tmp_path_factory.mktemp("methods"))


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    return open_sandbox()
