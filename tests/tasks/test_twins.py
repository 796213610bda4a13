"""Functions that are each other's copy but for a word or two, and deletions too small to be worth a task."""

from __future__ import annotations

import textwrap

from composer_replication.languages.python.functions import find_functions
from composer_replication.tasks.features.select import choose_candidates
from composer_replication.tasks.features.twins import find_twins
from composer_replication.tasks.report import BuildOptions

LFU = """
def lfu_cache(size, key):
    if size is None:
        return _cache({}, key, None)
    elif callable(size):
        return _cache(LFUCache(128), key, 128)
    return _cache(LFUCache(size), key, size)
"""
CODE = f"""
{LFU}
{LFU.replace("LFU", "FIFO").replace("lfu", "fifo")}

def other_constants(size, key):
    if size is None:
        return _cache([], size, None)
    elif callable(size):
        return _cache(LFUCache(64), key, 64)
    return _cache(Counter(size), key, size)

def getter(self):
    # a comment
    return self.__size

def one_line_with_a_branch(x):
    return x if x else 1

def four_lines(x):
    a = x + 1
    b = a * 2
    c = b - x
    return a + b + c
"""
SOURCE = textwrap.dedent(CODE).encode()
FUNCTIONS, _ = find_functions("m.py", SOURCE)
COVERAGE = {"m.py": {line: frozenset({"t"}) for f in FUNCTIONS for line in range(f.first_line, f.last_line + 1)}}


def chosen(**options: object) -> tuple[set[str], dict[str, str]]:
    """Return the names of the functions that become candidates alone, and why the others do not."""
    twins = find_twins(FUNCTIONS, {"m.py": SOURCE})
    kept, skipped = choose_candidates(FUNCTIONS, COVERAGE, {"t"}, options=BuildOptions(**options), twins=twins)
    return {c.key for c in kept}, {entry.what: entry.reason for entry in skipped}


def test_twins_differ_in_two_words_at_most() -> None:
    assert find_twins(FUNCTIONS, {"m.py": SOURCE}) == {
        "m.py::lfu_cache": {"m.py::fifo_cache"},
        "m.py::fifo_cache": {"m.py::lfu_cache"},
    }


def test_short_bodies_have_no_twins() -> None:
    source = b"def a(self):\n    return self.x\n\n\ndef b(self):\n    return self.y\n"
    functions, _ = find_functions("n.py", source)
    assert len(functions) == 2
    assert find_twins(functions, {"n.py": source}) == {}


def test_what_is_too_small_or_stands_beside_its_twin_makes_no_task_unless_asked_for() -> None:
    kept, reasons = chosen()
    assert kept == {"m.py::other_constants", "m.py::one_line_with_a_branch", "m.py::four_lines"}
    assert reasons == {
        "m.py::getter": "3 lines or fewer and no branch (--trivial keeps it)",
        "m.py::lfu_cache": "nearly a copy of a function that stays (--trivial keeps it)",
        "m.py::fifo_cache": "nearly a copy of a function that stays (--trivial keeps it)",
    }
    assert chosen(trivial=True) == ({function.key for function in FUNCTIONS}, {})


def test_a_group_is_kept_where_one_function_of_it_is_worth_it() -> None:
    kept, reasons = chosen(min_group_size=6, group_size=6)
    assert [len(key.split()) for key in kept] == [6]
    assert not any("--trivial" in reason for reason in reasons.values())
