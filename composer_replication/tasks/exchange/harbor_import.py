"""Import of Harbor task directories, as far as they can be expressed as ours; the others are refused with a reason.

A directory that `export_harbor` wrote comes back as the task it was, in every language. Of others is asked: the tree comes from
the build context (`COPY` into the working directory, packages from pip at most), the verifier is pytest over files in `tests/`,
and `solve.sh` changes files of the tree. It is run in the sandbox, tests decide which are fail-to-pass, and the grader has the
last word: the solution must score 1 and the untouched tree 0. The tests become part of the tree: here an agent sees what it is
graded with, but for the hidden checks, which are found on the solved tree.

Nothing a task's author wrote is trusted: each folder is copied once, without following a link, and a task that holds a link, or
whose Dockerfile names anything outside of its folder, is refused before anything of it is used.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from composer_replication.languages.functions import Skipped
from composer_replication.languages.registry import build_language
from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.sandbox.grading.grade import grade
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.tasks.exchange.foreign_files import DAMAGED, NotExpressibleError, copy_foreign, damage, folders_with
from composer_replication.tasks.exchange.foreign_harbor import Expressed, express
from composer_replication.tasks.exchange.harbor_export import SPEC_FILE
from composer_replication.tasks.files import solved_tree, tree_files
from composer_replication.tasks.held_out.choice import numbers_of
from composer_replication.tasks.held_out.solution_checks import checks_of_solution
from composer_replication.tasks.proofs.task_copies import refuse_shown
from composer_replication.tasks.spec import is_task_id, read_spec
from composer_replication.tasks.store import Task, load_task, publish_task, write_task
from composer_replication.types import Unscored
from composer_replication.types.errors import SandboxError, StorageError, TaskError

_FIX = "name a folder with task.toml and instruction.md, or one above"


def import_harbor(folder: Path, out: Path, *, sandbox: Sandbox, python: Path) -> tuple[list[Task], list[Skipped]]:
    """Import every Harbor task at or below `folder` (a folder with `task.toml` and `instruction.md`).

    The others are returned too, each by its folder relative to `folder`, with the reason: also one whose files lead out of its
    folder, one that is damaged, and one on which the sandbox broke. Folders are not searched through links.

    Args:
        python: runs the tests here; it needs what the tasks' images would install.

    Raises:
        TaskError: there is no Harbor task, or `folder` cannot be searched.
        StorageError: `out` cannot be written.
    """
    tasks: list[Task] = []
    refused: list[Skipped] = []
    with _opened(folder) as top:
        found = _tasks_in(top)
        for path in found:
            try:
                tasks.append(_import(top, path, out, sandbox, python))
            except NotExpressibleError as error:
                refused.append(Skipped(path, str(error)))
    return tasks, refused


def _opened(folder: Path) -> OpenFolder:
    try:
        return OpenFolder(folder.resolve())
    except OSError as error:
        raise TaskError(f"{folder} cannot be read ({error.strerror})", fix=_FIX) from error


def _tasks_in(top: OpenFolder) -> list[str]:
    try:
        found = list(folders_with(top, ("task.toml", "instruction.md")))
    except OSError as error:
        raise TaskError(f"{top.root} cannot be searched ({error.strerror})", fix=_FIX) from error
    if not found:
        raise TaskError(f"{top.root} holds no Harbor task", fix=_FIX)
    return found


def _import(top: OpenFolder, path: str, out: Path, sandbox: Sandbox, python: Path) -> Task:
    """Import one task. Raises NotExpressibleError, whatever its author wrote, and StorageError."""
    with scratch_folder() as work:
        try:
            with top.subfolder(path) as given:
                source = copy_foreign(given, work / "task")
            config = tomllib.loads((source / "task.toml").read_text("utf-8"))
            ours = source / "tests" / SPEC_FILE
            expressed = _own(source, ours) if ours.is_file() else express(source, config, work, sandbox=sandbox, python=python)
            if not is_task_id(expressed.spec.task_id):
                raise NotExpressibleError(f"its name {expressed.spec.task_id[:80]!r} is not a name for a folder")
            build_language(expressed.spec.language).prepare(python, expressed.repo, fetch=False)
            _prove(expressed, sandbox, python)
            if not expressed.spec.impossible:
                expressed = _with_checks(expressed, sandbox, python)
            return _write(expressed, out, sandbox, python)
        except DAMAGED as error:
            raise NotExpressibleError(damage(error)) from error
        except StorageError:
            raise
        except (TaskError, SandboxError) as error:
            raise NotExpressibleError(error.message) from error


def _own(source: Path, spec_file: Path) -> Expressed:
    """Read a task that was exported from here."""
    try:
        spec = read_spec(spec_file.read_bytes())
    except ValueError as error:
        raise NotExpressibleError(f"tests/{SPEC_FILE} is not a task of this release ({error})") from error
    gold = source / "solution" / "files"
    return Expressed(spec, source / "tests" / "repo", {path: (gold / path).read_bytes() for path in tree_files(gold)})


def _prove(expressed: Expressed, sandbox: Sandbox, python: Path) -> None:
    """Prove a task as every task of ours is proven; an impossible one needs no proof."""
    solved = 0.0 if expressed.spec.impossible else 1.0
    for changes, wanted, who in ((expressed.gold, solved, "its solution"), ({}, 0.0, "its untouched tree")):
        report = grade(expressed.spec, expressed.repo, changes, sandbox=sandbox, python=python)
        if isinstance(report.reward, Unscored):
            raise SandboxError(report.reward.reason)
        if report.reward != wanted:
            why = f" ({report.reasons[0]})" if report.reasons else ""
            raise NotExpressibleError(f"{who} scores {report.reward:g} here{why}")


def _with_checks(expressed: Expressed, sandbox: Sandbox, python: Path) -> Expressed:
    """Give a task checks that are tried here, besides those it came with: its author may say anything of their strength."""
    brought = expressed.spec.hidden
    found = checks_of_solution(expressed.spec, expressed.repo, expressed.gold, sandbox=sandbox, python=python)
    known = {program.steps for program in found.programs}
    checks = replace(
        found,
        programs=(*found.programs, *(program for program in brought.programs if program.steps not in known)),
        anti_tests=tuple(dict.fromkeys((*found.anti_tests, *brought.anti_tests))),
    )
    return replace(expressed, spec=replace(expressed.spec, hidden=checks))


def _write(expressed: Expressed, out: Path, sandbox: Sandbox, python: Path) -> Task:
    """Write the task in the form `write_task` takes: the tree with the feature, and the files without it. A file the solution
    adds starts empty. It appears in `out` only when its solution cannot be read elsewhere on this machine."""
    files = {path: expressed.repo / path for path in expressed.gold}
    without = {path: file.read_bytes() if file.is_file() else b"" for path, file in files.items()}
    spec = expressed.spec
    name = spec.task_id.replace("/", "__")
    staged = out / ".build" / "staged" / name
    facts = {"imported": "harbor", **numbers_of(spec.hidden), "parts_not_asked": spec.hidden.untold}
    with solved_tree(expressed.repo, expressed.gold) as pristine:
        task = write_task(spec, staged, pristine=pristine, deleted=without, provenance=facts)
    refuse_shown(task, sandbox, python)
    publish_task(staged, out / name)
    return load_task(out / name)
