"""Exported tasks under Harbor's own loader and its own trial runner.

`harbor run` starts containers; `harbor_box.py` beside this file stands in for them with bubblewrap, without network. All else is
Harbor's: its oracle and its idle agent, the transfer of /app to a verifier of its own, the verifier, the reward.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from harbor.models.task.task import Task as HarborTask

from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.exchange import export_harbor, import_harbor
from composer_replication.types import to_json


@pytest.fixture(scope="module")
def exported(tasks, tmp_path_factory):
    return export_harbor(
        tasks, tmp_path_factory.mktemp("harbor"), pythons={task.spec.task_id: Path(sys.executable) for task in tasks}
    )


def test_harbors_loader_takes_every_task(exported, tasks):
    for root, task in zip(exported, tasks, strict=True):
        loaded = HarborTask(task_dir=root)
        assert loaded.config.task.name == f"composer-replication/{root.name}"
        assert task.spec.instruction in loaded.instruction
        assert loaded.config.environment.network_mode == "no-network"
        assert loaded.config.verifier.network_mode == "no-network"
        assert loaded.config.verifier.environment_mode == "separate"
        assert [getattr(artifact, "source", artifact) for artifact in loaded.config.artifacts] == ["/app"]


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_a_job_of_its_own_runner(exported, tmp_path, agent, reward):
    command = [
        *(Path(sys.executable).parent / "harbor", "run", "--path", exported[0].parent, "--agent", agent),
        *("--env", "harbor_box:BoxEnvironment", "--jobs-dir", tmp_path, "--n-concurrent", "1"),
    ]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "HARBOR_TELEMETRY": "0"}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = [json.loads(path.read_text()) for path in tmp_path.glob("*/*/result.json")]
    assert [trial["verifier_result"]["rewards"] for trial in trials] == [{"reward": reward}] * len(exported), done.stdout
    for report in tmp_path.glob("*/*/verifier/report.json"):
        verdict = json.loads(report.read_text())
        assert (verdict["reward"], bool(verdict["isolation"])) == (reward, True)


def test_what_was_exported_comes_back_as_it_was(exported, tasks, tmp_path):
    back, refused = import_harbor(exported[0].parent, tmp_path, sandbox=open_sandbox(), python=Path(sys.executable))
    assert refused == []
    for ours, theirs in zip(tasks, back, strict=True):  # with what was found here besides
        assert to_json(replace(theirs.spec, hidden=ours.spec.hidden)) == to_json(ours.spec)
        assert {p.steps for p in theirs.spec.hidden.programs} >= {p.steps for p in ours.spec.hidden.programs}
    assert [task.gold_files() for task in back] == [task.gold_files() for task in tasks]
