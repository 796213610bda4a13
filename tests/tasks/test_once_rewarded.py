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
    build_tasks(str(folder / "shop"), folder / "tasks", BuildOptions(forgeable=True))
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
