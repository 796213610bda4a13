"""Expectations turned into their opposites, and a test that contradicts itself."""

from __future__ import annotations

import textwrap

import pytest

from composer_replication.sandbox.grading.anti_tests import TwinTests, contradiction, expectations, with_twins
from composer_replication.sandbox.grading.held_out import lay_out
from composer_replication.types.errors import TaskError
from composer_replication.types.held_out_checks import AntiTest

HEAD = "import unittest\nimport pytest\n\n\ndef f(x):\n    if x is None:\n        raise ValueError(x)\n    return x\n\n\n"
FUNCTIONS = {
    "equal": "assert f(3) == 3",
    "literal first": "assert 3 == f(3)",
    "text": "assert f('a') == 'a'",
    "none": "assert f(0) != None",
    "bool": "assert f(True) == True",
    "bytes": "assert f(b'') == b''",
    "list": "assert f([1, [2]]) == [1, [2]]",
    "dict": "assert f({'a': ()}) == {'a': ()}",
    "empty set in a list": "assert f([{1}]) == [{1}]",
    "negative": "assert f(-1) == -1",
    "huge": "assert f(1e300) == 1e300",
    "infinite": "assert f(float('inf')) == 1e999",
    "approx": "assert f(3.0) == pytest.approx(3.0)",
    "expression": "expected = 3\n    assert f(3) == expected + 0",
    "truth": "assert f(1)",
    "not": "assert not f(0)",
    "is": "assert f(True) is True",
    "in": "assert f(1) in (1, 2)",
    "less": "assert f(1) < 2",
    "and": "assert f(1) == 1 and f(2) == 2",
    "chain": "assert 0 < f(1) < 2",
    "loop": "for x in (1, 2):\n        assert f(x) == x",
    "raises": "with pytest.raises(ValueError, match='None'):\n        f(None)",
    "raises call": "pytest.raises(ValueError, f, None)",
}
METHODS = {
    "assertEqual": "self.assertEqual(f(3), 3)",
    "assertEqual first": "self.assertEqual(3, f(3))",
    "assertListEqual": "self.assertListEqual(f([1]), [1])",
    "assertCountEqual": "self.assertCountEqual(f([1, 2]), [2, 1])",
    "assertAlmostEqual": "self.assertAlmostEqual(f(3.0), 3.0)",
    "assertTrue": "self.assertTrue(f(1))",
    "assertFalse": "self.assertFalse(f(0))",
    "assertIn": "self.assertIn(f(1), [1])",
    "assertIsNone": "self.assertIsNotNone(f(1))",
    "assertGreater": "self.assertGreater(f(2), 1)",
    "assertNotEqual": "self.assertNotEqual(f(2), 1)",
    "assertRaises": "with self.assertRaises(ValueError):\n            f(None)",
}


def outcome(source: bytes, name: str) -> str:
    """What a test function of a module does."""
    place: dict = {}
    exec(source, place)
    function = place[name] if name in place else getattr(place["TestIt"](name), name)
    try:
        function()
    except (AssertionError, ValueError, TypeError, pytest.fail.Exception) as error:
        return type(error).__name__
    return "passed"


def twins(test: str, expectation: int = 0, first: bool = False) -> TwinTests:
    return TwinTests(test=test, expectation=expectation, same="test_same", opposite="test_opposite", opposite_first=first)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_the_opposite_fails_and_the_copy_passes(kind, first):
    source = (HEAD + f"def test_it():\n    {FUNCTIONS[kind]}\n").encode()
    assert expectations(source) == {"test_it": 1}
    changed = with_twins(source, [twins("test_it", first=first)])
    assert (changed.index(b"test_opposite") < changed.index(b"test_same")) is first
    assert outcome(source, "test_it") == "passed"
    assert outcome(changed, "test_same") == "passed"
    assert outcome(changed, "test_opposite") != "passed"


