"""A small project of two functions that undo each other, and tests that look at nothing but that."""

from __future__ import annotations

RUNS = '''
"""Texts as runs of equal characters."""


class Runs:
    """A text, compressed."""

    def __init__(self):
        self.pairs = []


def compress(text):
    """Return the runs of a text: each character once, with how often it stands there in a row."""
    runs = Runs()
    for character in text:
        if runs.pairs and runs.pairs[-1][0] == character:
            runs.pairs[-1][1] += 1
        else:
            runs.pairs.append([character, 1])
    return runs


def expand(runs):
    """Return the text that was compressed."""
    return "".join(character * count for character, count in runs.pairs)
'''
ROUND_TRIP = """
import pytest
from shop import compress, expand


@pytest.mark.parametrize("text", ["aaabbc", "x", "aabbaabb", "hello world", "zzzzzzzz"])
def test_round_trip(text):
    assert expand(compress(text)) == text
"""
