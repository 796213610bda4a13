"""Pinned requirements of a task's image: a Python version, and the installed versions of what the tree declares."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from composer_replication.tasks.sources.environment import declared_requirements
from composer_replication.types import TaskSpec
from composer_replication.types.errors import TaskError

_QUESTION = """
import json, re, sys
from importlib.metadata import PackageNotFoundError, distribution
pending, found = json.loads(sys.argv[1]), {}
while pending:
    name = pending.pop()
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        continue
    if installed.name not in found:
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

    Raises TaskError when the interpreter does not run.
    """
    project = re.split(r"[:/]", spec.source.removesuffix(".git"))[-1].partition("==")[0].partition("@")[0]
    names = [re.split(r"[\s<>=!~;\[(]", line, maxsplit=1)[0] for line in declared_requirements(tree, project)]
    return _asked(python, ("pytest", *sorted(names)))


@lru_cache(maxsize=256)
def _asked(python: Path, names: tuple[str, ...]) -> Pins:
    command = [str(python), "-I", "-c", _QUESTION, json.dumps(names)]
    try:
        answer = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise TaskError(f"{python} is not a working Python interpreter ({error})", fix="name another: --python PATH") from error
    version, requirements = json.loads(answer.stdout)
    return Pins(version, tuple(requirements))
