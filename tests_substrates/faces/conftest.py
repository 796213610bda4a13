"""Tasks built here, for every framework; and other libraries may warn about themselves."""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

import pytest

from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.store import load_tasks

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "composer_replication" / "quickstart" / "projects" / "orchard"
DOCS = ROOT / "docs"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of three tasks."""
    out = tmp_path_factory.mktemp("built") / "tasks"
    report = build_tasks(str(PROJECT), out, BuildOptions(max_tasks=3, packages=("orchard/grafts.py",), jobs=1))
    assert len(report.tasks) == 3
    return out


@pytest.fixture(scope="session")
def tasks(folder):
    return load_tasks(folder)


@pytest.fixture
def documented():
    """The Python that docs/environments.md shows first below a heading."""

    def below(heading):
        section = (DOCS / "environments.md").read_text("utf-8").partition(f"\n## {heading}\n")[2]
        return textwrap.dedent(re.search(r"(?:^(?: {4}.*)?\n)*^ {4}.*\n", section, re.MULTILINE)[0])

    return below
