"""Small projects written on the spot."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

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
