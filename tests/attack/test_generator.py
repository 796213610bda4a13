"""What a careless environment leaves lying about: the generator leaves it out of the task, or makes no task of it."""

from __future__ import annotations

import json

import pytest
from attacks import FROM_ELSEWHERE
from project import PROJECT
from suite import PYTHON

from composer_replication.sandbox import Command, Tree
from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.folders import load_tasks

LOOK_AROUND = """
import json, os
names = {"gold.patch", "hidden.json", "MANIFEST.sha256", "baseline.json", ".git", "__pycache__", ".build"}
found = []
for folder, folders, files in os.walk("/"):
    folders[:] = [f for f in folders if os.path.join(folder, f) not in ("/proc", "/sys", "/dev", "/usr")]
    found += [os.path.join(folder, name) for name in (*folders, *files) if name in names]
found = [path for path in found if not path.startswith(tuple(json.loads(os.environ["PREFIXES"])))]
os.write(int(os.environ["COMPOSER_RESULT_FD"]), json.dumps([found, sorted(os.listdir("."))]).encode())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, attack in FROM_ELSEWHERE.items() if attack.left_over is not None])
def test_a_tree_that_gives_the_answer_away(tmp_path, name):
    project = tmp_path / "till"
    for path, text in PROJECT.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    FROM_ELSEWHERE[name].left_over(project)
    left_over = set(tree_files(project)) - set(PROJECT)
    assert left_over
    report = build_tasks(str(project), tmp_path / "tasks")
    told = " ".join(entry.reason for entry in report.dropped if entry.what.endswith("::discounted"))
    made = (
        [task for task in load_tasks(tmp_path / "tasks") if task.spec.deleted[0].qualname == "discounted"] if report.tasks else []
    )
    if made:
        assert not left_over & set(tree_files(made[0].repo))
    else:
        assert "the deleted code is also in" in told or "are in the tree" in told


def test_a_box_holds_the_tree_and_nothing_of_the_task(task, sandbox):
    prefixes = json.dumps([str(PYTHON.parents[1]), *{str(p) for p in PYTHON.resolve().parents[1:2]}])
    command = Command(argv=(str(PYTHON), "-S", "-B", "-c", LOOK_AROUND), python=PYTHON, env={"PREFIXES": prefixes})
    found, root = json.loads(sandbox.run(Tree(base=task.repo), command).channel)
    assert found == []
    assert root == ["README.md", "tests", "till"]
