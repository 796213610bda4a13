"""What a solution changes: functions, and parts outside of them, which programs have to tell."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from composer_replication.languages.python.changes import changed_functions, without_parts
from composer_replication.sandbox import Limits, Tree, open_sandbox
from composer_replication.sandbox.grading.programs import wrong_programs
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.tasks.held_out.solution_checks import checks_of_solution
from composer_replication.types import TaskSpec
from composer_replication.types.held_out_checks import HeldOutChecks

BEFORE = b'''
RATE = 2
NAMES = {"a": 1}


class Shop:
    tax = 3

    def price(self, net):
        """Return the price."""
        return net * self.tax

    def rated(self, net):
        return net * RATE

    def name(self, key):
        return NAMES[key]
'''


@pytest.mark.parametrize(
    ("old", "new", "changed", "parts"),
    [
        (b"Return the price", b"Return it", [], 0),
        (b"net * self.tax", b"net + self.tax", ["Shop.price"], 0),
        (b"rated(self, net)", b"rated(self, net=1)", ["Shop.rated"], 0),
        (b"    def rated", b"    async def rated", ["Shop.rated"], 0),
        (b"    def name", b"    @staticmethod\n    def name", ["Shop.name"], 0),
        (b"    def name", b"    def new(self):\n        return RATE\n\n    def name", ["Shop.new"], 0),
        (b"RATE = 2", b"RATE = 5", [], 1),
        (b"tax = 3", b"tax = 4", [], 1),
        (b"class Shop:", b"class Shop(list, metaclass=type):", [], 3),
        (b"class Shop:", b"@dataclass(frozen=True)\nclass Shop:", [], 2),
        (b"RATE = 2\n", b"RATE = 2  # per cent\nimport os\n", [], 1),
        (b"    tax = 3\n", b"", [], 1),
        (b"RATE = 2\n", b"RATE = 5\nOTHERS = {}\n", [], 1),
    ],
)
def test_what_changes(old: bytes, new: bytes, changed: list[str], parts: int) -> None:
    after = BEFORE.replace(old, new, 1)
    assert [function.qualname for function in changed_functions("shop.py", BEFORE, after)] == changed
    versions = [same(version) for version in without_parts("shop.py", BEFORE, after)]
    assert (len(versions), versions[:1]) == (parts, [same(BEFORE)] * bool(parts))


def same(code: bytes | str) -> str:
    """Return code in a form that does not depend on how it is written."""
    return ast.dump(ast.parse(code))


TABLE = "import re\nT = {'a': 1}\n\ndef look(key):\n    return T[key]\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "T.update(b=2)\n"),
        ("", "T['b'] = 2\n"),
        ("", "T |= {'b': 2}\n"),
        ("", "for name in 'bc':\n    T[name] = 2\n"),
        ("", "for T in ({'b': 1},):\n    pass\n"),
        ("", "print(T := {'b': 1})\n"),
        ("", "with open('x') as T:\n    pass\n"),
        ("", "match 1:\n    case T:\n        pass\n"),
        ("", "del T['a']\n"),
        ("import re\n", "try:\n    import regex as re\nexcept ImportError:\n    import re\n"),
        ("import re\nT = {'a': 1}\n", "T = {'a': 1}\nimport re\n"),
        ("import re\n", ""),
        ("T = {'a': 1}\n", "if re:\n    T = {'a': 1}\n"),
        ("def look", "def on_one_line(key): return key\ndef look"),
    ],
)
def test_every_other_statement_is_a_part(old: str, new: str) -> None:
    after = (TABLE.replace(old, new, 1) if old else TABLE + new).encode()
    assert changed_functions("m.py", TABLE.encode(), after) == []
    assert same(TABLE) in [same(version) for version in without_parts("m.py", TABLE.encode(), after)]


def test_parts_are_left_out_one_by_one_and_together_without_the_changed_functions() -> None:
    before = "import re\n\n\nclass A:\n    x = 1\n\n    def f(self):\n        return self.x\n\n\nS = 1"
    after = before.replace("x = 1", "x = 2\n    y = 3").replace("self.x", "self.y").replace("A:", "A(B):").replace("S = 1", "")
    versions = [version.decode() for version in without_parts("m.py", before.encode(), after.encode())]
    assert same(versions[-1]) == same(before.replace("self.x", "self.y"))
    assert [("A:" in text, "x = 1" in text, "S = 1" in text) for text in versions[:-1]] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    assert all("return self.y" in text for text in versions)


NEW_CLASS = """
class Full(ShopError, ValueError, total=False):
    code = 7

    class Meta(Base):
        on: bool

    def f(self):
        return 1


