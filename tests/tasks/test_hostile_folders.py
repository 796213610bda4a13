"""Task folders of a stranger: reading and exporting them touches nothing beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.tasks.spec import is_task_id, spec_of
from composer_replication.tasks.store import load_tasks
from composer_replication.types import Deletion, TaskSpec, to_json
from composer_replication.types.errors import TaskError

SPEC = TaskSpec(
    task_id="shop/a",
    source="shop",
    source_digest="0" * 64,
    instruction="Bring back a.",
    deleted=(Deletion(path="shop.py", qualname="a", lines=1),),
    fail_to_pass=("test_shop.py::test_a",),
    pass_to_pass=(),
    editable=("shop.py",),
    test_timeout_s=60.0,
)
LEADING_AWAY = ("", ".", "..", "../up", "a/../b", "/etc", "a//b", "a/", ".hidden", "a/.b", "a\\b", "a\x1b[2J", "a\n", "x" * 201)


@pytest.mark.parametrize("task_id", LEADING_AWAY)
def test_an_id_that_is_no_name_is_no_task(task_id: str) -> None:
    """Exports and joined tasks are written below it."""
    with pytest.raises(ValueError, match="is not a name for a folder"):
        spec_of(to_json(SPEC) | {"task_id": task_id})


@pytest.mark.parametrize(
    "task_id", ["shop/a", "django__django-123", "ordered-set-orderedset-__len__-6f8b6787", "shop/total+mean"]
)
def test_ids_in_use_are_names(task_id: str) -> None:
    assert is_task_id(task_id)
    assert spec_of(to_json(SPEC) | {"task_id": task_id}).task_id == task_id


@pytest.mark.parametrize("name", ["..old", "...old", ".\\.old"])
def test_reading_a_suite_deletes_nothing_beside_it(tmp_path: Path, name: str) -> None:
    """What a killed build had put aside is brought back; a name that means the suite itself is none of that."""
    suite = tmp_path / "suite"
    (suite / name).mkdir(parents=True)
    precious = tmp_path / ".suite.old" / "precious"
    precious.parent.mkdir()
    precious.write_text("mine")
    with pytest.raises(TaskError, match="holds no tasks"):
        load_tasks(suite)
    assert precious.read_text() == "mine"
