"""Small projects written on the spot, and the packages that their environments are made of."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from package_index import write_wheel

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


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from, instead of an index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("pytest", "coverage"):
        write_wheel(folder, name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("REDTEAM_API_KEY", "sk-host-secret")
    return folder
