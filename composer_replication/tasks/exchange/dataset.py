"""Tasks as a dataset that can be shared, and back.

README.md              the card
tasks.jsonl            a row for each task, for viewers and choices
builds/BUILD.tar.gz    the tasks of a build, and what their tests need
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from composer_replication.languages.functions import Skipped
from composer_replication.languages.registry import build_language
from composer_replication.sandbox import Sandbox
from composer_replication.tasks.exchange.archive import ENDING, pack, unpack
from composer_replication.tasks.exchange.card import INDEX, PackedBuild, card, index_lines, licence_of_task
from composer_replication.tasks.exchange.images import build_name, by_build, joined
from composer_replication.tasks.exchange.pins import Pins, exact, pins_of, project_of, python_version, satisfies
from composer_replication.tasks.files import storage_errors
from composer_replication.tasks.folders import task_folders
from composer_replication.tasks.index import write_index
from composer_replication.tasks.report import BUILD_REPORT
from composer_replication.tasks.sources.environment import make_environment
from composer_replication.tasks.sources.licence import UNKNOWN
from composer_replication.tasks.spec import read_spec
from composer_replication.tasks.store import Task, load_task
from composer_replication.types import to_json
from composer_replication.types.errors import ConfigError, TaskError

BUILDS = "builds"
REQUIREMENTS = "requirements.txt"
Unlicensed: TypeAlias = Literal["refuse", "leave-out", "push"]
_MOST_REQUIREMENTS = 10_000


@dataclass(frozen=True, slots=True)
class UnpackedBuild:
    """A build that came in a dataset."""

    folder: Path
    tasks: int
    pins: Pins
    ready: bool
    """Whether this process's interpreter has the very versions that its tests were proven with."""


def write_dataset(
    tasks: Sequence[Task], out: Path, *, repo_id: str, pythons: Mapping[str, Path], unlicensed: Unlicensed = "refuse"
) -> list[PackedBuild]:
    """Write tasks as a dataset into the folder `out`, which is new or empty; returns what is in it.

    Args:
        repo_id: what the card calls it, `OWNER/NAME`.
        pythons: by task id, the interpreter that runs the tests here; its version and the versions of what the trees declare are
            told.
        unlicensed: what becomes of tasks under no known licence, or one that lets nobody pass on changed files.

    Raises:
        ConfigError: `out` holds something.
        TaskError: a task is damaged, may not be passed on, or none is left; or an interpreter does not run.
        StorageError: `out` cannot be written.
    """
    kept = [task for task in tasks if unlicensed == "push" or _may_be_shared(licence_of_task(task))]
    if (unlicensed == "refuse" and len(kept) < len(tasks)) or not kept:
        _refuse(tasks)
    _make_empty(out)
    builds = []
    for name, members in by_build(kept).items():
        pins = joined([pins_of(task.spec, task.repo, pythons[task.spec.task_id]) for task in members])
        builds.append(PackedBuild(name, members, pins))
    with storage_errors(out):
        (out / BUILDS).mkdir()
        for build in builds:
            pack(build.tasks, _record(build), out / BUILDS / f"{build.name}{ENDING}")
        (out / INDEX).write_text(index_lines(kept), "utf-8")
        (out / "README.md").write_text(card(builds, repo_id), "utf-8")
    return builds


def _record(build: PackedBuild) -> dict[str, Any]:
    first = build.tasks[0].spec
    return {
        "source": first.source,
        "source_digest": first.source_digest,
        "licence": licence_of_task(build.tasks[0]),
        "tasks": [task.spec.task_id for task in build.tasks],
        "python": build.pins.python,
        "requirements": build.pins.requirements,
    }


def _may_be_shared(licence: str) -> bool:
    """Return whether a licence is known, and known not to forbid passing on changed files."""
    return licence != UNKNOWN and not re.search(r"LicenseRef-|-ND-", licence, flags=re.IGNORECASE)


def _refuse(tasks: Sequence[Task]) -> None:
    held = {task.spec.source: licence for task in tasks if not _may_be_shared(licence := licence_of_task(task))}
    named = ", ".join(f"{source} ({licence})" for source, licence in list(held.items())[:5])
    more = f" and {len(held) - 5} more" if len(held) > 5 else ""
    raise TaskError(
        f"nobody has said that the files of {named}{more} may be passed on",
        fix="leave these tasks out with --unlicensed leave-out; or, where you know that you may, --unlicensed push",
    )


def _make_empty(out: Path) -> None:
    with storage_errors(out):
        if out.is_file() or (out.is_dir() and any(out.iterdir())):
            raise ConfigError(f"{out} holds something", fix="name a folder that is not there yet")
        out.mkdir(parents=True, exist_ok=True)


