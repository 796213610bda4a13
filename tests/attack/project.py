"""The project whose feature the attacks pretend to bring back, with every kind of test that anti-tests are made from."""

from __future__ import annotations

GOLD = '''"""Prices in cents."""


def discounted(price, percent):
    """`price` less `percent` per cent, rounded down. Raises ValueError for a percentage outside 0 to 100."""
    if percent < 0 or percent > 100:
        raise ValueError("percent must be between 0 and 100")
    kept = 100 - percent
    return price * kept // 100


def taxed(price):
    """`price` with a fifth on top."""
    return price + price // 5
'''
BODY = """    if percent < 0 or percent > 100:
        raise ValueError("percent must be between 0 and 100")
    kept = 100 - percent
    return price * kept // 100
"""
STUB = GOLD.replace(BODY, "    raise NotImplementedError\n")

PROJECT = {
    "till/__init__.py": "from till.pricing import discounted, taxed\n",
    "till/pricing.py": GOLD,
    "till/labels.py": "def label(cents):\n    whole, rest = divmod(cents, 100)\n    return f'{whole}.{rest:02}'\n",
    "tests/test_labels.py": "from till.labels import label\n\n\ndef test_label():\n    assert label(1205) == '12.05'\n",
    "tests/test_pricing.py": """import unittest

import pytest

from till.pricing import discounted, taxed


def test_discounted():
    assert discounted(200, 10) == 180
    assert discounted(99, 50) == 49


@pytest.mark.parametrize(("price", "percent", "left"), [(1000, 5, 950), (30, 100, 0), (70, 0, 70), (45, 20, 36)])
def test_many(price, percent, left):
    assert discounted(price, percent) == left


def test_outside():
    with pytest.raises(ValueError):
        discounted(100, 101)


class TestPricing(unittest.TestCase):
    def test_discounted(self):
        self.assertEqual(discounted(500, 25), 375)

    def test_taxed(self):
        self.assertEqual(taxed(50), 60)
""",
    "README.md": "# till\n",
}
TESTS = "tests/test_pricing.py"
PRICING = "till/pricing.py"
