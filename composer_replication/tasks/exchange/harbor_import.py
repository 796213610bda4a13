"""Import of Harbor task directories, as far as they can be expressed as ours; the others are refused with a reason.

A directory that `export_harbor` wrote comes back as the task it was. Of others is asked: the tree comes from the build context
(`COPY` into the working directory, packages from pip at most), the verifier is pytest over files in `tests/`, and `solve.sh`
changes files of the tree. It is run in the sandbox, tests decide which are fail-to-pass, and the grader has the last word: the
solution must score 1 and the untouched tree 0. The tests become part of the tree: here an agent sees what it is graded with,
but for the hidden checks, which are found on the solved tree.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

from composer_replication.languages.python.functions import Skipped
from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.tasks.exchange.foreign_harbor import Expressed, NotExpressibleError, express
from composer_replication.tasks.exchange.harbor_export import SPEC_FILE
from composer_replication.tasks.files import solved_tree, tree_files
from composer_replication.tasks.held_out.checks import numbers_of
from composer_replication.tasks.held_out.solution_checks import checks_of_solution
from composer_replication.tasks.store import Task, write_task
from composer_replication.types import TaskSpec, Unscored, from_json
from composer_replication.types.errors import SandboxError, TaskError


def import_harbor(folder: Path, out: Path, *, sandbox: Sandbox, python: Path) -> tuple[list[Task], list[Skipped]]:
    """Import every Harbor task at or below `folder` (a folder with `task.toml` and `instruction.md`).

    The others are returned too, each by its folder relative to `folder`, with the reason.

    Args:
        python: runs the tests here; it needs pytest and what the tasks' images would install.

    Raises:
        TaskError: there is no Harbor task.
        SandboxError: the sandbox broke.
        StorageError: `out` cannot be written.
    """
    found = sorted(path.parent for path in folder.rglob("task.toml") if (path.parent / "instruction.md").is_file())
    if not found:
        raise TaskError(f"{folder} holds no Harbor task", fix="name a folder with task.toml and instruction.md, or one above")
    tasks: list[Task] = []
    refused: list[Skipped] = []
    for source in found:
        try:
            tasks.append(_import(source, out, sandbox, python))
        except NotExpressibleError as error:
            refused.append(Skipped(str(source.relative_to(folder)), str(error)))
    return tasks, refused


def _import(source: Path, out: Path, sandbox: Sandbox, python: Path) -> Task:
    with scratch_folder() as work:
        try:
            config = tomllib.loads((source / "task.toml").read_text("utf-8"))
            ours = source / "tests" / SPEC_FILE
            expressed = _own(source, ours) if ours.is_file() else express(source, config, work, sandbox=sandbox, python=python)
            if expressed.spec.task_id in ("", ".", ".."):
                raise NotExpressibleError(f"its name {expressed.spec.task_id!r} is not a name for a folder")
            _prove(expressed, sandbox, python)
            if not ours.is_file():
                expressed = _with_checks(expressed, sandbox, python)
            return _write(expressed, out)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise NotExpressibleError(f"its files cannot be read ({error})") from error


def _own(source: Path, spec_file: Path) -> Expressed:
    """Read a task that was exported from here."""
    try:
        spec = from_json(TaskSpec, json.loads(spec_file.read_text("utf-8")))
    except (ValueError, KeyError, TypeError) as error:
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
    checks = checks_of_solution(expressed.spec, expressed.repo, expressed.gold, sandbox=sandbox, python=python)
    return replace(expressed, spec=replace(expressed.spec, hidden=checks))


def _write(expressed: Expressed, out: Path) -> Task:
    """Write the task in the form `write_task` takes: the tree with the feature, and the files without it. A file the solution
    adds starts empty."""
    files = {path: expressed.repo / path for path in expressed.gold}
    without = {path: file.read_bytes() if file.is_file() else b"" for path, file in files.items()}
    spec = expressed.spec
    facts = {"imported": "harbor", **numbers_of(spec.hidden)}
    with solved_tree(expressed.repo, expressed.gold) as pristine:
        return write_task(spec, out / spec.task_id.replace("/", "__"), pristine=pristine, deleted=without, provenance=facts)
