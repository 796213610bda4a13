"""Functions that undo each other are not left out together: no pair of trivial bodies is rewarded where one alone is not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from composer_replication.sandbox import open_sandbox
from composer_replication.tasks import BuildOptions, Task, build_tasks, load_tasks
from composer_replication.tasks.join import join_tasks

pytestmark = pytest.mark.slow

SHOP = '''
"""Texts as runs of equal characters."""


class Runs:
    """A text, compressed."""

    def __init__(self):
        self.pairs = []


def compress(text):
    """Return the runs of a text: each character once, with how often it stands there in a row."""
    runs = Runs()
    for character in text:
        if runs.pairs and runs.pairs[-1][0] == character:
            runs.pairs[-1][1] += 1
        else:
            runs.pairs.append([character, 1])
    return runs


def expand(runs):
    """Return the text that was compressed."""
    return "".join(character * count for character, count in runs.pairs)


def longest(runs):
    """Return the length of the longest run."""
    return max((count for _, count in runs.pairs), default=0)
'''
ROUND_TRIP = """
import pytest
from shop import compress, expand, longest


@pytest.mark.parametrize("text", ["aaabbc", "x", "", "aabbaabb", "hello world", "zzzzzzzz"])
def test_round_trip(text):
    assert expand(compress(text)) == text


def test_two():
    a, b = compress("aab"), compress("bba")
    assert expand(a) + expand(b) == "aabbba"


def test_none():
    assert longest(compress("")) == 0
"""
BESIDE = """

@pytest.mark.parametrize(("text", "length"), [("aaabbc", 3), ("x", 1), ("aabbaabb", 2), ("hello world", 2), ("zzzzzzzz", 8)])
def test_longest(text, length):
    assert longest(compress(text)) == length
"""
HEART = "the tests' answers by heart satisfy its held-out programs: "
PAIR = {"compress", "expand"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, dict[frozenset[str], Task]]:
    """Tasks of one function and of two, by their functions: where tests look at round trips alone, and where they look at what
    comes between as well."""
    found = {}
    for name, tests in (("round trip", ROUND_TRIP), ("beside", ROUND_TRIP + BESIDE)):
        root = tmp_path_factory.mktemp("project")
        (root / "shop").mkdir()
        (root / "shop/shop.py").write_text(SHOP)
        (root / "shop/test_shop.py").write_text(tests)
        build_tasks(str(root / "shop"), root / "tasks", BuildOptions(group_size=2, forgeable=True))
        found[name] = {frozenset(d.qualname for d in task.spec.deleted): task for task in load_tasks(root / "tasks")}
    return found


def test_two_functions_that_undo_each_other_are_weak_where_only_that_is_looked_at(
    built: Mapping[str, dict[frozenset[str], Task]],
) -> None:
    tasks = built["round trip"]
    assert [tasks[frozenset({name})].spec.hidden.weakness for name in sorted(PAIR)] == ["", ""]
    weakness = tasks[frozenset(PAIR)].spec.hidden.weakness
    assert weakness == HEART + "otherwise `return text` in compress, `return runs` in expand", "the empty text alone tells"


def test_what_comes_between_makes_them_strong(built: Mapping[str, dict[frozenset[str], Task]]) -> None:
    assert built["beside"][frozenset(PAIR)].spec.hidden.weakness == ""


def test_they_are_not_joined_where_only_the_round_trip_is_looked_at(
    built: Mapping[str, dict[frozenset[str], Task]], tmp_path: Path
) -> None:
    alone, beside = ([tasks[frozenset({name})] for name in sorted(PAIR)] for tasks in built.values())
    refused = join_tasks(alone, tmp_path / "alone", sandbox=open_sandbox(), python=Path(sys.executable))
    assert isinstance(refused, str)
    assert "trivial bodies of several functions satisfy its held-out programs" in refused
    assert isinstance(join_tasks(beside, tmp_path / "beside", sandbox=open_sandbox(), python=Path(sys.executable)), Task)
