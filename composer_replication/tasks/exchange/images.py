"""The image of a build's tasks: the interpreter's version of Python, with pytest and the pinned dependencies of the tests.

A build's tasks share an image: it holds nothing of any tree. `composer tasks export --format docker` writes its Dockerfile; where
an image lacks something, `install_command` is what adds it. In other languages than Python an image gets the tool chain, and what
`Language.prepare` fetches for a tree that is shown while the image is built; a shell in it finds the tools.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from composer_replication.languages.protocol import Language
from composer_replication.tasks.exchange import image_prepare
from composer_replication.tasks.exchange.grader_files import copy_grader
from composer_replication.tasks.exchange.pins import Pins, library_pins, pins_of
from composer_replication.tasks.files import copy_tree, storage_errors
from composer_replication.tasks.store import Task
from composer_replication.types.errors import TaskError

PYTHON_IMAGE = "python:{python}-slim"
"""What an image begins with; `image_named` fills it in."""
REPOSITORY = "composer-tasks"
"""What the images of builds are called in the documentation, before the build's name."""
TREE, PREPARE = "repo", "prepare"
"""Folders beside a Dockerfile: the tree of a task, and what makes the image ready for it."""
_SETUP = "/etc/composer_setup.sh"
_PREPARED = (
    f"RUN --mount=type=bind,source={TREE},target=/tree --mount=type=bind,source={PREPARE},target=/prepare"
    f" python -I -B /prepare/prepare.py {{language}} /tree {_SETUP} && echo '. {_SETUP}' >> /etc/bash.bashrc\n"
    f"ENV BASH_ENV={_SETUP}\n"
)
_SYSTEM = "RUN apt-get update && apt-get install --yes --no-install-recommends {packages} && rm -rf /var/lib/apt/lists/*\n"


def image_named(template: str, *, build: str, python: str) -> str:
    """Return the name of an image: `{build}` in it stands for a build's name, `{python}` for its version of Python (`3.11`)."""
    return template.replace("{build}", build).replace("{python}", python)


def build_name(folder: Path) -> str:
    """Return the name of a build's folder, as registries allow it in the name of an image."""
    return "-".join(re.findall(r"[a-z0-9]+(?:\.[a-z0-9]+)*", folder.resolve().name.lower())) or "tasks"


def install_command(pins: Pins) -> list[str]:
    """Return the command that adds to an image what the tests need; it asks no index where everything is there."""
    return ["python", "-m", "pip", "install", "--no-cache-dir", *pins.requirements]


def write_image(folder: Path, task: Task, pins: Pins) -> None:
    """Write the Dockerfile of a task's image into a folder, and beside it what its commands read but for `repo`, a task's tree.

    Args:
        pins: what `image_pins` gives for the task, or for all tasks of its build.

    Raises:
        TaskError: the task's language comes from another package.
        OSError: the folder cannot be written.
    """
    (folder / "Dockerfile").write_text(dockerfile(task.language, pins), "utf-8")
    if needs_tools(task.language):
        copy_grader(task.language.name, folder / PREPARE)
        shutil.copy(image_prepare.__file__, folder / PREPARE / "prepare.py")


def dockerfile(language: Language, pins: Pins) -> str:
    """Return the Dockerfile of an image."""
    packages = " ".join(language.system_requirements)
    return (
        f"FROM {image_named(PYTHON_IMAGE, build='', python=pins.python)}\n"
        f"{_SYSTEM.format(packages=packages) if packages else ''}"
        f"RUN {' '.join(install_command(pins))}\n"
        f"{_PREPARED.format(language=language.name) if needs_tools(language) else ''}"
        "ENV PYTHONDONTWRITEBYTECODE=1\n"
    )


def needs_tools(language: Language) -> bool:
    """Return whether an image for a language needs more than packages that the tests of a project declare."""
    return language.requirements is not None


def image_pins(task: Task, python: Path) -> Pins:
    """Return what pip installs into a task's image: what its tests need, as `python` has it, and what its language imports.

    Raises as `pins_of`.
    """
    return joined([pins_of(task.spec, task.repo, python), library_pins(task.language)])


def export_images(tasks: Sequence[Task], out: Path, *, pythons: Mapping[str, Path]) -> list[Path]:
    """Write a folder with a Dockerfile for each build below `out`, replacing those of the same name; returns them.

    Args:
        pythons: by task id, the interpreter that runs the tests here; its version and the versions of what the tree declares go
            into the image.

    Raises:
        TaskError: two builds are called alike, a task is damaged, or its interpreter does not run.
        StorageError: `out` cannot be written.
    """
    written = []
    for name, members in by_build(tasks).items():
        root = out / name
        pins = joined([image_pins(task, pythons[task.spec.task_id]) for task in members])
        with storage_errors(out):
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            write_image(root, members[0], pins)
            if needs_tools(members[0].language):
                copy_tree(members[0].repo, root / TREE)
        written.append(root)
    return written


def by_build(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """Return tasks by the name of their build (`build_name`), in their order. Raises TaskError where two builds have one name."""
    found: dict[str, list[Task]] = {}
    folders: dict[str, Path] = {}
    for task in tasks:
        folder = task.root.resolve().parent
        name = build_name(folder)
        if folders.setdefault(name, folder) != folder:
            raise TaskError(f"{folders[name]} and {folder} would both be called {name}", fix="rename one of the folders")
        found.setdefault(name, []).append(task)
    return found


def joined(pins: Sequence[Pins]) -> Pins:
    """Return the pins of several tasks of one build, which have one interpreter, in one."""
    return Pins(pins[0].python, tuple(sorted({line for one in pins for line in one.requirements})))
