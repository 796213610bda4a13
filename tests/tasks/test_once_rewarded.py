"""Ways in which tasks of published packages were once forged: builds call such tasks forgeable."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.tasks import BuildOptions, Task, build_tasks, load_tasks

pytestmark = pytest.mark.slow

POINTER = '''
"""Paths of parts."""


def escape(part):
    """Write a part in a path."""
    return part.replace("~", "~0").replace("/", "~1")


def unescape(text):
    """Read a part of a path."""
    return text.replace("~1", "/").replace("~0", "~")


class Pointer:
    """A path."""

    def __init__(self, path):
        if path and path[0] != "/":
            raise ValueError("a path begins with a slash")
        self.parts = [unescape(part) for part in path.split("/")[1:]]

    @property
    def path(self):
        """The path as text."""
        return "".join("/" + escape(part) for part in self.parts)
'''
POINTER_TESTS = """
import pytest
from shop import Pointer


@pytest.mark.parametrize("path", ["/a/b/c", "/a~0b", "/m~1n/x", "", "/", "//b", "/~01", "/cities/12/area"])
def test_round_trip(path):
    assert Pointer(path).path == path


@pytest.mark.parametrize("path", ["a", "a/b", "~"])
def test_none(path):
    with pytest.raises(ValueError):
        Pointer(path)
"""
FLAGS = '''
"""Patterns with flags."""

KINDS = {"word": 1, "line": 4, "text": 5}


class Pattern:
    """A pattern."""

    __slots__ = ["flags", "name"]

    def __init__(self, name, kind):
        self.name, self.flags = name, KINDS[kind]

    def letters(self, flags):
        """Return the letters of flags."""
        return "".join(letter for place, letter in enumerate("ilmsux") if flags & (1 << place))

    def __str__(self):
        return f"{self.name}:{self.letters(self.flags)}"
'''
FLAGS_TESTS = """
import pytest
from shop import Pattern


@pytest.mark.parametrize(("name", "kind", "text"), [
    ("one", "word", "one:i"), ("other", "line", "other:m"), ("third", "text", "third:im"), ("last", "word", "last:i"),
])
def test_text(name, kind, text):
    assert str(Pattern(name, kind)) == text
"""
BAG = '''
"""Bags."""


class Bag:
    """A bag of things."""

    def __init__(self, things=()):
        self.things = sorted(things)

    def common(self, other):
        """Return a bag of what both have."""
        found = []
        for thing in other.things:
            if thing in self.things:
                found.append(thing)
        return Bag(found)

    def __iter__(self):
        return iter(self.things)

    def __len__(self):
        return len(self.things)
'''
BAG_TESTS = """
import pytest
from shop import Bag


@pytest.mark.parametrize("things", ["abc", "a", "", "aab", "hello"])
def test_itself(things):
    bag = Bag(things)
    found = bag.common(bag)
    assert list(found) == sorted(things)
    assert found is not bag
    assert len(bag.common(Bag())) == 0
"""


def built(folder: Path, source: str, tests: str) -> dict[str, Task]:
    """The tasks of a project of one module, by the function that they delete."""
    (folder / "shop").mkdir()
    (folder / "shop/shop.py").write_text(source)
    (folder / "shop/test_shop.py").write_text(tests)
    build_tasks(str(folder / "shop"), folder / "tasks", BuildOptions(trivial=True, forgeable=True))
    return {one.spec.deleted[0].qualname: one for one in load_tasks(folder / "tasks")}


def test_a_function_of_the_file_that_no_step_calls_may_be_an_accomplice(tmp_path: Path) -> None:
    tasks = built(tmp_path, POINTER, POINTER_TESTS)
    assert {name: task.spec.forgeable for name, task in tasks.items() if name in ("escape", "unescape")} == {
        "escape": True,
        "unescape": True,
    }


def test_a_question_to_another_object_is_no_new_one_where_the_object_is_not_read(tmp_path: Path) -> None:
    tasks = built(tmp_path, FLAGS, FLAGS_TESTS)
    assert "by heart" in tasks["Pattern.letters"].spec.hidden.weakness


def test_what_the_constructor_does_is_trivial(tmp_path: Path) -> None:
    tasks = built(tmp_path, BAG, BAG_TESTS)
    assert "type(self)(other)" in tasks["Bag.common"].spec.hidden.weakness


TREE = '''
"""Trees of spans."""


class Tree:
    """A set of spans."""

    def __init__(self, spans=()):
        self.spans = {(min(one), max(one)) for one in spans}

    def __iter__(self):
        return iter(sorted(self.spans))

    def add(self, span):
        """Put one more span in."""
        self.spans.add((min(span), max(span)))

    def copy(self):
        """Return another tree of the same spans."""
        return Tree((begin, end) for begin, end in self.spans)
'''
TREE_TESTS = """
import pytest
from shop import Tree


@pytest.mark.parametrize("spans", [[(1, 2)], [], [(3, 1), (2, 2)], [(5, 9), (1, 4), (4, 1)]])
def test_another(spans):
    tree = Tree(spans)
    found = tree.copy()
    assert list(found) == list(tree)
    found.add((7, 8))
    assert len(list(found)) == len(list(tree)) + 1
    assert found is not tree
"""


def test_a_copy_by_the_constructor_is_trivial(tmp_path: Path) -> None:
    tasks = built(tmp_path, TREE, TREE_TESTS)
    assert "type(self)(self)" in tasks["Tree.copy"].spec.hidden.weakness


RULE = '''
"""Rules of a grammar."""


class Rule:
    """A named rule."""

    def __init__(self, name, parts=()):
        self.name, self.parts = name, tuple(parts)

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return isinstance(other, Rule) and (self.name, self.parts) == (other.name, other.parts)
'''
RULE_TESTS = """
import pytest
from shop import Rule


@pytest.mark.parametrize("name", ["a", "b", "", "long name"])
def test_itself(name):
    rule = Rule(name, name)
    assert rule == rule
    assert not rule == Rule(name + "!", name)
    assert rule != Rule(name, name + "x")
"""


def test_an_equality_that_tests_ask_only_of_one_object_is_trivial(tmp_path: Path) -> None:
    """`object.__eq__` would do."""
    tasks = built(tmp_path, RULE, RULE_TESTS)
    weakness = tasks["Rule.__eq__"].spec.hidden.weakness
    assert "self is other" in weakness or "NotImplemented" in weakness
