"""Bodies that check what they are given as the gold code does, keep it and give it back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from composer_replication.languages.python.functions import find_functions
from composer_replication.sandbox import Limits, Tree, open_sandbox
from composer_replication.sandbox.grading.programs import Mutant, examine_programs, kills_of
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.steps.kept import KEEPING
from composer_replication.tasks.held_out.mutants import other_body

pytestmark = pytest.mark.slow

SHOP = """\
from typing import NamedTuple


class Point(NamedTuple):
    x: int
    y: int


class Slots:
    __slots__ = ("data",)

    def __init__(self, data):
        if not data:
            raise ValueError("empty")
        self.data = data[::-1]

    def back(self):
        return self.data[::-1]


SEEN = []


def read(text):
    SEEN.append(text)
    if ":" not in text:
        raise ValueError(text)
    return Point(*map(int, text.split(":")))


def write(point, *, by=":", **more):
    return by.join(map(str, point))


def require(text):
    if not text:
        raise KeyError(text)


def across(point):
    return point.x


def seen():
    return list(SEEN)
"""


class Program:
    """Steps and what the gold code answers."""

    def __init__(self, steps: list[tuple[int, dict[str, Any]]]) -> None:
        self.steps, self.cpu_s = steps, 0.01
        self.expected: list[Any] = []


def call(name: str, *args: Any, **named: Any) -> dict[str, Any]:
    return {"do": "call", "of": ["named", f"shop:{name}"], "args": list(args), **({"named": named} if named else {})}


def program(*steps: dict[str, Any]) -> Program:
    return Program(list(enumerate(steps)))


FIRST, READ = ["step", 0], {**call("read", "1:2"), "unused": True}
PROGRAMS = {
    "round trip": program(READ, call("write", FIRST)),
    "another way": program(READ, call("write", FIRST, by="-")),
    "by name": program(READ, call("write", FIRST, by=":", more=1)),
    "no point": program({**call("read", "12"), "unused": True}),
    "across": program(READ, call("across", FIRST)),
    "effect": program(READ, call("seen")),
    "slots": program(call("Slots", "abc"), {"do": "method", "of": FIRST, "name": "back", "args": []}),
    "no slots": program({**call("Slots", ""), "unused": True}),
    "slots inside": program(call("Slots", "abc"), {"do": "attribute", "of": FIRST, "name": "data"}),
    "required": program({**call("require", "a"), "unused": True}),
    "required and not there": program({**call("require", ""), "unused": True}),
}
AT_IMPORT = "\nread('1:2')\nSlots('a')\nwrite(())\nrequire(1)\n"


@pytest.fixture(scope="module")
def runner() -> CodeRunner:
    return CodeRunner(sandbox=open_sandbox(), python=Path(sys.executable), limits=Limits(wall_s=60, cpu_s=60))


@pytest.mark.parametrize(
    "at_import", ["", "\nread('1:2')\nSlots('a')\nwrite(())\nrequire(1)\n"], ids=["in functions", "in files"]
)
@pytest.mark.parametrize(
    ("functions", "tried", "killing"),
    [
        (("read", "write"), ("round trip", "by name", "no point"), ()),
        (("read", "write"), ("round trip", "another way", "across"), ("another way", "across")),
        (("read", "write"), ("round trip", "effect"), ("effect",)),
        (("read", "write"), ("no point",), ("no point",)),
        (("Slots.__init__", "Slots.back"), ("slots", "no slots"), ()),
        (("Slots.__init__", "Slots.back"), ("slots", "slots inside"), ("slots inside",)),
        (("require", "read"), ("required", "required and not there"), ("required", "required and not there")),
    ],
    ids=["round trips", "other arguments", "effects", "nothing given back", "slots", "what is inside", "nothing kept"],
)
def test_what_is_checked_kept_and_given_back(
    tmp_path: Path,
    runner: CodeRunner,
    functions: tuple[str, ...],
    tried: tuple[str, ...],
    killing: tuple[str, ...],
    at_import: str,
) -> None:
    """Programs that ask for nothing back kill such bodies: there is nothing that could be told of them."""
    source = SHOP + at_import
    (tmp_path / "shop.py").write_text(source)
    programs, tree = [PROGRAMS[name] for name in tried], Tree(base=tmp_path)
    for one, found in zip(programs, examine_programs(runner, tree, [one.steps for one in programs]), strict=True):
        assert found is not None
        one.expected = found["answers"]
    bodies = [
        other_body(found, KEEPING) for found in find_functions("shop.py", source.encode())[0] if found.qualname in functions
    ]
    assert len(bodies) == len(functions)
    [killers] = kills_of(runner, tree, programs, [Mutant(bodies=bodies, numbers=[*range(len(programs))], most=9)])
    assert [tried[number] for number in killers] == list(killing)
