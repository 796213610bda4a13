"""Which functions of a module a change concerns."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from composer_replication.languages.python.changes import changed_functions
from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.held_out.solution_checks import checks_of_solution
from composer_replication.types import TaskSpec

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
    ("old", "new", "changed", "others"),
    [
        (b"Return the price", b"Return it", [], []),
        (b"net * self.tax", b"net + self.tax", ["Shop.price"], []),
        (b"rated(self, net)", b"rated(self, net=1)", ["Shop.rated"], []),
        (b"    def name", b"    @staticmethod\n    def name", ["Shop.name"], []),
        (b"RATE = 2", b"RATE = 5", [], ["Shop.rated"]),
        (b"tax = 3", b"tax = 4", [], ["Shop.price"]),
        (b'{"a": 1}', b'{"a": 1, "b": 2}', [], ["Shop.name"]),
        (b"RATE = 2\n", b"RATE = 2  # per cent\nimport os\n", [], []),
        (b"    def name", b"    def new(self):\n        return RATE\n\n    def name", ["Shop.new"], []),
    ],
)
def test_what_changes(old: bytes, new: bytes, changed: list[str], others: list[str]) -> None:
    found = changed_functions("shop.py", BEFORE, BEFORE.replace(old, new, 1))
    assert [[function.qualname for function in some] for some in found] == [changed, others]


def test_a_new_file_is_new_throughout_and_one_that_is_no_python_has_nothing() -> None:
    assert [f.qualname for f in changed_functions("shop.py", b"", BEFORE)[0]] == ["Shop.price", "Shop.rated", "Shop.name"]
    assert changed_functions("shop.py", BEFORE, b"def (") == ([], [])
    assert len(changed_functions("shop.py", b"def (", BEFORE)[0]) == 3


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


@pytest.mark.slow
def test_a_solution_s_constant_is_asked_of_the_functions_in_which_it_shows(tmp_path: Path) -> None:
    """`idle` uses it too, and no test tells: it is no part of what the task demands."""
    (tmp_path / "rates.py").write_bytes(RATES.replace(b"RATE = 3", b"RATE = 2").replace(b"price + 1", b"price"))
    (tmp_path / "test_rates.py").write_bytes(TESTS)
    failing = [f"test_rates.py::test_{name}[{price}]" for name in ("net", "gross") for price in (1, 2, 3, 5, 8, 13)]
    spec = TaskSpec(
        task_id="rates",
        source="made",
        source_digest="0",
        instruction="Raise the rate.",
        fail_to_pass=tuple(failing),
        pass_to_pass=(),
        test_timeout_s=60.0,
        deleted=(),
        editable=("rates.py",),
    )
    checks = checks_of_solution(spec, tmp_path, {"rates.py": RATES}, sandbox=open_sandbox(), python=Path(sys.executable))
    assert checks.weakness == ""
    assert {program.uses for program in checks.programs} == {"rates.py::gross", "rates.py::net"}
