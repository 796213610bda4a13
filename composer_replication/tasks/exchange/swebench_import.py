"""Import of SWE-bench-style instances, turned into tasks by reverting their gold patch.

A row says which commit of a repository a patch solved an issue in, and which tests tell (`patch`, `test_patch`, `FAIL_TO_PASS`,
`PASS_TO_PASS`; 2310.06770, section 2). Its tree with both patches is the solved one; the task's is the same without the gold
patch, its tests in place. A row of SWE-smith has a patch that breaks the code (2504.21798, section 2): its base tree is the
solved one, and the task's has the patch. That is a reversion, not a feature deletion, and `provenance` says so. What a row claims
about its tests is believed only as far as real runs confirm it here.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from composer_replication.languages.functions import Skipped
from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.sandbox.grading.pytest_run import require_modules
from composer_replication.sandbox.opening import remote_python
from composer_replication.sandbox.protocol import Sandbox
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.tasks.exchange.foreign_files import DAMAGED, damage
from composer_replication.tasks.exchange.row_environments import RowEnvironments
from composer_replication.tasks.exchange.swebench_rows import Instance, read_instances
from composer_replication.tasks.files import storage_errors, write_whole
from composer_replication.tasks.index import write_index
from composer_replication.tasks.proofs.reversion import editable_of, write_reversion
from composer_replication.tasks.report import BUILD_REPORT, BuildEvent, BuildOptions, Progress
from composer_replication.tasks.sources.benchmarks import Benchmarks
from composer_replication.tasks.sources.credentials import Credential, find_credentials, refuse_credentials
from composer_replication.tasks.sources.layout import guess_layout
from composer_replication.tasks.sources.licence import check_licence, licence_of
from composer_replication.tasks.sources.source import STATE, PristineTree, digest_of, fetch_source
from composer_replication.tasks.store import Task, load_task, publish_task
from composer_replication.types import TaskSpec
from composer_replication.types.errors import SandboxError, SourceError, StorageError, TaskError, one_of

_BROKEN = "Tests of the project fail, such as {}. Find out why, and mend the code."
"""The instruction of a row that has none."""
_MOST_NAMED = 3


def build_instances(
    file: Path, out: Path, *, only: str = "", checkout: str = "", options: BuildOptions, progress: Progress
) -> tuple[list[Task], list[Skipped]]:
    """Build the tasks of a file's instances below `out`, and give the reasons for the others; existing ones are not built again.

    No row ends the others: also one that is no instance, or on which the sandbox breaks, is given with its reason.

    Args:
        only: the id of one instance; empty for all.
        checkout: a git URL, or the path of a repository that has the commits; the row's `repo` when empty.
        options: of these, `max_tasks`, `python`, `install`, `sandbox`, `timeout_s`, `task_timeout_s`, `licences`, `benchmarks`
            and `allow_credentials` count. With `install` each row has an environment, which it may share, below `out`; without,
            all have one interpreter.

    Raises:
        SourceError: there is no such file or instance.
        TaskError: the interpreter has no pytest, or the state of `out` is another release's.
        SandboxError: no sandbox is available, or the sandbox broke before the first instance.
        StorageError: `out` cannot be written.
    """
    rows = list(read_instances(file))
    known = [row for row in rows if isinstance(row, Instance)]
    instances = [instance for instance in known if only in ("", instance.instance_id)]
    if not rows:
        raise SourceError(f"{file} has no instance", fix="name a JSONL file with the columns of SWE-bench")
    if not instances and only:
        raise SourceError(f"{file} has no instance {only}", fix=one_of(only, (instance.instance_id for instance in known)))
    sandbox = open_sandbox(options.sandbox)
    python = (options.python or remote_python(options.sandbox) or Path(sys.executable)).absolute()
    environments = _environments(out, sandbox, python, options)
    tasks: list[Task] = []
    dropped = [row for row in rows if isinstance(row, Skipped) and not only]
    last = ""
    for instance in [*instances, None]:
        done = len(tasks) + len(dropped)
        progress(BuildEvent("validating", done, len(instances), len(tasks), options.max_tasks, len(dropped), last))
        if instance is None or len(tasks) == options.max_tasks:
            break
        try:
            task = _built(out / task_id_of(instance)) or revert(
                instance, checkout, out, sandbox=sandbox, python=environments or python, options=options
            )
            tasks.append(task)
            last = f"{instance.instance_id}: a task"
            continue
        except StorageError:
            raise
        except (TaskError, SandboxError) as error:
            reason = error.message
        except DAMAGED as error:
            reason = damage(error)
        left = instance.install.left() if environments and instance.install else ""
        dropped.append(Skipped(instance.instance_id, f"{reason}; {left}" if left else reason))
        last = f"{instance.instance_id}: {dropped[-1].reason}"
    record = {
        "source": file.name,
        "python": str(python),
        "pythons": {task.spec.task_id: own for task in tasks if (own := task.provenance.get("python"))},
        "tasks": [task.spec.task_id for task in tasks],
        "dropped": [asdict(entry) for entry in dropped],
    }
    write_index(out)
    write_whole(out / BUILD_REPORT, json.dumps(record, indent=1).encode() + b"\n")
    return tasks, dropped


def _environments(out: Path, sandbox: Sandbox, python: Path, options: BuildOptions) -> RowEnvironments | None:
    """Return what makes an environment a row where that was asked for. Raises TaskError and SourceError."""
    if not options.install:
        require_modules(sandbox, python, "pytest")
        return None
    if remote_python(options.sandbox) is not None:
        fix = "make an environment there, and name its interpreter with --python PATH"
        raise SourceError("nothing can be installed on the machine of a remote sandbox", fix=fix)
    return RowEnvironments(out, sandbox, options)


def _built(root: Path) -> Task | None:
    """Return the intact task at `root`, from an earlier call."""
    try:
        return load_task(root)
    except TaskError:
        return None


def revert(
    instance: Instance, checkout: str, out: Path, *, sandbox: Sandbox, python: Path | RowEnvironments, options: BuildOptions
) -> Task:
    """Write the task of one instance below `out`, proven with the grader: gold code 1 and untouched tree 0, twice each.

    Pass-to-pass tests that do not pass every time are left out, and what remains is proven again, with its hidden checks.

    Args:
        checkout: a git URL, or the path of a repository that has the commit; the row's `repo` when empty.
        python: the interpreter of the tests, or what makes one.

    Raises:
        SourceError: the commit cannot be fetched, a patch does not apply, removes a file or changes no source, the patch or the
            code around it holds credentials, the licence or a benchmark keeps it out, the row's environment cannot be made, or a
            fail-to-pass test or hidden check does not hold every time.
        SandboxError: the sandbox broke.
        StorageError: the task cannot be written.
    """
    with scratch_folder() as scratch:
        source = fetch_source(instance.source(checkout), scratch / "solved")
        before = _undone(instance, source.tree)
        spec = _spec(instance, source, sorted(before), options.task_timeout_s)
        _refuse_credentials(instance, source.tree, options.allow_credentials)
        licence = licence_of(source.tree)
        check_licence(licence, options.licences, source.label)
        _refuse_benchmarks(instance, source, Benchmarks(options.benchmarks))
        facts = {
            "kind": "reversion of a patch that breaks code" if instance.breaks else "reversion of a gold patch",
            "instance_id": instance.instance_id,
            "base_commit": instance.base_commit,
            "fail_to_pass_claimed": len(instance.fail_to_pass),
            "pass_to_pass_claimed": len(instance.pass_to_pass),
            "licence": licence,
        }
        if isinstance(python, RowEnvironments):
            environments, python = python, python.python_for(source, instance.install)
            facts["python"] = environments.name_of(python)
        staged = out / STATE / "staged" / spec.task_id
        name = f"instance {spec.task_id}"
        write_reversion(spec, staged, name=name, pristine=source.tree, before=before, facts=facts, sandbox=sandbox, python=python)
        publish_task(staged, out / spec.task_id)
    return load_task(out / spec.task_id)


def _undone(instance: Instance, tree: Path) -> dict[str, bytes | None]:
    """Make the solved tree of a base tree, and return the files that the task has otherwise, as it has them.

    Raises:
        SourceError: a patch does not apply or makes a link, or the solution removes a file or changes none.
    """
    name, paths = instance.instance_id, _paths(instance)
    _apply(tree, instance.test_patch, f"the test patch of {name}")
    if instance.breaks:
        _apply(tree, instance.patch, f"the patch of {name}")
        before = _contents(tree, paths)
        _apply(tree, instance.patch, f"the reverse of the patch of {name}", "--reverse")
    else:
        before = _contents(tree, paths)
        _apply(tree, instance.patch, f"the patch of {name}")
    gone = [path for path in paths if not (tree / path).is_file()]
    if gone or not paths:
        what = f"{'adds' if instance.breaks else 'removes'} {gone[0]}" if gone else "changes no file"
        raise SourceError(f"the patch of {name} {what}", fix="leave the instance out: it cannot be reverted")
    return before


def _contents(tree: Path, paths: list[str]) -> dict[str, bytes | None]:
    return {path: file.read_bytes() if (file := tree / path).is_file() else None for path in paths}


def _refuse_benchmarks(instance: Instance, source: PristineTree, benchmarks: Benchmarks) -> None:
    """Raise SourceError when the repository is one of a benchmark, or the patch is about what one of its instances is about."""
    benchmarks.check(source)
    changed = "\n".join(line[1:] for line in instance.patch.splitlines() if re.match(r"[+-](?![+-]{2} )", line))
    if (other := benchmarks.instance_with([changed.encode()])) is not None:
        raise SourceError(f"the patch of {instance.instance_id} is that of {other}, of a benchmark", fix="leave the instance out")


def _refuse_credentials(instance: Instance, tree: Path, allowed: tuple[str, ...]) -> None:
    """Raise SourceError when a line of the patch holds what looks like a credential, or the code beside it a certain one."""
    found, sign = find_credentials(tree, allowed), "-" if instance.breaks else "+"
    added = set(instance.patch.split("\n"))
    for credential in found:
        if f"{sign}{_line(tree, credential)}" in added:
            raise SourceError(
                f"the patch of {instance.instance_id} holds a credential: {credential}",
                fix=f"leave the instance out; if it is made up: --allow-credentials {credential.path}",
            )
    refuse_credentials(found, guess_layout(tree).tests, f"the tree of {instance.instance_id}")


def _line(tree: Path, credential: Credential) -> str:
    return (tree / credential.path).read_bytes().decode(errors="replace").split("\n")[credential.line - 1]


def task_id_of(instance: Instance) -> str:
    """Return the instance's id as a valid folder name. Raises SourceError when nothing of it is left."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", instance.instance_id).lstrip(".")
    if not name.strip(".-"):
        raise SourceError(f"{instance.instance_id!r} is not a name for a task", fix="give the instance another id")
    return name


