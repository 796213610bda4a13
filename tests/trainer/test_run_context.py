"""What the arms of a run share."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

from composer_replication.config import load_config
from composer_replication.hints import leaks_gold
from composer_replication.observe import RunDir, Terminal
from composer_replication.tasks import Task, load_task
from composer_replication.tasks.join import can_be_joined
from composer_replication.trainer.run_context import RunContext


def test_hints_may_quote_what_is_still_in_the_tree(run_file: Path) -> None:
    """Only the deleted bodies are secret: not their signatures, and not the functions around them."""
    context = RunContext.open(load_config(run_file), RunDir.create(run_file.parent / "run"), Terminal())
    assert len(context.train) == 4
    for task in context.train:
        (deleted,) = task.spec.deleted
        source = task.gold_files()[deleted.path].decode()
        rules = dict(re.findall(r"def (\w+)\(.*\n.*\n    (return .*)", source))
        gold = context.gold[task.spec.task_id]
        assert leaks_gold(f"Hint: {rules.pop(deleted.qualname)}", gold)
        assert not any(leaks_gold(f"Hint: {statement}", gold) for statement in rules.values())
        signature = next(line for line in source.splitlines() if line.startswith(f"def {deleted.qualname}("))
        assert signature in (task.repo / deleted.path).read_text()
        assert not leaks_gold(f"Hint: see {signature}", gold)


def test_two_tasks_joined_are_practised_on_with_what_is_known_of_both(run_file: Path) -> None:
    run_dir = RunDir.create(run_file.parent / "run")
    context = RunContext.open(load_config(run_file), run_dir, Terminal())
    first, second = next((a, b) for a, b in combinations(context.train, 2) if can_be_joined([a, b]))
    task = context.join(first, second)
    assert isinstance(task, Task), task
    name = task.spec.task_id
    assert task.root == run_dir.path / "tasks" / name
    assert context.coding.pythons[name] == context.coding.pythons[first.spec.task_id]
    assert set(context.gold[name]) == {*context.gold[first.spec.task_id], *context.gold[second.spec.task_id]}
    assert context.contexts[name].instruction == task.spec.instruction
    env = context.make_env(name)
    env.reset()
    assert env.grade().reward == 0.0
    assert context.join(first, second) == load_task(task.root)