@dataclass(order=True, frozen=True)
@final
class Item:
    '''A thing.'''
    name: str
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ShopError, ", ""),
        (", ValueError", ""),
        (", total=False", ""),
        ("order=True, ", ""),
        (", frozen=True", ""),
        ("@dataclass(order=True, frozen=True)\n", ""),
        ("@final\n", ""),
        ("(Base)", ""),
        ("    code = 7\n", ""),
        ("    class Meta(Base):\n        on: bool\n", ""),
        ("on: bool", "pass"),
        ("    name: str\n", ""),
        (NEW_CLASS, "class Full:\n    def f(self):\n        return 1\n"),
    ],
)
@pytest.mark.parametrize("before", ["", "x = 1\n"])
def test_each_piece_of_a_new_class_is_a_part(before: str, old: str, new: str) -> None:
    versions = [same(version) for version in without_parts("m.py", before.encode(), (before + NEW_CLASS).encode())]
    assert len(versions) == 13
    if new.startswith("class"):
        assert versions[0] == same(before)
    else:
        assert same((before + NEW_CLASS).replace(old, new)) in versions


def test_what_tests_more_likely_tell_comes_first() -> None:
    versions = [version.decode() for version in without_parts("m.py", b"", NEW_CLASS.encode())]
    lacking = [[text for text in ("class", "ValueError", "frozen", "(Base)", "code") if text not in one] for one in versions]
    first = [
        next(n for n, texts in enumerate(lacking) if texts[:1] == [text]) for text in ("class", "ValueError", "(Base)", "code")
    ]
    assert first == sorted(first)


def test_functions_inside_a_statement_belong_to_it_only_where_they_cannot_be_asked() -> None:
    before = b"if x:\n    def f(n):\n        return n\n    T = 1\n    def g(n): return n\n"
    assert without_parts("m.py", before, before.replace(b"        return n", b"        return n + 1")) == []
    assert len(without_parts("m.py", before, before.replace(b"): return n", b"): return n + 1"))) == 1


def test_a_new_file_is_new_throughout_and_one_that_is_no_python_has_nothing() -> None:
    assert [f.qualname for f in changed_functions("shop.py", b"", BEFORE)] == ["Shop.price", "Shop.rated", "Shop.name"]
    assert (changed_functions("shop.py", BEFORE, b"def ("), without_parts("shop.py", b"def (", b"def (")) == ([], [])
    assert len(changed_functions("shop.py", b"def (", BEFORE)) == 3
    assert without_parts("shop.py", b"", b'"""Words."""\n\n\ndef f():\n    return 1\n') == []


RATES = b"""
RATE = 3


def net(price):
    return price * RATE


def gross(price):
    return price + 1


def idle():
    return RATE
"""
TESTS = b"""
import pytest
from rates import gross, net


@pytest.mark.parametrize("price", [1, 2, 3, 5, 8, 13])
def test_net(price):
    assert net(price) == price * 3


@pytest.mark.parametrize("price", [1, 2, 3, 5, 8, 13])
def test_gross(price):
    assert gross(price) == price + 1
"""


def checks(root: Path, before: dict[str, bytes], gold: dict[str, bytes], failing: list[str]) -> HeldOutChecks:
    for path, content in before.items():
        (root / path).write_bytes(content)
    spec = TaskSpec(
        task_id="rates",
        source="made",
        source_digest="0",
        instruction="Raise the rate.",
        fail_to_pass=tuple(failing),
        pass_to_pass=(),
        test_timeout_s=60.0,
        deleted=(),
        editable=("rates.py", "names.py", "*.json"),
    )
    return checks_of_solution(spec, root, gold, sandbox=open_sandbox(), python=Path(sys.executable))


@pytest.mark.slow
def test_a_solution_s_constant_is_asked_of_the_functions_in_which_it_shows(tmp_path: Path) -> None:
    """`idle` uses it too, and no test tells: it is no part of what the task demands."""
    before = {"rates.py": RATES.replace(b"RATE = 3", b"RATE = 2").replace(b"price + 1", b"price"), "test_rates.py": TESTS}
    failing = [f"test_rates.py::test_{name}[{price}]" for name in ("net", "gross") for price in (1, 2, 3, 5, 8, 13)]
    found = checks(tmp_path, before, {"rates.py": RATES}, failing)
    assert found.weakness == ""
    assert {program.uses for program in found.programs} == {"rates.py::gross", "rates.py::net"}


