"""Runs leave forgeable tasks out, and say so where they are told to take them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from world import World

from composer_replication.config import load_config
from composer_replication.loss.forward.model_checkpoint import CARD, read_checkpoint, save_checkpoint
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe.run_dir import RunDir
from composer_replication.observe.summary import SummaryRow
from composer_replication.tasks.files import solved_tree
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.store import Task, write_task
from composer_replication.tasks.strength import load_strong_tasks
from composer_replication.trainer.checkpoints.card import FORGEABLE, write_card
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.preflight import check_run
from composer_replication.trainer.report import write_arms_report
from composer_replication.types.errors import TaskError

pytestmark = pytest.mark.slow

WEAKNESS = "a trivial body satisfies its held-out programs: `return 0` in slack"


def weakened(task: Task) -> None:
    """Write the task again as one whose programs are no evidence."""
    spec = replace(task.spec, hidden=replace(task.spec.hidden, weakness=WEAKNESS))
    deleted = {path: (task.repo / path).read_bytes() for path in task.gold_files()}
    with solved_tree(task.repo, task.gold_files()) as pristine:
        write_task(spec, task.root, pristine=pristine, deleted=deleted, provenance=task.provenance)


@pytest.fixture
def config_file(world: World, run_file: Path, tmp_path: Path) -> Path:
    """A run whose first task is forgeable."""
    tasks = tmp_path / "train"
    shutil.copytree(world.tasks, tasks)
    weakened(load_tasks(tasks)[0])
    run_file.write_text(run_file.read_text().replace(str(world.tasks), str(tasks)))
    return run_file


def test_how_many_are_left_out_or_used_is_said(config_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = load_config(config_file).tasks.folder
    count = len(load_tasks(folder))
    load_strong_tasks(folder)
    assert f"1 of {count} tasks of {folder} are forgeable and left out (composer tasks list says why)" in caplog.text
    caplog.clear()
    load_strong_tasks(folder, forgeable=True)
    assert f"1 of {count} tasks of {folder} are forgeable and used: a program that does not implement the feature" in caplog.text


def test_forgeable_tasks_are_left_out_unless_the_run_takes_them(config_file: Path) -> None:
    few = ["--rollout.groups", "1"]
    config = load_config(config_file, few)
    every = {task.spec.task_id for task in load_tasks(config.tasks.folder)}
    forgeable = {task.spec.task_id for task in load_tasks(config.tasks.folder) if task.spec.forgeable}
    assert len(forgeable) == 1
    assert {task.spec.task_id for task in check_run(config).train} == every - forgeable
    asked = load_config(config_file, [*few, "--tasks.forgeable", "true"])
    assert {task.spec.task_id for task in check_run(asked).train} == every
    for task in load_tasks(config.tasks.folder):
        if not task.spec.forgeable:
            weakened(task)
    with pytest.raises(TaskError, match=r"every task of .* is forgeable") as raised:
        check_run(config)
    assert "tasks.forgeable = true" in str(raised.value.fix)


def test_the_report_and_the_card_of_each_checkpoint_say_so(config_file: Path, tmp_path: Path) -> None:
    for asked in (False, True):
        config = load_config(config_file, ["--tasks.forgeable", str(asked).lower()])
        run_dir = RunDir.create(tmp_path / f"run-{asked}")
        write_card(run_dir, config)
        policy, tokenizer = load_policy(config.model)
        saved = save_checkpoint(run_dir.ckpt_path / "main", 1, Learner(policy, config), tokenizer, {})
        read_checkpoint(saved)
        card = (saved / CARD).read_text()
        assert card.startswith("---\nlibrary_name: transformers\n")
        assert f"Trained from `{config.model.path}`" in card
        assert (FORGEABLE in card) is asked
        rows = [SummaryRow(arm="main", pass_at_1=0.0, pass_at_1_se=0.0, rollouts=None, tokens=None, cpu_s=None)]
        write_arms_report(config, run_dir, rows)
        assert ("tasks.forgeable = true" in run_dir.report_path.read_text()) is asked
