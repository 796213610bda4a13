"""Pinned requirements of a task's image: a Python version, and the installed versions of what the tree declares."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from composer_replication.languages.protocol import Language
from composer_replication.languages.registry import build_language
from composer_replication.sandbox.interpreter import ask
from composer_replication.tasks.sources.declared import declared_requirements, name_of
from composer_replication.types import TaskSpec
from composer_replication.types.errors import TaskError

_QUESTION = """
import json, re
from importlib.metadata import distributions
def plain(name):
    return re.sub("[-_.]+", "-", name).lower()
all_installed = {plain(d.name): d for d in reversed([*distributions(path=everything)]) if d.name}
pending, found = json.loads(sys.argv[1]), {}
while pending:
    installed = all_installed.get(plain(pending.pop()))
    if installed is not None and installed.name not in found:
        found[installed.name] = installed.version
        for line in installed.requires or ():
            if "extra ==" not in line:
                pending += re.findall(r"^[\\w.-]+", line)
print(json.dumps(["%d.%d" % sys.version_info[:2], sorted(f"{n}=={v}" for n, v in found.items())]))
"""
"""Follows dependencies by name and keeps those that are installed: their markers have been decided by the installer already."""


@dataclass(frozen=True, slots=True)
class Pins:
    """An interpreter's version and exact requirements."""

    python: str
    """Major and minor, `3.11`."""
    requirements: tuple[str, ...]


def pins_of(spec: TaskSpec, tree: Path, python: Path) -> Pins:
    """Return the version of `python`, and of what the tests need as far as `python` has it, with dependencies.

    That is pytest and everything the tree declares or, in another language than Python, the packages that bring its tools.

    Raises TaskError when the interpreter does not run, and SandboxError when it does not answer.
    """
    tools = build_language(spec.language).requirements
    if tools is not None:
        return _asked(python, tuple(sorted(map(name_of, tools))))
    names = {name_of(line) for line in declared_requirements(tree, project_of(spec.source)).every}
    return _asked(python, ("pytest", *sorted(names)))


def library_pins(language: Language) -> Pins:
    """Return the versions of what a language's object imports, as they are installed here. Raises as `pins_of`."""
    return _asked(Path(sys.executable), language.libraries)


def project_of(source: str) -> str:
    """Return the name of the project that a task's source names."""
    return re.split(r"[:/]", source.removesuffix(".git"))[-1].partition("==")[0].partition("@")[0]


def satisfies(python: Path, pins: Pins) -> bool:
    """Return whether an interpreter has that version, and all of those requirements. Raises as `pins_of`."""
    found = _asked(python, tuple(line.partition("==")[0] for line in pins.requirements))
    return found.python == pins.python and set(pins.requirements) <= set(found.requirements)


def python_version(python: Path) -> str:
    """Return the version of `python`, major and minor. Raises as `pins_of`."""
    return _asked(python, ()).python


@lru_cache(maxsize=256)
def _asked(python: Path, names: tuple[str, ...]) -> Pins:
    version, installed = ask(str(python), _QUESTION, json.dumps(names))
    try:
        return Pins(version, tuple(sorted(exact(*one.split("==", 1)) for one in installed)))
    except ValueError as error:
        raise TaskError(
            f"{python}: a distribution says that {error}",
            fix="make another environment, and name its interpreter with --python PATH",
        ) from error


def exact(name: str, version: str) -> str:
    """Return a requirement; what somebody else says of it goes into a Dockerfile, or to pip. Raises ValueError."""
    try:
        return f"{canonicalize_name(name, validate=True)}=={Version(version)}"
    except (InvalidName, InvalidVersion) as error:
        raise ValueError(f"its name is {name[:80]!a} and its version {version[:80]!a}") from error
