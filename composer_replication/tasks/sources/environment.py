"""An interpreter for the tests: a virtual environment with what a project's tests want, never with the project."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from composer_replication.sandbox import Sandbox
from composer_replication.tasks.sources.declared import pkg_info, project_table
from composer_replication.tasks.sources.install import install, make_empty
from composer_replication.tasks.sources.installed import packages_of
from composer_replication.tasks.sources.run_pip import OWN
from composer_replication.types.errors import SourceError


def make_environment(
    folder: Path, tree: Path, name: str, wanted: Iterable[str], *, sandbox: Sandbox, base: Path | None = None
) -> Path:
    """Make a virtual environment in `folder` for the tests of the project at `tree`; returns its interpreter.

    It gets the requirements `wanted`, and keeps neither pip nor setuptools unless they are among these. Of the project itself it
    gets name and version, for code that asks `importlib.metadata` for them, and no module. An environment that was completed for
    the same requirements is used again.

    pip takes wheels, which runs none of their code; what has none is built in `sandbox`, without network. pip itself runs on this
    machine, confined as `confined` says, starts no program, and asks the index of its settings. Code that a wheel would have run
    whenever the interpreter starts is put aside.

    Raises:
        SourceError: it cannot be made, pip cannot install something, or a wheel would change what runs on this machine.
        SandboxError: the sandbox broke.
    """
    python, lines, seal = folder / "bin" / "python", sorted(set(wanted)), _seal(folder)
    if python.exists() and seal.exists() and made_for(folder) == lines:
        return python
    seal.unlink(missing_ok=True)
    try:
        _fill(folder, tree, name, lines, base or Path(sys.executable), sandbox)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # what was refused is not found by the next one
        raise
    seal.write_text("".join(f"{line}\n" for line in lines))
    return python


def made_for(folder: Path) -> list[str]:
    """Return the requirements that an environment was completed for; empty where none was."""
    seal = _seal(folder)
    return seal.read_text().splitlines() if seal.exists() else []


def _seal(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.txt")  # outside, where no wheel can write


def _fill(folder: Path, tree: Path, name: str, wanted: list[str], base: Path, sandbox: Sandbox) -> None:
    make_empty(folder, base)
    if wanted:
        install(folder, wanted, base=base, sandbox=sandbox)
    version = _declared_version(tree)
    metadata = packages_of(folder) / f"{re.sub('[-_.]+', '_', name)}-{version}.dist-info" / "METADATA"
    try:
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    except OSError as error:
        raise SourceError(f"a dependency has taken the place of the project's own name: {error}", fix=OWN) from error


def _declared_version(tree: Path) -> str:
    """Return the version in PKG-INFO or `pyproject.toml`; `0` when it is computed at build time."""
    version = pkg_info(tree).get("Version") or project_table(tree).get("version")
    return version if isinstance(version, str) and re.fullmatch(r"[\w.+!-]+", version) else "0"