def read_dataset(dataset: Path, out: Path) -> tuple[list[UnpackedBuild], list[Skipped]]:
    """Unpack a dataset into the folder `out`, which is new or empty and becomes a set of tasks.

    Tasks and archives of builds that are damaged or false are left out, and returned too, each with its reason.

    Raises:
        ConfigError: `out` holds something.
        TaskError: nothing of it can be used; nothing is written then.
        StorageError: `out` cannot be written.
    """
    archives = sorted((dataset / BUILDS).glob(f"*{ENDING}"))
    if not archives:
        raise TaskError(f"the dataset has no {BUILDS}/*{ENDING}", fix="name one that `composer tasks push` made")
    _make_empty(out)
    staged = out.with_name(f".{out.name}.pull")
    found: list[UnpackedBuild] = []
    refused: list[Skipped] = []
    with storage_errors(out.parent):
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
    try:
        for archive in archives:
            try:
                found.append(_unpacked(archive, staged, out, refused))
            except (TaskError, ValueError) as error:
                refused.append(Skipped(archive.name, _said(error)))
                shutil.rmtree(staged / archive.name.removesuffix(ENDING), ignore_errors=True)
        if not found:
            fix = "tell whoever pushed it, or name another revision"
            raise TaskError(f"nothing of the dataset can be used: {refused[0].what}: {refused[0].reason}", fix=fix)
        with storage_errors(out.parent):
            staged.rename(out)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return found, refused


def _unpacked(archive: Path, staged: Path, out: Path, refused: list[Skipped]) -> UnpackedBuild:
    """Unpack one archive and check what it brings; what is left out goes to `refused`. Raises TaskError and ValueError."""
    name = archive.name.removesuffix(ENDING)
    if build_name(Path(name)) != name:
        raise ValueError("that is no name of a build")
    record = unpack(archive, staged / name)
    pins = _pins_in(record)
    roots = []
    for root in task_folders(staged / name) if (staged / name).exists() else []:
        try:
            spec = read_spec(json.dumps(to_json(load_task(root).spec)).encode())
            build_language(spec.language).check_programs(spec.hidden.programs)
            roots.append(root)
        except (TaskError, ValueError) as error:
            refused.append(Skipped(f"{archive.name}: {root.name}", _said(error)))
            shutil.rmtree(root)
    if not roots:
        raise ValueError(refused[-1].reason if refused else "it holds no task")
    here = Path(sys.executable)
    ready = satisfies(here, pins)
    python = here if ready else _own_python(out.absolute() / name)
    kept = {key: str(record.get(key, "")) for key in ("source", "source_digest", "licence")}
    written = {**kept, "tasks": [root.name for root in roots], "python": str(python), "requirements": pins.requirements}
    with storage_errors(staged):
        (staged / name / BUILD_REPORT).write_text(json.dumps(written, indent=1) + "\n", "utf-8")
        (staged / name / REQUIREMENTS).write_text("".join(f"{line}\n" for line in pins.requirements), "utf-8")
    write_index(staged / name)
    return UnpackedBuild(out / name, len(roots), pins, ready)


def _said(error: Exception) -> str:
    return error.message if isinstance(error, TaskError) else str(error)


def _own_python(build: Path) -> Path:
    return build / ".venv" / "bin" / "python"


def _pins_in(record: Mapping[str, Any]) -> Pins:
    """Return what an archive says that its tests need. Raises ValueError."""
    python, lines = record.get("python"), record.get("requirements")
    if not isinstance(python, str) or not re.fullmatch(r"\d{1,3}\.\d{1,3}", python):
        raise ValueError("it does not say which Python its tests need")
    if not isinstance(lines, list) or len(lines) > _MOST_REQUIREMENTS or not all(isinstance(line, str) for line in lines):
        raise ValueError("it does not say what its tests need")
    return Pins(python, tuple(exact(*line.partition("==")[::2]) for line in lines))


def install_requirements(build: UnpackedBuild, sandbox: Sandbox) -> None:
    """Make the environment in which the tests of an unpacked build run; what needs a build is built in the sandbox.

    Raises:
        ConfigError: this process's Python has another version.
        SourceError: something cannot be installed.
        SandboxError: the sandbox broke.
    """
    if (here := python_version(Path(sys.executable))) != build.pins.python:
        raise ConfigError(
            f"the tests of {build.folder} need Python {build.pins.python}, and this is {here}",
            fix=f"make an environment of that version from {build.folder / REQUIREMENTS}, and name it with --python",
        )
    task = load_task(task_folders(build.folder)[0])
    own = _own_python(build.folder).parents[1]
    python = make_environment(own, task.repo, project_of(task.spec.source), build.pins.requirements, sandbox=sandbox)
    task.language.prepare(python, task.repo, fetch=True)
