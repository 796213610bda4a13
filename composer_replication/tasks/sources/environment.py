"""An interpreter for the tests: the project's declared dependencies and pytest in a virtual environment, never the project."""

from __future__ import annotations

import ast
import configparser
import email.parser
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from email.message import Message
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from composer_replication.sandbox import Sandbox
from composer_replication.tasks.sources.install import install, make_empty
from composer_replication.tasks.sources.installed import packages_of
from composer_replication.tasks.sources.run_pip import OWN
from composer_replication.types.errors import SourceError
from composer_replication.types.syntax import parse_module

_TEST_GROUPS = frozenset({"test", "tests", "testing", "dev", "develop", "development"})
_REQUIREMENT_WORDS = _TEST_GROUPS | {"requirements", "requirement", "base", "main", "txt", "in"}
_TOOLS = ("pytest", "coverage")


def declared_requirements(tree: Path, name: str) -> tuple[str, ...]:
    """Return the requirements the project declares for running and testing, read from its files without running them.

    Read are `pyproject.toml` (project, test extras and groups), `PKG-INFO`, `setup.cfg`, literal lists in `setup.py`, and files
    of requirements. The project itself (`name`), other folders and options are left out.
    """
    own: set[str] = {canonicalize_name(name)}
    found: dict[str, None] = {}
    for line in (*_from_pyproject(tree, own), *_from_pkg_info(tree), *_from_setup(tree), *_from_requirement_files(tree)):
        try:
            requirement = Requirement(line.partition(" #")[0].strip())
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) not in own and requirement.url is None:
            found[str(requirement)] = None
    return tuple(found)


def make_environment(folder: Path, tree: Path, name: str, *, sandbox: Sandbox, base: Path | None = None) -> Path:
    """Make a virtual environment in `folder` for the tests of the project at `tree`; returns its interpreter.

    It gets what the project declares, pytest and coverage, and keeps neither pip nor setuptools unless they are among these. Of
    the project itself it gets name and version, for code that asks `importlib.metadata` for them, and no module. An environment
    that was completed for the same requirements is used again.

    pip takes wheels, which runs none of their code; what has none is built in `sandbox`, without network. pip itself runs on this
    machine, confined as `confined` says, starts no program, and asks the index of its settings. Code that a wheel would have run
    whenever the interpreter starts is put aside.

    Raises:
        SourceError: it cannot be made, pip cannot install something, or a wheel would change what runs on this machine.
        SandboxError: the sandbox broke.
    """
    python, wanted = folder / "bin" / "python", sorted({*declared_requirements(tree, name), *_TOOLS})
    seal = folder.with_name(f"{folder.name}.txt")  # outside, where no wheel can write
    if python.exists() and seal.exists() and seal.read_text().splitlines() == wanted:
        return python
    seal.unlink(missing_ok=True)
    try:
        _fill(folder, tree, name, wanted, base or Path(sys.executable), sandbox)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # what was refused is not found by the next one
        raise
    seal.write_text("\n".join(wanted) + "\n")
    return python


def _fill(folder: Path, tree: Path, name: str, wanted: list[str], base: Path, sandbox: Sandbox) -> None:
    make_empty(folder, base)
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


def pyproject(tree: Path) -> dict[str, Any]:
    """Read `pyproject.toml`; empty when there is none that can be read."""
    try:
        return tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        return {}


def project_table(tree: Path) -> Mapping[str, Any]:
    """Return the table `[project]` of `pyproject.toml`; empty when there is none."""
    table = pyproject(tree).get("project")
    return table if isinstance(table, Mapping) else {}


def pkg_info(tree: Path) -> Message:
    """Read the headers of a source archive's `PKG-INFO`; empty when there is no such file."""
    try:
        text = (tree / "PKG-INFO").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    return email.parser.Parser().parsestr(text, headersonly=True)


def _from_pyproject(tree: Path, own: set[str]) -> Iterator[str]:
    data, project = pyproject(tree), project_table(tree)
    if isinstance(project.get("name"), str):
        own.add(canonicalize_name(project["name"]))
    yield from _strings(project.get("dependencies"))
    for groups in (project.get("optional-dependencies"), data.get("dependency-groups")):
        for name, lines in (groups if isinstance(groups, Mapping) else {}).items():
            if name in _TEST_GROUPS:
                yield from _strings(lines)


def _from_pkg_info(tree: Path) -> Iterator[str]:
    for line in pkg_info(tree).get_all("Requires-Dist", []):
        requirement, _, marker = line.partition(";")
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", marker)
        if extra is None:
            yield line
        elif extra[1] in _TEST_GROUPS:
            yield requirement


def _from_setup(tree: Path) -> Iterator[str]:
    config = configparser.ConfigParser(interpolation=None)
    try:
        config.read(tree / "setup.cfg", encoding="utf-8")
        yield from config.get("options", "install_requires", fallback="").splitlines()
        yield from config.get("options", "tests_require", fallback="").splitlines()
        for name, lines in config.items("options.extras_require") if config.has_section("options.extras_require") else ():
            yield from lines.splitlines() if name in _TEST_GROUPS else ()
    except (configparser.Error, UnicodeDecodeError):
        pass
    try:
        module = parse_module((tree / "setup.py").read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(module):
        if isinstance(node, ast.keyword) and node.arg in ("install_requires", "tests_require"):
            try:
                yield from _strings(ast.literal_eval(node.value))
            except (ValueError, TypeError, RecursionError, MemoryError):
                continue


def _from_requirement_files(tree: Path) -> Iterator[str]:
    for path in sorted([*tree.glob("*.txt"), *tree.glob("*.in"), *tree.glob("requirements/*")]):
        words = set(re.split("[-_./]", path.relative_to(tree).as_posix().lower()))
        if path.is_file() and words <= _REQUIREMENT_WORDS and words & {"requirements", "requirement"}:
            yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list | tuple) else []
