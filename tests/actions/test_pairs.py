"""The labelled pairs: what was done by both actions in real trees says whether they are one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from trees import FULL

from composer_replication.actions.agreement import Scene, compare
from composer_replication.envs.tools import TOOLSETS

HERE = Path(__file__).parent
ROWS = [json.loads(line) for line in (HERE / "pairs.jsonl").read_text("utf-8").splitlines()]
SCENE = Scene(files=FULL, complete=True, tools=TOOLSETS["shell"])
LEAST_RECALL = {
    "shell: quoting": 0.95,
    "shell: layout": 1.0,
    "shell: flags": 0.99,
    "shell: pytest": 1.0,
    "shell: combined": 1.0,
    "shell: expansion": 1.0,
    "tools": 1.0,
    "edits: reformatted": 1.0,
    "edits: same effect": 1.0,
    "edits: several files": 1.0,
    "edits: text": 1.0,
}
"""Of the pairs of a class that are the same, the share that is found to be."""


def of(label):
    return [row for row in ROWS if row["label"] == label]


def test_there_are_enough_pairs_of_both_kinds():
    assert len(of("same")) >= 250
    assert len(of("different")) >= 250
    assert len({(row["one"], row["other"]) for row in ROWS}) == len(ROWS)


def test_nothing_that_does_something_else_is_the_same():
    assert [(row["one"], row["other"]) for row in of("different") if compare(row["one"], row["other"], SCENE).same] == []


def test_nothing_that_does_the_same_is_different():
    assert [(row["one"], row["other"]) for row in of("same") if compare(row["one"], row["other"], SCENE).diff] == []


def test_recall_of_every_class():
    found = Counter(row["class"] for row in of("same") if compare(row["one"], row["other"], SCENE).same)
    of_all = Counter(row["class"] for row in of("same"))
    assert {name: found[name] / count for name, count in of_all.items() if found[name] / count < LEAST_RECALL[name]} == {}


def test_edits_that_differ_are_told_apart():
    """But where only a comment that tools read, or the end of a file, differs: that is undecided."""
    near = [row for row in of("different") if row["class"] == "edits: near miss"]
    assert sum(compare(row["one"], row["other"], SCENE).diff for row in near) >= 0.85 * len(near)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_order_changes_nothing(row):
    assert compare(row["one"], row["other"], SCENE) == compare(row["other"], row["one"], SCENE)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_labels_are_what_happens():
    """Every command runs again, every edit is made again."""
    done = subprocess.run(
        [sys.executable, HERE / "make_pairs.py", "--check"], cwd=HERE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
