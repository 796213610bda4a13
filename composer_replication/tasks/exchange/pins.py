"""Pinned requirements of a task's image: a Python version, and the installed versions of what the tree declares."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from composer_replication.sandbox.interpreter import ask
from composer_replication.tasks.sources.environment import declared_requirements
from composer_replication.types import TaskSpec

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
                pending.append(re.match(r"[\\w.-]+", line)[0])
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
    """Return the version of `python`, and of pytest and everything the tree declares as far as `python` has it, with
    dependencies.

    Raises TaskError when the interpreter does not run, and SandboxError when it does not answer.
    """
    project = re.split(r"[:/]", spec.source.removesuffix(".git"))[-1].partition("==")[0].partition("@")[0]
    names = [re.split(r"[\s<>=!~;\[(]", line, maxsplit=1)[0] for line in declared_requirements(tree, project)]
    return _asked(python, ("pytest", *sorted(names)))


@lru_cache(maxsize=256)
def _asked(python: Path, names: tuple[str, ...]) -> Pins:
    version, requirements = ask(str(python), _QUESTION, json.dumps(names))
    return Pins(version, tuple(requirements))