@pytest.mark.parametrize("kind", METHODS)
def test_the_same_for_unittest(kind):
    source = (HEAD + f"class TestIt(unittest.TestCase):\n    def test_it(self):\n        {METHODS[kind]}\n").encode()
    assert expectations(source) == {"TestIt::test_it": 1}
    changed = with_twins(source, [twins("TestIt::test_it")])
    assert outcome(source, "test_it") == "passed"
    assert outcome(changed, "test_same") == "passed"
    assert outcome(changed, "test_opposite") != "passed"


@pytest.mark.parametrize(
    "decorator",
    [
        "('x', 'y'), [(1, 1), (2, 2)]",
        "'x, y', ((1, 1), pytest.param(2, 2, id='two'))",
        "['y', 'x'], [[1, 1]]",
    ],
)
def test_parameters_that_are_expected_are_turned(decorator):
    source = (HEAD + f"@pytest.mark.parametrize({decorator})\ndef test_it(x, y):\n    assert f(x) == y\n").encode()
    place: dict = {}
    exec(with_twins(source, [twins("test_it")]), place)
    for name, equal in (("test_same", True), ("test_opposite", False)):
        mark = place[name].pytestmark[0]
        names = mark.args[0] if not isinstance(mark.args[0], str) else [n.strip() for n in mark.args[0].split(",")]
        rows = [dict(zip(names, getattr(row, "values", row), strict=True)) for row in mark.args[1]]
        assert [row["x"] == row["y"] for row in rows] == [equal] * len(rows)


def test_one_expectation_is_turned_and_the_others_stay():
    source = (HEAD + "def test_it():\n    assert f(1) == 1\n    assert f(2) == 2\n").encode()
    assert expectations(source) == {"test_it": 2}
    text = with_twins(source, [twins("test_it", 1)]).decode()
    assert text.count("f(1) == 1") == 2
    assert (text.count("f(2) == 2"), text.count("f(2) == 4")) == (1, 1)


def test_other_tests_are_left_out_and_helpers_stay():
    source = b"def helper():\n    return 1\n\ndef test_it():\n    assert helper() == 1\n\n"
    source += b"class TestB:\n    def test_c(self):\n        pass\n"
    text = with_twins(source, [twins("test_it")]).decode()
    assert "def helper" in text
    assert "class TestB" in text
    assert not {"def test_it", "def test_c"} & set(text.replace("(", "\n").splitlines())


def test_what_is_no_test_has_no_expectations():
    assert expectations(b"def helper():\n    assert 1 == 1\n\nx = 1\n") == {}
    assert expectations(b"def broken(:\n") == {}
    nested = b"def test_it():\n    def inner():\n        assert 1 == 1\n    mock.assert_called_once()\n"
    assert expectations(nested) == {"test_it": 0}
    with pytest.raises(KeyError):
        with_twins(b"x = 1\n", [twins("test_gone")])


def test_a_contradiction_is_one_line_more():
    source = textwrap.dedent("""
        def test_it():  # as it was
            if True:
                assert f(1) == (
                    1
                )
            assert f(3)
    """).encode()
    changed = contradiction(source, "test_it", 0)
    assert changed is not None
    lines = changed.decode().splitlines()
    assert "        assert f(1) == 2" in lines
    lines.remove("        assert f(1) == 2")
    assert lines == source.decode().splitlines()
    assert contradiction(source, "test_it", 1) is None
    assert contradiction(source, "test_it", 2) is None
    assert contradiction(source, "test_gone", 0) is None
    assert contradiction(b"def test_it(): assert f(1) == 1\n", "test_it", 0) is None


@pytest.mark.parametrize("path", ["../outside.py", "link.py"])
def test_a_file_outside_of_the_tree_is_not_read(tmp_path, path):
    """Its name comes with the task, which may be a stranger's."""
    (tmp_path / "outside.py").write_text("def test_x():\n    assert f(1) == 1\n")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link.py").symlink_to(tmp_path / "outside.py")
    test = AntiTest(test=f"{path}::test_x", expectation=0)
    with pytest.raises(TaskError, match="is not the test file that anti-tests were made from"):
        lay_out([test], tree, opposite_first=[True])