USES = b"""

def bonus(kind, n):
    return BONUS[kind] + n


def gross(price):
    return price
"""
BONUS_TESTS = b"""
import pytest
from rates import bonus, gross


@pytest.mark.parametrize(("kind", "n"), [(kind, n) for kind in "cdef" for n in (1, 2)])
def test_bonus(kind, n):
    assert bonus(kind, n) == {"c": 7, "d": 9, "e": 11, "f": 4}[kind] + n


@pytest.mark.parametrize("price", [1, 2, 3, 5, 8, 13])
def test_gross(price):
    assert gross(price) == price + 1
"""
FAILING = [f"test_rates.py::test_bonus[{kind}-{n}]" for kind in "cdef" for n in (1, 2)]
GROSS = [f"test_rates.py::test_gross[{price}]" for price in (1, 2, 3, 5, 8, 13)]
OLD, NEW = b"BONUS = {'a': 1}\n", b"c=7, d=9, e=11, f=4"
MEMBERS = b"import enum\nclass BONUS(enum.IntEnum):\n    a = 1\n"
OTHERS = {
    "a call": ("rates.py", OLD, OLD + b"BONUS.update(%b)\n" % NEW, b""),
    "another table": ("rates.py", b"T = {}\nBONUS = dict(T)\n", b"T = dict(%b)\nBONUS = dict(T)\n" % NEW, b""),
    "members": ("rates.py", MEMBERS, MEMBERS + b"    c = 7\n    d = 9\n    e = 11\n    f = 4\n", b""),
    "another module": ("names.py", OLD, OLD + b"BONUS |= dict(%b)\n" % NEW, b"from names import BONUS\n"),
    "data": ("bonus.json", b"{}", b'{"c": 7, "d": 9, "e": 11, "f": 4}', b"import json\nBONUS = json.load(open('bonus.json'))\n"),
}
"""What changes: the file, the text there before and after, and the beginning of `rates.py` where it is another file."""


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("kind", OTHERS)
def test_what_a_solution_changes_outside_of_functions_is_asked(tmp_path: Path, kind: str, alone: bool) -> None:
    """Alone, and beside a function that changes too: work that leaves it out and does the rest fails."""
    path, old, new, top = OTHERS[kind]
    uses = USES if alone else USES.replace(b"return price", b"return price + 1")
    before = {"rates.py": top + USES, "test_rates.py": BONUS_TESTS} | {path: old + USES if path == "rates.py" else old}
    gold = {} if alone and top else {"rates.py": top + uses}
    half = gold | {path: old + uses if path == "rates.py" else old}
    gold |= {path: new + uses if path == "rates.py" else new}
    found = checks(tmp_path, before, gold, FAILING if alone else FAILING + GROSS)
    assert {program.uses for program in found.programs} == {"rates.py::bonus"} | (set() if alone else {"rates.py::gross"})
    runner = CodeRunner(sandbox=open_sandbox(), python=Path(sys.executable), python_path=(".",), limits=Limits())
    assert wrong_programs(runner, Tree(base=tmp_path, changes=gold), found.programs)[0] == []
    wrong = wrong_programs(runner, Tree(base=tmp_path, changes=half), found.programs)[0]
    assert {found.programs[number].uses for number in wrong} == {"rates.py::bonus"}
    assert len(wrong) >= 4


SHOP = b"""
from dataclasses import dataclass


class ShopError(Exception):
    pass


def add(items, item):
    return [*items, item]
"""
SHOP_SOLVED = SHOP.replace(
    b"def add(items, item):\n",
    b"""class FullError(ShopError, ValueError):
    pass


@dataclass(order=True, frozen=True)
class Item:
    name: str
    price: int = 1


def add(items, item):
    if len(items) >= 3:
        raise FullError("full")
    if isinstance(item, str):
        return [*items, Item(item)]
""",
)
SHOP_TESTS = b"""
import pytest
from rates import FullError, Item, ShopError, add


@pytest.mark.parametrize("n", [3, 4, 5, 6])
def test_full(n):
    with pytest.raises((FullError, ShopError)):
        add(range(n), 1)
    with pytest.raises(ValueError):
        add(range(n), 1)


@pytest.mark.parametrize(("name", "price"), [("a", 1), ("b", 2), ("c", 3)])
def test_item(name, price):
    assert Item(name, price) < Item(name, price + 1)
    assert hash(Item(name, price)) == hash(Item(name, price))
    assert Item(name).price == 1


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_add(name):
    assert add([0], name) == [0, Item(name)]
    assert add([], 5) == [5]
"""
SHOP_FAILING = [
    *(f"test_rates.py::test_full[{n}]" for n in (3, 4, 5, 6)),
    *(f"test_rates.py::test_item[{name}-{price}]" for name, price in zip("abc", (1, 2, 3), strict=True)),
    *(f"test_rates.py::test_add[{name}]" for name in "abc"),
]


@pytest.mark.slow
def test_the_head_of_a_new_class_and_each_file_of_data_are_asked(tmp_path: Path) -> None:
    """Data that nothing reads is told by no program, and that is counted."""
    before = {"rates.py": SHOP, "test_rates.py": SHOP_TESTS, "names.json": b"{}"}
    gold = {"rates.py": SHOP_SOLVED, "names.json": b"[]"}
    found = checks(tmp_path, before, gold, SHOP_FAILING)
    assert (found.weakness, found.untold) == ("", 1)
    runner = CodeRunner(sandbox=open_sandbox(), python=Path(sys.executable), python_path=(".",), limits=Limits())
    rewarded = []
    for text in (b"", b"ShopError, ", b", ValueError", b"order=True, ", b", frozen=True", b" = 1"):
        work = gold | {"rates.py": SHOP_SOLVED.replace(text, b"", 1)}
        rewarded += [text] * (not wrong_programs(runner, Tree(base=tmp_path, changes=work), found.programs)[0])
    assert rewarded == [b""]
