"""Bodies that check what they are given as the gold code does, keep it and give it back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from composer_replication.languages.python.functions import find_functions
from composer_replication.sandbox import Limits, Tree, open_sandbox
from composer_replication.sandbox.grading.programs import Mutant, examine_programs, kills_of
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.steps.kept import GIVEN_BACK, given_back_by, keeping
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


def sign(key, data):
    return f"v1.{key}.{data}" if data else ""


def check(key, token):
    return token == f"v1.{key}.{token.rpartition('.')[2]}"


def unsign(key, token):
    if not check(key, token):
        raise KeyError(key)
    return token.rpartition(".")[2]


def parts(token):
    return tuple(token.split(".")[1:])


def change(old, new):
    return [line for line in new if line not in old]


def changed(old, steps):
    return [*old, *steps]


class Box:
    def __init__(self, content):
        self.content = content

    def dump(self):
        if not self.content:
            raise ValueError("empty")
        return f"box of {self.content}"

    @classmethod
    def load(cls, text):
        return cls(text.removeprefix("box of "))


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
SIGNED, TOKEN = {**call("sign", "k", "data"), "unused": True}, FIRST
DUMPED, BOX = {"do": "method", "of": FIRST, "name": "dump", "args": [], "unused": True}, ["named", "shop:Box"]
PROGRAMS |= {
    "opened": program(SIGNED, call("unsign", "k", TOKEN)),
    "another key": program(SIGNED, {**call("unsign", "other", TOKEN), "unused": True}),
    "another text": program(
        SIGNED, {"do": "operator", "name": "add", "args": [TOKEN, "x"], "unused": True}, call("unsign", "j", ["step", 1])
    ),
    "begins": program(SIGNED, {"do": "method", "of": TOKEN, "name": "startswith", "args": ["v1."]}),
    "right": program(SIGNED, call("check", "k", TOKEN)),
    "wrong": program(SIGNED, call("check", "other", TOKEN)),
    "never signed": program(call("check", "k", "v2.k.data")),
    "nothing signed": program(call("sign", "k", "")),
    "parts": program(SIGNED, call("parts", TOKEN)),
    "changed": program({**call("change", ["list", []], ["list", ["a"]]), "unused": True}, call("changed", ["list", []], FIRST)),
    "unchanged": program(call("change", ["list", ["a"]], ["list", ["a"]])),
    "no change": program(call("changed", ["list", ["a", "b"]], ["list", []])),
    "box": program(
        call("Box", "tea"),
        DUMPED,
        {"do": "method", "of": BOX, "name": "load", "args": [["step", 1]]},
        {"do": "attribute", "of": ["step", 2], "name": "content"},
    ),
    "empty box": program(call("Box", ""), DUMPED),
}
AT_IMPORT = "\nread('1:2')\nSlots('a')\nwrite(())\nrequire(1)\nsign('a', 'b')\nchange([], [])\nBox('a').dump()\n"
WAYS = ["in functions", "in files"]


@pytest.fixture(scope="module")
def runner() -> CodeRunner:
    return CodeRunner(sandbox=open_sandbox(), python=Path(sys.executable), limits=Limits(wall_s=60, cpu_s=60))


def killers_of(tmp_path: Path, runner: CodeRunner, source: str, bodies: dict[str, str], tried: Sequence[str]) -> list[str]:
    """Return which of the programs kill a mutant with other bodies of some functions."""
    (tmp_path / "shop.py").write_text(source)
    programs, tree = [PROGRAMS[name] for name in tried], Tree(base=tmp_path)
    for one, found in zip(programs, examine_programs(runner, tree, [one.steps for one in programs]), strict=True):
        assert found is not None
        one.expected = found["answers"]
    functions = {found.qualname: found for found in find_functions("shop.py", source.encode())[0]}
    others = [other_body(functions[name], text) for name, text in bodies.items()]
    kills = kills_of(runner, tree, programs, [Mutant(bodies=others, numbers=[*range(len(programs))], most=9)])
    assert kills is not None
    return [tried[number] for number in kills[0]]


@pytest.mark.parametrize("at_import", ["", AT_IMPORT], ids=WAYS)
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
    bodies = dict.fromkeys(functions, keeping("first"))
    assert killers_of(tmp_path, runner, SHOP + at_import, bodies, tried) == list(killing)


@pytest.mark.parametrize("at_import", ["", AT_IMPORT], ids=WAYS)
@pytest.mark.parametrize(
    ("functions", "which", "tried", "killing"),
    [
        (("sign", "unsign"), "last", ("opened", "another key", "another text", "nothing signed"), ()),
        (("sign", "unsign"), "first", ("opened", "another key"), ("opened",)),
        (("sign", "parts"), "all", ("parts", "nothing signed"), ()),
        (("sign", "parts"), "last", ("parts",), ("parts",)),
        (("sign", "check"), "first", ("right", "wrong", "never signed"), ()),
        (("sign", "check"), "all", ("right", "wrong", "never signed"), ()),
        (("change", "changed"), "last", ("changed", "unchanged", "no change"), ()),
        (("change", "changed"), "first", ("changed", "unchanged", "no change"), ("changed",)),
        (("Box.dump", "Box.load"), "first", ("box", "empty box"), ()),
    ],
    ids=["last", "not the first", "all", "not the last", "truth", "truth of all", "lists", "not the old list", "object itself"],
)
def test_each_way_to_give_back(
    tmp_path: Path,
    runner: CodeRunner,
    functions: tuple[str, ...],
    which: str,
    tried: tuple[str, ...],
    killing: tuple[str, ...],
    at_import: str,
) -> None:
    """Both functions raise what theirs raise, on what would have been made of the arguments that were kept."""
    bodies = dict.fromkeys(functions, keeping(which))
    assert killers_of(tmp_path, runner, SHOP + at_import, bodies, tried) == list(killing)


@pytest.mark.parametrize(("asked", "killing"), [("v1.", []), ("", ["begins"])])
def test_a_text_that_stands_for_something_has_what_tests_ask_for(
    tmp_path: Path, runner: CodeRunner, asked: str, killing: list[str]
) -> None:
    bodies = dict.fromkeys(("sign", "unsign"), keeping("last", asked))
    assert killers_of(tmp_path, runner, SHOP, bodies, ("opened", "begins")) == killing


def test_it_is_said_what_is_given_back() -> None:
    assert [given_back_by(keeping(which)) for which in GIVEN_BACK] == [*GIVEN_BACK.values()]
    assert given_back_by("return key") == ""
