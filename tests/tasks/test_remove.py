"""Whole functions go, with what names them; every other byte stays."""

from __future__ import annotations

import ast

import pytest

from composer_replication.languages.functions import Function
from composer_replication.languages.python.functions import find_functions
from composer_replication.languages.python.remove import remove_functions

SOURCES = {
    "src/shop/__init__.py": b"""\
from .basket import Basket, total, rounded  # the shop
from shop.prices import *

__all__ = ["Basket", "total", "rounded"]
""",
    "src/shop/basket.py": b'''\
"""Baskets."""
import json
from math import (
    floor,
    ceil,  # up
)
import os.path as path, decimal

__all__ = ("total",
           "rounded", "Basket")


# how much
@staticmethod
def total(basket):
    """Sum."""
    return ceil(json.loads(basket)) + decimal.Decimal(1)


def rounded(x):
    return floor(x) + path.sep


class Basket:
    def __init__(self):
        self.items = []

    @property
    def first(self):
        return self.items[0]

    @first.setter
    def first(self, value):
        self.items[0] = value
''',
    "src/shop/prices.py": b"try:\n    from shop.basket import total\nexcept ImportError:\n    total = None\n",
    "src/shop/other.py": b"import shop.basket\nfrom elsewhere import total\n\n__all__ = ['total']\nNAME = 'total'\n",
}


def found(path: str, *names: str) -> list[Function]:
    return [f for f in find_functions(path, SOURCES[path])[0] if f.qualname in names]


def without(*names: str) -> dict[str, str]:
    changed = remove_functions(SOURCES, found("src/shop/basket.py", *names), ("src", "."))
    for content in changed.values():
        ast.parse(content)
    return {path.rpartition("/")[2]: content.decode() for path, content in changed.items()}


def test_a_function_goes_with_its_decorators_comments_and_the_imports_only_it_used() -> None:
    left = without("total")["basket.py"]
    assert left == SOURCES["src/shop/basket.py"].decode().replace(
        '# how much\n@staticmethod\ndef total(basket):\n    """Sum."""\n'
        "    return ceil(json.loads(basket)) + decimal.Decimal(1)\n\n\n",
        "",
    ).replace("import json\n", "").replace("    floor,\n    ceil,  # up\n", "    floor").replace(", decimal", "").replace(
        '("total",\n           "rounded", "Basket")', '("rounded", "Basket")'
    )


def test_imports_and_exports_of_it_go_everywhere_in_the_sources() -> None:
    changed = without("total")
    assert set(changed) == {"__init__.py", "basket.py", "prices.py"}
    assert changed["__init__.py"].splitlines() == [
        "from .basket import Basket, rounded  # the shop",
        "from shop.prices import *",
        "",
        '__all__ = ["Basket", "rounded"]',
    ]
    assert changed["prices.py"] == "try:\n    pass\nexcept ImportError:\n    total = None\n"


def test_a_property_goes_with_its_setter_and_no_other_file_changes() -> None:
    changed = without("Basket.first")
    assert set(changed) == {"basket.py"}
    assert "first" not in changed["basket.py"]
    assert "class Basket:\n    def __init__(self):\n        self.items = []\n" in changed["basket.py"]


def test_the_last_name_of_an_import_takes_the_line_with_it() -> None:
    changed = without("total", "rounded")
    assert changed["__init__.py"].splitlines()[0] == "from .basket import Basket  # the shop"
    assert "math" not in changed["basket.py"]
    assert "os.path" not in changed["basket.py"]


def test_a_class_or_module_that_is_left_empty_stays_valid() -> None:
    sources = {"m.py": b"class A:\n    def f(self):\n        return 1\n", "n.py": b"def g():\n    return 1\n"}
    functions = [f for path, content in sources.items() for f in find_functions(path, content)[0]]
    changed = remove_functions(sources, functions, (".",))
    assert changed["m.py"] == b"class A:\n    pass\n"
    assert changed["n.py"].strip() == b""


def test_a_file_that_cannot_be_read_is_named() -> None:
    sources = {"m.py": b"def g():\n    return 1\n", "old.py": b"print 'g'\n", "other.py": b"print 'h'\n"}
    functions = find_functions("m.py", sources["m.py"])[0]
    with pytest.raises(SyntaxError, match=r"libcst cannot read old\.py"):
        remove_functions(sources, functions, (".",))
    assert set(remove_functions(sources | {"old.py": b""}, functions, (".",))) == {"m.py"}


@pytest.mark.parametrize("line", ["from . import total\n", "from .. import total\n", "from .nothing import total as t\n"])
def test_relative_imports_of_other_things_stay(line: str) -> None:
    sources = {"pkg/sub/mod.py": line.encode(), "pkg/basket.py": b"def total(x):\n    return x\n"}
    functions = find_functions("pkg/basket.py", sources["pkg/basket.py"])[0]
    changed = remove_functions(sources, functions, (".",))
    # `pkg` may pass on what `pkg.basket` has; `pkg.sub` may not
    assert ("pkg/sub/mod.py" in changed) == line.startswith("from .. ")
