"""What a run checks before it starts: with the wrong interpreter every reward would be 0, and nothing would say why."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
import torch
from world import World

from composer_replication.config import ModelConfig, load_config
from composer_replication.loss.forward.models import load_policy
from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.interpreters import build_python
from composer_replication.trainer.preflight import _split, check_run, fingerprint, prove_solutions
from composer_replication.types.errors import ComposerError, ConfigError, TaskError


def test_a_solution_that_fails_stops_the_run(run_file: Path) -> None:
    checked = check_run(load_config(run_file))
    box = open_sandbox()
    config = load_config(run_file)
    prove_solutions(config, checked, box)
    first = checked.train[0]
    needs_more = replace(first, spec=replace(first.spec, fail_to_pass=("tests/test_absent.py::test_it",)))
    with pytest.raises(TaskError, match=r"does not pass its tests with .*python") as raised:
        prove_solutions(config, replace(checked, train=[needs_more]), box)
    assert "tasks.python" in str(raised.value)


def test_impossible_tasks_are_practised_and_neither_held_out_nor_proven(run_file: Path) -> None:
    config = load_config(run_file)
    tasks = [replace(t, spec=replace(t.spec, impossible=True)) for t in load_tasks(config.tasks.train)]
    train, held_out = _split(tasks, 0.5)
    assert (len(train), held_out) == (len(tasks), [])
    prove_solutions(config, replace(check_run(config), train=tasks, held_out=[]), open_sandbox("unsafe-subprocess"))


def test_the_limits_are_those_of_the_run(run_file: Path) -> None:
    config = load_config(run_file, ["--sandbox.processes", "1", "--sandbox.memory_mb", "1", "--sandbox.disk_mb", "1"])
    with pytest.raises(ComposerError) as raised:
        prove_solutions(config, check_run(config), open_sandbox())
    assert raised.value.fix is not None


@pytest.mark.parametrize(
    ("families", "price", "options", "told"),
    [
        (["one", "one"], 0.0, {}, "agreement_threshold is 2, but the teachers are of one family"),
        (["one", "two"], 1.0, {}, "has a price and loss.replay.max_total_usd is 0"),
        (["one", "two"], 1.0, {"max_total_usd": 1.0, "agreement_threshold": 3}, "are of 2 families"),
        (["one", "one"], 1.0, {"max_total_usd": 1.0, "agreement_threshold": 1}, None),
    ],
)
def test_teachers_that_can_give_no_pair(
    run_file: Path, families: list[str], price: float, options: dict[str, float], told: str | None
) -> None:
    prices = {"usd_per_million_input": price, "usd_per_million_output": price}
    rows = [{"name": f"t{i}", "model": "m", "api_key_env": "", "family": f, **prices} for i, f in enumerate(families)]
    run_file.write_text(tomli_w.dumps(tomllib.loads(run_file.read_text()) | {"teachers": rows, "loss": {"replay": options}}))
    config = load_config(run_file)
    if told is None:
        check_run(config)
    else:
        with pytest.raises(ConfigError, match=told):
            check_run(config)


def test_a_share_of_the_tasks_is_held_out(run_file: Path) -> None:
    data = tomllib.loads(run_file.read_text())
    del data["tasks"]["held_out"]
    run_file.write_text(tomli_w.dumps(data))
    assert not check_run(load_config(run_file)).held_out
    split = check_run(load_config(run_file, ["--tasks.held_out_share", "0.3"]))
    assert (len(split.train), len(split.held_out)) == (2, 2)
    assert not {t.spec.task_id for t in split.train} & {t.spec.task_id for t in split.held_out}
    assert check_run(load_config(run_file, ["--tasks.held_out_share", "0.3"])) == split


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
