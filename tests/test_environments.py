"""The environments of noxfile.py: what a checkout gets from its `.venv`, from the cache, and without a cache."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import environments

PACKAGES = Path("lib", "python3.11", "site-packages")


def checkout(root: Path, version: str = "1") -> tuple[Path, Path]:
    """A `.venv` with one library, one script and the checkout's own files, and an environment with nothing but an interpreter."""
    base, home = root / ".venv", root / ".nox" / "session"
    for folder in (base, home):
        (folder / "bin").mkdir(parents=True)
        (folder / PACKAGES).mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)
    for path, text in {
        "bin/tool": f"#!{base}/bin/python\n",
        "bin/composer": f"#!{base}/bin/python\n",
        PACKAGES / "library.py": "x = 1\n",
        PACKAGES / f"library-{version}.dist-info" / "METADATA": f"Metadata-Version: 2.1\nName: library\nVersion: {version}\n",
        PACKAGES / "_editable_impl_composer_replication.pth": f"{root}\n",
    }.items():
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_text(text)
    return base, home


def build(root: Path, version: str = "1") -> tuple[Path, list[str]]:
    base, home = checkout(root, version)
    said: list[str] = []
    environments.build(home, [], base, said.append)
    return home, said


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "composer-replication" / "envs"


def assert_whole(home: Path, root: Path) -> None:
    assert (home / PACKAGES / "library.py").read_text() == "x = 1\n"
    assert (home / PACKAGES / "_editable_impl_composer_replication.pth").read_text() == f"{root}\n"
    for script in ("tool", "composer"):
        assert (home / "bin" / script).read_text() == f"#!{home}/bin/python\n"


def test_a_second_checkout_takes_it_from_the_cache_and_keeps_its_own_package(tmp_path: Path, cache: Path) -> None:
    first, said = build(tmp_path / "first")
    assert said == []
    assert_whole(first, tmp_path / "first")
    (entry,) = cache.iterdir()
    assert not [path for path in entry.rglob("*") if "composer" in path.name]
    second, said = build(tmp_path / "second")
    assert said == [f"taken from the cache: {entry}"]
    assert_whole(second, tmp_path / "second")


def test_other_versions_are_another_environment(tmp_path: Path, cache: Path) -> None:
    build(tmp_path / "first")
    _, said = build(tmp_path / "second", version="2")
    assert said == []
    assert len(list(cache.iterdir())) == 2


def test_what_is_current_is_left_alone(tmp_path: Path, cache: Path) -> None:
    home, _ = build(tmp_path / "first")
    (home / PACKAGES / "library.py").unlink()
    environments.build(home, [], tmp_path / "first" / ".venv", pytest.fail)
    assert not (home / PACKAGES / "library.py").exists()
    (home / "composer.stamp").unlink()
    environments.build(home, [], tmp_path / "first" / ".venv")
    assert_whole(home, tmp_path / "first")


def test_without_a_cache_it_is_built_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    home, said = build(tmp_path / "first")
    assert_whole(home, tmp_path / "first")
    assert len(said) == 1
    assert said[0].startswith("environments are not cached: ")
