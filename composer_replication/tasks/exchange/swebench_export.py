"""Export to SWE-bench rows (https://www.swebench.com/SWE-bench/guides/datasets/) and the repositories they refer to.

A row's `base_commit` is the only commit of `repositories/INSTANCE.bundle`: the task's tree without the test files that hold its
tests. `test_patch` adds those, `patch` is the solution; both apply to `base_commit`, in any order. Unlike an agent that works on
the task itself, one that works on the row does not see the tests. A row has no place for hidden checks, and says that its tests
pass with its patch: hidden checks are left out, and so are impossible tasks.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.tasks.files import copy_tree, storage_errors, write_files, write_whole
from composer_replication.tasks.store import Task
from composer_replication.types.errors import TaskError

_ROWS = "tasks.jsonl"
_BUNDLES = "repositories"
_MOMENT = "2000-01-01T00:00:00+00:00"
"""The commit's date: equal trees have equal commits."""
_GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "composer",
    "GIT_AUTHOR_EMAIL": "composer@localhost",
    "GIT_AUTHOR_DATE": _MOMENT,
    "GIT_COMMITTER_NAME": "composer",
    "GIT_COMMITTER_EMAIL": "composer@localhost",
    "GIT_COMMITTER_DATE": _MOMENT,
}


def export_swebench(tasks: Sequence[Task], out: Path) -> Path:
    """Write `tasks.jsonl`, one row per possible task, and a git bundle for each; returns the path of the rows.

    Raises:
        TaskError: git is missing or fails, every task is impossible, or one is not in Python.
        StorageError: `out` cannot be written.
    """
    other = next((task for task in tasks if task.spec.language != "python"), None)
    if other is not None:
        raise TaskError(
            f"{other.spec.task_id} is a task in {other.spec.language}, and SWE-bench's rows are of tasks in Python",
            fix="export folders of Python tasks alone; --format harbor and composer tasks push take tasks in every language",
        )
    possible = [task for task in tasks if not task.spec.impossible]
    if not possible:
        raise TaskError("every task is impossible, which a row cannot say", fix="export others, or to Harbor")
    with storage_errors(out):
        (out / _BUNDLES).mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps(_row(task, out), ensure_ascii=False) + "\n" for task in possible)
    write_whole(out / _ROWS, rows.encode())
    return out / _ROWS


def _row(task: Task, out: Path) -> dict[str, Any]:
    spec = task.spec
    instance = spec.task_id.replace("/", "__")
    bundle = out / _BUNDLES / f"{instance}.bundle"
    with scratch_folder() as scratch:
        tree = scratch / "tree"
        copy_tree(task.repo, tree)
        ids = (*task.spec.fail_to_pass, *task.spec.pass_to_pass)
        tests = {path: (tree / path).read_bytes() for path in sorted({i.partition("::")[0] for i in ids})}
        for path in tests:
            (tree / path).unlink()
        _git(tree, "init", "--quiet", "--initial-branch=main")
        _git(tree, "add", "--all", "--force")
        _git(tree, "commit", "--quiet", "--allow-empty", "--message=The repository without the feature")
        commit = _git(tree, "rev-parse", "HEAD").strip()
        _git(tree, "bundle", "create", "--quiet", str(bundle.absolute()), "HEAD", "main")
        patch, test_patch = _patch(tree, task.gold_files()), _patch(tree, tests)
    return {
        "instance_id": instance,
        "repo": spec.source,
        "base_commit": commit,
        "environment_setup_commit": commit,
        "patch": patch,
        "test_patch": test_patch,
        "problem_statement": spec.instruction,
        "hints_text": "",
        "created_at": _MOMENT,
        "version": spec.source_digest[:12],
        "FAIL_TO_PASS": json.dumps(spec.fail_to_pass),
        "PASS_TO_PASS": json.dumps(spec.pass_to_pass),
        "repository_bundle": bundle.relative_to(out).as_posix(),
    }


def _patch(tree: Path, files: Mapping[str, bytes]) -> str:
    """Return the diff these files make to the commit; the tree is left as it was."""
    write_files(tree, files)
    _git(tree, "add", "--all", "--force")
    patch = _git(tree, "diff", "--cached", "--binary", "HEAD")
    _git(tree, "reset", "--quiet", "--hard", "HEAD")
    return patch


def _git(tree: Path, *arguments: str) -> str:
    """Run git and return its output. Raises TaskError; undecodable bytes of a patch are an error too, since the row would not
    apply."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=tree, env={**os.environ, **_GIT}, capture_output=True, check=True, stdin=subprocess.DEVNULL
        )
        return done.stdout.decode()
    except FileNotFoundError as error:
        raise TaskError("git is not installed", fix="install git") from error
    except subprocess.CalledProcessError as error:
        raise TaskError(f"git {arguments[0]} failed: {error.stderr.decode(errors='replace').strip()[-300:]}") from error
    except UnicodeDecodeError as error:
        raise TaskError("a patch is not UTF-8, which a JSON row cannot hold", fix="leave that task out") from error
