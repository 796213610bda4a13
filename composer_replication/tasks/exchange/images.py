"""The image of a build's tasks: the interpreter's version of Python, with pytest and the pinned dependencies of the tests.

A build's tasks share an image: it holds nothing of any tree. `composer tasks export --format docker` writes its Dockerfile; where
an image lacks something, `install_command` is what adds it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from composer_replication.tasks.exchange.pins import Pins, pins_of
from composer_replication.tasks.files import storage_errors
from composer_replication.tasks.store import Task
from composer_replication.types.errors import TaskError

PYTHON_IMAGE = "python:{python}-slim"
"""What an image begins with; `image_named` fills it in."""
REPOSITORY = "composer-tasks"
"""What the images of builds are called in the documentation, before the build's name."""


def image_named(template: str, *, build: str, python: str) -> str:
    """Return the name of an image: `{build}` in it stands for a build's name, `{python}` for its version of Python (`3.11`)."""
    return template.replace("{build}", build).replace("{python}", python)


def build_name(folder: Path) -> str:
    """Return the name of a build's folder, as registries allow it in the name of an image."""
    return "-".join(re.findall(r"[a-z0-9]+(?:\.[a-z0-9]+)*", folder.resolve().name.lower())) or "tasks"


def install_command(pins: Pins) -> list[str]:
    """Return the command that adds to an image what the tests need; it asks no index where everything is there."""
    return ["python", "-m", "pip", "install", "--no-cache-dir", *pins.requirements]


def dockerfile(pins: Pins) -> str:
    """Return the Dockerfile of an image."""
    return (
        f"FROM {image_named(PYTHON_IMAGE, build='', python=pins.python)}\n"
        f"RUN {' '.join(install_command(pins))}\n"
        "ENV PYTHONDONTWRITEBYTECODE=1\n"
    )


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
        pins = [pins_of(task.spec, task.repo, pythons[task.spec.task_id]) for task in members]
        with storage_errors(out):
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            (root / "Dockerfile").write_text(dockerfile(joined(pins)), "utf-8")
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
