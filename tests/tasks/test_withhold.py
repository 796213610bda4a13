"""Fail-to-pass tests kept from the agent: whole functions, nested choices, files that still run, and nothing that others need."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

from composer_replication.tasks.features.hidden_tests import withheld_tests, without_tests
from composer_replication.tasks.store import Task
from composer_replication.types import TaskSpec

FILE = "tests/test_shop.py"
TESTS = '''\
import pytest


def test_a():
    """One."""
    assert True


@pytest.mark.parametrize(
    "x", ["::", 2]
)
def test_b(x):
    assert x


class TestTill:
    """Of the till."""

    def test_c(self):
        assert True

    @staticmethod
    async def test_d():
        assert True


class TestOther:
    def test_e(self):
        assert True


def test_used():
    return 1


def test_uses():
    assert test_used()
'''
IDS = (
    *(f"{FILE}::{name}" for name in ("test_a", "test_b[::]", "test_b[2]", "TestTill::test_c", "TestTill::test_d")),
    f"{FILE}::TestOther::test_e",
)


def task(root: Path, failing: tuple[str, ...] = IDS, passing: tuple[str, ...] = (), text: str = TESTS) -> Task:
    (root / "repo/tests").mkdir(parents=True)
    (root / "repo" / FILE).write_text(text)
    spec = TaskSpec(
        task_id="t", source="s", source_digest="0", instruction="i", deleted=(), fail_to_pass=failing, pass_to_pass=passing,
        editable=(),
    )  # fmt: skip
    return Task(spec, root)


def functions(ids: frozenset[str]) -> set[str]:
    return {i.partition("[")[0].rpartition("::")[2] for i in ids}


def test_a_smaller_share_keeps_back_all_that_a_larger_does(tmp_path: Path) -> None:
    found = task(tmp_path)
    sets = [withheld_tests(found, share, 0) for share in (1.0, 0.8, 0.5, 0.2, 0.01)]
    assert [len(functions(s)) for s in sets] == [0, 1, 2, 4, 4], "of five functions, and one is always seen"
    assert all(fewer < more or fewer == more for fewer, more in pairwise(sets))
    assert sets[3] == withheld_tests(found, 0.2, 0)
    assert len({withheld_tests(found, 0.8, seed) for seed in range(20)}) > 1
    assert all(("test_b[2]" in str(s)) == ("test_b[::]" in str(s)) for s in sets), "cases of one function go together"


def test_what_others_need_or_have_is_always_seen(tmp_path: Path) -> None:
    failing = (*IDS, f"{FILE}::test_used", f"{FILE}::test_uses", f"{FILE}::TestMore::test_c", f"{FILE}::test_inherited")
    found = task(tmp_path, failing, (f"{FILE}::test_b[3]",))
    ever = set().union(*(functions(withheld_tests(found, 0.01, seed)) for seed in range(20)))
    assert ever == {"test_a", "test_d", "test_e", "test_uses"}


def test_files_lose_the_functions_and_nothing_else(tmp_path: Path) -> None:
    found = task(tmp_path)
    (text,) = without_tests(found.repo, frozenset({IDS[1], IDS[2], IDS[4], IDS[5]})).values()
    names = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert names == {"test_a", "test_c", "test_used", "test_uses"}
    assert b"parametrize" not in text
    assert b"staticmethod" not in text
    assert b'"""Of the till."""' in text
    assert b"class TestOther:\n    pass\n" in text
    kept = TESTS.partition("@pytest")[0].encode()
    assert text.startswith(kept)
    assert without_tests(found.repo, frozenset()) == {}


def test_a_file_may_lose_all(tmp_path: Path) -> None:
    both = f"{FILE}::test_one", f"{FILE}::test_two"
    found = task(tmp_path, both, text="def test_one():\n    assert 1\n\ndef test_two():\n    assert 2\n")
    assert without_tests(found.repo, frozenset(both)) == {FILE: b"pass\n\npass\n"}


def test_a_doubtful_escape_is_no_obstacle(tmp_path: Path) -> None:
    both = f"{FILE}::test_one", f"{FILE}::test_two"
    found = task(tmp_path, both, text='D = "\\d"\ndef test_one():\n    assert D\ndef test_two():\n    assert D\n')
    (hidden,) = withheld_tests(found, 0.5, 0)
    assert b"assert D" in without_tests(found.repo, frozenset({hidden}))[FILE]


def test_a_file_that_cannot_be_read_as_python_is_shown_whole(tmp_path: Path) -> None:
    assert withheld_tests(task(tmp_path, text="def test_a(:\n"), 0.2, 0) == frozenset()
