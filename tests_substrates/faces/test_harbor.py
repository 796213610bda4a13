"""Exported tasks under Harbor's own loader, and their own scripts run at the paths Harbor gives them, without network.

Harbor starts containers; here a box of bubblewrap stands in for one: a root of its own with /usr, this interpreter, the task's
`environment/repo` at /app, `solution/` at /solution, `tests/` at /tests and an empty /logs/verifier, and no network at all.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harbor.models.task.task import Task as HarborTask

from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.exchange import export_harbor, import_harbor
from composer_replication.types import to_json


@pytest.fixture(scope="module")
def exported(tasks, tmp_path_factory):
    return export_harbor(tasks, tmp_path_factory.mktemp("harbor"), python=Path(sys.executable))


@pytest.fixture
def container(tmp_path):
    """Run commands one after the other in the task's container; returns the verifier's folder of logs."""

    def run(root, *commands):
        app, logs = tmp_path / "app", tmp_path / "logs"
        shutil.copytree(root / "environment" / "repo", app)
        (logs / "verifier").mkdir(parents=True)
        for command in commands:
            done = subprocess.run([*box(root, app, logs), *command], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        return logs / "verifier"

    return run


def box(root, app, logs):
    interpreter = {sys.prefix, sys.base_prefix}
    links = [("usr/bin", "/bin"), ("usr/lib", "/lib"), ("usr/lib64", "/lib64"), ("usr/sbin", "/sbin")]
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--clearenv", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
        *("--setenv", "PATH", f"{sys.prefix}/bin:/usr/bin", "--setenv", "HOME", "/tmp", "--ro-bind", "/usr", "/usr"),
        *(word for target, link in links for word in ("--symlink", target, link)),
        *(word for path in sorted(interpreter) for word in ("--ro-bind", path, path)),
        *("--bind", app, "/app", "--ro-bind", root / "solution", "/solution", "--ro-bind", root / "tests", "/tests"),
        *("--bind", logs, "/logs", "--chdir", "/app"),
    ]


def test_harbors_loader_takes_every_task(exported, tasks):
    for root, task in zip(exported, tasks, strict=True):
        loaded = HarborTask(task_dir=root)
        assert loaded.config.task.name == f"composer-replication/{root.name}"
        assert task.spec.instruction in loaded.instruction
        assert loaded.config.environment.network_mode == "no-network"
        assert loaded.config.verifier.network_mode == "no-network"
        assert loaded.config.verifier.environment_mode == "separate"
        assert [getattr(artifact, "source", artifact) for artifact in loaded.config.artifacts] == ["/app"]


def test_the_oracle_scores_one_and_doing_nothing_zero(exported, container, tmp_path):
    for root in exported:
        solve, test = ("bash", "/solution/solve.sh"), ("bash", "/tests/test.sh")
        for commands, reward in (((solve, test), 1.0), ((test,), 0.0)):
            logs = container(root, *commands)
            assert float((logs / "reward.txt").read_text()) == reward
            report = json.loads((logs / "report.json").read_text())
            assert report["reward"] == reward
            assert report["isolation"]
            for folder in ("app", "logs"):
                shutil.rmtree(tmp_path / folder)


def test_there_is_no_network_where_they_are_graded(exported, container):
    code = "import socket, sys\ntry:\n socket.create_connection(('1.1.1.1', 53), 2)\nexcept OSError:\n sys.exit(0)\nsys.exit(1)"
    container(exported[0], ("python3", "-c", code))


def test_what_was_exported_comes_back_as_it_was(exported, tasks, tmp_path):
    back, refused = import_harbor(exported[0].parent, tmp_path, sandbox=open_sandbox(), python=Path(sys.executable))
    assert refused == []
    assert [to_json(task.spec) for task in back] == [to_json(task.spec) for task in tasks]
    assert [task.gold_files() for task in back] == [task.gold_files() for task in tasks]
