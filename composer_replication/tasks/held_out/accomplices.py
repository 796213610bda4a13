"""Mutants that rewrite more than a task deletes: one function keeps what it is given, and others give that back.

A task that deletes `compress` alone may be handed in with another `expand`. Where tests look at nothing but round trips, the two
of them need no compression. The accomplices of a function are those that the steps of its programs call beside it, and others of
its own file that run for them. Each does what
its own code does and remembers what it was given; given something that the deleted function made, it gives back what that was
given, and the deleted function, given something of an accomplice's, does the same. Where steps never call the deleted function
themselves, two accomplices may do all of it, and the function is left out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence, Set

from composer_replication.languages.functions import Function
from composer_replication.languages.python.functions import find_functions
from composer_replication.sandbox.grading.programs import Mutant
from composer_replication.sandbox.grading.steps.kept import GIVEN_BACK, MISSING, accomplice, keeping
from composer_replication.sandbox.protocol import Tree
from composer_replication.tasks.held_out.book import HiddenBook
from composer_replication.tasks.held_out.mutants import Tried, alone_of, by_heart_of

_MOST, _MOST_INSIDE, _MOST_IN_PAIRS = 12, 4, 3
"""Accomplices of a function at once, those that most programs call; those that run without being called by a step; and those of
which two do without it."""


def accomplices_of(tried: Sequence[Tried], book: HiddenBook, gold: Tree) -> list[Tried]:
    """Return mutants of each function that is tried together with functions that no task deletes; of one without accomplices
    none."""
    deleted = {function.key for one in tried for function in one.functions}
    found = []
    for one in tried:
        function, beside = one.functions[0], _called_beside(one, book, gold, deleted)
        mutants = _with(one, beside, book)
        if not any(function.key in book.programs[number].called for number in one.pool):
            pairs = itertools.combinations(beside[:_MOST_IN_PAIRS], 2)
            mutants += [_without(one, pair, which) for pair in pairs for which in GIVEN_BACK]
        if beside and mutants:
            found.append(Tried(functions=[function], pool=one.pool, asking=one.asking, mutants=mutants, together=True))
    return found


def _called_beside(one: Tried, book: HiddenBook, gold: Tree, deleted: Set[str]) -> list[Function]:
    """Return the functions that programs call beside one that is tried, then those of its file that run for them, the most
    frequent first, as far as their bodies can be replaced."""
    called = Counter(key for number in one.pool for key in book.programs[number].called if key not in deleted)
    own = f"{one.functions[0].path}::"
    entered = Counter(
        key
        for number in one.pool
        for key in book.programs[number].entered
        if key.startswith(own) and key not in deleted and key not in called
    )
    functions = {f.key: f for path in {key.partition("::")[0] for key in (*called, *entered)} for f in _functions(gold, path)}
    found = []
    for counts, most in ((called, _MOST), (entered, _MOST_INSIDE)):
        keys = [key for key, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])) if key in functions]
        found += [functions[key] for key in keys[:most]]
    return found


def _functions(gold: Tree, path: str) -> list[Function]:
    source = gold.changes.get(path) or (gold.base / path).read_bytes()
    return find_functions(path, source)[0]


def _with(one: Tried, beside: Sequence[Function], book: HiddenBook) -> list[Mutant]:
    """Return mutants whose function keeps what it is given, each call or each that no test makes."""
    functions = [one.functions[0], *beside]
    known = {one.functions[0].key: book.known.get(one.functions[0].key, ())}
    texts = {which: [keeping(which, one.asked), *([accomplice(which)] * len(beside))] for which in GIVEN_BACK}
    alone = [alone_of(functions, some, one.pool) for some in texts.values()]
    return [*alone, *(by_heart_of(functions, some, one.asking, known) for some in texts.values())]


def _without(one: Tried, pair: Sequence[Function], which: str) -> Mutant:
    texts = [MISSING, *(keeping(which, one.asked) for _ in pair)]
    return alone_of([one.functions[0], *pair], texts, one.pool)
