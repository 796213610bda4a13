from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from composer_replication.observe import RunDir


@pytest.fixture(scope="session")
def fake() -> dict[str, Any]:
    """The names of fixture_run.py (a script, so not importable as a module here)."""
    return runpy.run_path(str(Path(__file__).parent / "fixture_run.py"))


@pytest.fixture(scope="session")
def pristine_run(fake: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run: RunDir = fake["make_run"](tmp_path_factory.mktemp("pristine") / "quickstart")
    return run


@pytest.fixture
def fake_run(pristine_run: RunDir, tmp_path: Path) -> RunDir:
    """A copy of the fake run, to change at will."""
    return RunDir(shutil.copytree(pristine_run.path, tmp_path / "quickstart"))
