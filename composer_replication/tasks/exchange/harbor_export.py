"""Export to Harbor task directories (https://harborframework.com/docs/tasks), which are graded without network.

task.toml, instruction.md      what Harbor reads; the verifier gets a separate environment and only /app of the agent's
environment/                   Dockerfile and repo/, the task's tree, which becomes /app
solution/                      solve.sh and files/, copied over /app
                               (in other languages than Python prepare/ too: it makes the image ready, and does not stay in it)
tests/                         test.sh; repo/, task.json with the hidden checks, and grader/, this package's own, so that there is
                               only one; the agent's container never has this folder
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from composer_replication.tasks.exchange import harbor_grade
from composer_replication.tasks.exchange.grader_files import copy_grader
from composer_replication.tasks.exchange.images import TREE, image_pins, write_image
from composer_replication.tasks.exchange.pins import Pins
from composer_replication.tasks.files import copy_tree, storage_errors, write_files
from composer_replication.tasks.store import Task
from composer_replication.types import TaskSpec, to_json

SPEC_FILE = "task.json"
GRADE_FILE = "grade.py"
_ORGANISATION = "composer-replication"
_AGENT_S, _BUILD_S, _VERIFIER_SPARE_S = 1800.0, 900.0, 60.0

_IN_THE_IMAGE = f"""\
COPY {TREE} /app
WORKDIR /app
"""
_SOLVE = """\
#!/bin/sh
set -eu
cp -R "$(dirname "$0")/files/." /app/
"""
_TEST = """\
#!/bin/sh
set -eu
exec python3 -I -B "$(dirname "$0")/grade.py" "$(dirname "$0")" /app /logs/verifier
"""


def export_harbor(tasks: Sequence[Task], out: Path, *, pythons: Mapping[str, Path]) -> list[Path]:
    """Write one directory per task below `out`, replacing those of the same name; returns them.

    Args:
        pythons: by task id, the interpreter that runs the tests here; its version and the versions of what the tree declares go
            into the image.

    Raises:
        TaskError: a task is damaged, its interpreter does not run, or its language comes from another package.
        StorageError: `out` cannot be written.
    """
    written = []
    for task in tasks:
        root = out / task.spec.task_id.replace("/", "__")
        with storage_errors(out):
            shutil.rmtree(root, ignore_errors=True)
            for part in ("environment", "solution", "tests"):
                (root / part).mkdir(parents=True)
            _write(root, task, image_pins(task, pythons[task.spec.task_id]))
        written.append(root)
    return written


def _write(root: Path, task: Task, pins: Pins) -> None:
    spec = task.spec
    (root / "task.toml").write_text(tomli_w.dumps(_config(spec)), "utf-8")
    (root / "instruction.md").write_text(f"{spec.instruction}\n\nThe repository is in /app.\n", "utf-8")
    write_image(root / "environment", task, pins)
    with (root / "environment" / "Dockerfile").open("a", encoding="utf-8") as file:
        file.write(_IN_THE_IMAGE)
    copy_tree(task.repo, root / "environment" / TREE)
    write_files(root / "solution" / "files", task.gold_files())
    _script(root / "solution" / "solve.sh", _SOLVE)
    _script(root / "tests" / "test.sh", _TEST)
    (root / "tests" / SPEC_FILE).write_text(json.dumps(to_json(spec), indent=1) + "\n", "utf-8")
    copy_tree(task.repo, root / "tests" / "repo")
    shutil.copy(harbor_grade.__file__, root / "tests" / GRADE_FILE)
    copy_grader(spec.language, root / "tests" / "grader")


def _script(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    path.chmod(0o755)


def _config(spec: TaskSpec) -> dict[str, Any]:
    lines = sum(deletion.lines for deletion in spec.deleted)
    return {
        "schema_version": "1.4",
        "artifacts": ["/app"],
        "task": {
            "name": f"{_ORGANISATION}/{spec.task_id.replace('/', '__')}",
            "description": spec.instruction,
            "keywords": [spec.language, "feature-deletion"],
        },
        "metadata": {
            "source": spec.source,
            "source_digest": spec.source_digest,
            "deleted": [f"{deletion.path}::{deletion.qualname}" for deletion in spec.deleted],
            "deleted_lines": lines,
            "fail_to_pass": len(spec.fail_to_pass),
            "pass_to_pass": len(spec.pass_to_pass),
        },
        "verifier": {
            # tests and held-out programs; runs killed from outside are repeated
            "timeout_sec": (4 if spec.hidden.programs else 2) * spec.test_timeout_s + _VERIFIER_SPARE_S,
            "environment_mode": "separate",
            "network_mode": "no-network",
        },
        "agent": {"timeout_sec": _AGENT_S},
        "environment": {"build_timeout_sec": _BUILD_S, "network_mode": "no-network"},
    }