def _paths(instance: Instance) -> list[str]:
    """Return the paths the gold patch touches, including those it moves files from."""
    names = re.findall(r"^(?:\+\+\+ b|--- a)/(.+?)\t?$", instance.patch, flags=re.MULTILINE)
    return sorted(set(names))


def _apply(tree: Path, patch: str, what: str, *how: str) -> None:
    """Apply a patch to a tree of regular files. Raises SourceError when it does not apply or leaves anything else behind."""
    if not patch.strip():
        return
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    with storage_errors(tree):
        command = ["git", "apply", "--whitespace=nowarn", *how, "-"]
        done = subprocess.run(command, cwd=tree, input=patch.encode(), capture_output=True, env=environment)
    if done.returncode != 0:
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["git gave no reason"])[0]
        raise SourceError(f"{what} does not apply: {said}", fix="check base_commit and the checkout")
    with OpenFolder(tree) as folder:
        entries = folder.listing().entries
    for path, entry in entries.items():
        if not (stat.S_ISREG(entry.info.st_mode) or stat.S_ISDIR(entry.info.st_mode)):
            raise SourceError(f"{what} makes a link: {path} is a link to {entry.target}", fix="leave the instance out")


def _spec(instance: Instance, source: PristineTree, paths: list[str], timeout_s: float) -> TaskSpec:
    layout = guess_layout(source.tree)
    return TaskSpec(
        task_id=task_id_of(instance),
        source=f"{instance.repo or source.name}@{instance.base_commit}",
        source_digest=digest_of(source.tree),
        instruction=instance.problem_statement.strip() or _BROKEN.format(", ".join(sorted(instance.fail_to_pass)[:_MOST_NAMED])),
        deleted=(),
        fail_to_pass=tuple(sorted(instance.fail_to_pass)),
        pass_to_pass=tuple(sorted(instance.pass_to_pass)),
        editable=editable_of(layout, paths, (*instance.fail_to_pass, *instance.pass_to_pass)),
        python_path=layout.python_path,
        test_timeout_s=timeout_s,
    )
