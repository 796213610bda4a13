"""A project whose features are the methods of a class, and bodies of one line that make do with what an object has."""

from __future__ import annotations

from collections.abc import Iterator

from forger import ONLY_TESTS, deleted_functions, with_body

from composer_replication.tasks.store import Task

BASKET = '''"""A basket of named things."""


class Basket:
    """Counts of things that have prices in cents."""

    def __init__(self, prices, counts=()):
        self.prices = dict(prices)
        self.counts = {name: count for name, count in dict(counts).items() if count}

    def add(self, name, count=1):
        """Put in some of a thing. Raises KeyError where it has no price."""
        if name not in self.prices:
            raise KeyError(name)
        self.counts[name] = self.counts.get(name, 0) + count
        return self

    def remove(self, name):
        """Take out one of a thing, and say how many are left."""
        left = self.counts.pop(name) - 1
        if left:
            self.counts[name] = left
        return left

    def total(self):
        """Add up the costs."""
        costs = [self.prices[name] * count for name, count in self.counts.items()]
        return sum(costs)

    def __len__(self):
        """How many things are in it."""
        counts = self.counts.values()
        return sum(counts)

    def __contains__(self, name):
        """Say whether there is one of a thing."""
        found = self.counts.get(name, 0)
        return found > 0

    def __iter__(self):
        """The names, in order."""
        names = sorted(self.counts)
        yield from names

    def __eq__(self, other):
        """Say whether the same things are in both, at the same prices."""
        same = self.counts == other.counts
        return same and self.prices == other.prices

    __hash__ = None
'''
PROJECT = {
    "hamper/__init__.py": "from hamper.basket import Basket\n",
    "hamper/basket.py": BASKET,
    "tests/test_basket.py": """import pytest

from hamper import Basket

PRICES = {"tea": 300, "jam": 250, "bun": 40}


def test_add():
    basket = Basket(PRICES).add("tea").add("bun", 3)
    assert basket.counts == {"tea": 1, "bun": 3}
    assert basket.add("bun").counts["bun"] == 4
    with pytest.raises(KeyError):
        basket.add("pen")


def test_remove():
    basket = Basket(PRICES, {"tea": 2, "jam": 1})
    assert basket.remove("tea") == 1
    assert basket.remove("jam") == 0
    assert basket.counts == {"tea": 1}
    with pytest.raises(KeyError):
        basket.remove("bun")


@pytest.mark.parametrize(("counts", "cost"), [({}, 0), ({"tea": 2}, 600), ({"jam": 1, "bun": 2}, 330), ({"bun": 7}, 280)])
def test_total(counts, cost):
    assert Basket(PRICES, counts).total() == cost


def test_len():
    assert len(Basket(PRICES)) == 0
    assert len(Basket(PRICES, {"tea": 2, "bun": 5})) == 7
    assert len(Basket(PRICES, {"jam": 1})) == 1


def test_contains():
    basket = Basket(PRICES, {"tea": 1, "bun": 0})
    assert "tea" in basket
    assert "bun" not in basket
    assert "pen" not in basket


def test_iter():
    assert list(Basket(PRICES, {"tea": 1, "bun": 2})) == ["bun", "tea"]
    assert list(Basket(PRICES)) == []
    assert [name for name in Basket(PRICES, {"jam": 1, "tea": 9, "bun": 1})] == ["bun", "jam", "tea"]


def test_equal():
    assert Basket(PRICES, {"tea": 1}) == Basket(PRICES).add("tea")
    assert not Basket(PRICES, {"tea": 1}) == Basket(PRICES, {"tea": 2})
    assert not Basket(PRICES) == Basket({"tea": 1})
""",
    "README.md": "# hamper\n",
}
BODIES = (
    "return self",
    "return vars(self)",
    "return next(iter(vars(self).values()), None)",
    "return list(vars(self).values())[-1]",
    "return len(vars(self))",
    "return bool(self.__dict__)",
    "return type(self)({})",
    "return iter(vars(self))",
    "return object.__getattribute__(self, '__dict__').popitem()[1]",
    "vars(self).update(dict.fromkeys(vars(self), {})); return self",
    "return setattr(self, '_seen', getattr(self, '_seen', 0) + 1) or self._seen",
    "self.__class__ = type('Any', (type(self),), {'__eq__': lambda a, b: True, '__len__': lambda a: 1}); return self",
)


def forged_methods(task: Task) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield for each body its name, and a workspace where the method has it and every test is forged."""
    [(path, source)] = task.gold_files().items()
    for body in BODIES:
        yield body, {path: with_body(source, deleted_functions(task, path, source), body, ONLY_TESTS)}
