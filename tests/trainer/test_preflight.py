"""What a run checks before it starts: with the wrong interpreter every reward would be 0, and nothing would say why."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from world import World

from composer_replication.config import ModelConfig, load_config
from composer_replication.errors import TaskError
from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.build import build_python
from composer_replication.trainer.models import load_policy
from composer_replication.trainer.preflight import check_run, fingerprint, prove_interpreter


def test_a_solution_that_fails_stops_the_run(run_file: Path) -> None:
    checked = check_run(load_config(run_file))
    box = open_sandbox()
    prove_interpreter(checked, box)
    first = checked.train[0]
    needs_more = replace(first, spec=replace(first.spec, fail_to_pass=("tests/test_absent.py::test_it",)))
    with pytest.raises(TaskError, match=r"does not pass its tests with .*python") as raised:
        prove_interpreter(replace(checked, train=[needs_more]), box)
    assert "tasks.python" in str(raised.value)


def test_the_interpreter_of_the_build_is_used(tmp_path: Path) -> None:
    assert build_python(tmp_path) == Path(sys.executable)
    elsewhere = tmp_path / "python"
    elsewhere.touch()
    (tmp_path / "build.json").write_text(json.dumps({"python": str(elsewhere)}))
    assert build_python(tmp_path) == elsewhere
    elsewhere.unlink()
    with pytest.raises(TaskError, match="which is gone"):
        build_python(tmp_path)
    moved = tmp_path / ".venv" / "bin" / "python"
    moved.parent.mkdir(parents=True)
    moved.touch()
    assert build_python(tmp_path) == moved
    (tmp_path / "build.json").write_text("[]")
    with pytest.raises(TaskError, match="names no interpreter"):
        build_python(tmp_path)


def test_a_fingerprint_follows_weights_and_tasks(run_file: Path, world: World) -> None:
    tasks = check_run(load_config(run_file)).train
    policy, _ = load_policy(ModelConfig(path=str(world.policy), device="cpu"))
    before = fingerprint(policy, tasks)
    assert fingerprint(policy, tasks) == before
    assert fingerprint(policy, tasks[1:])["tasks"] != before["tasks"]
    with torch.no_grad():
        next(policy.parameters()).view(-1)[0] += 1e-3
    assert fingerprint(policy, tasks)["starting weights"] != before["starting weights"]
