"""Small projects written on the spot, and the packages that their environments are made of."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from package_index import write_wheel

from composer_replication.tasks.sources import environment, install

WriteProject = Callable[[Mapping[str, str]], Path]


@pytest.fixture(scope="session")
def write_project(tmp_path_factory: pytest.TempPathFactory) -> WriteProject:
    """Write files (dedented text by path) into a new folder named `shop`."""

    def write(files: Mapping[str, str]) -> Path:
        root = tmp_path_factory.mktemp("project") / "shop"
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(textwrap.dedent(text))
        return root

    return write


@pytest.fixture(scope="session")
def empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make_empty` makes: most of its five CPU-seconds are spent in `ensurepip`."""
    folder = tmp_path_factory.mktemp("empty") / "env"
    install.make_empty(folder, Path(sys.executable))
    return folder


@pytest.fixture
def wheels(index: Path, empty_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`index`, with empty environments that are copies of one: only the paths in their scripts differ from those made anew."""

    def copy(folder: Path, base: Path) -> None:
        assert base == Path(sys.executable)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(empty_environment, folder, symlinks=True)

    monkeypatch.setattr(install, "make_empty", copy)
    monkeypatch.setattr(environment, "make_empty", copy)
    return index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from, instead of an index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("pytest", "coverage"):
        write_wheel(folder, name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("REDTEAM_API_KEY", "sk-host-secret")
    return folder
