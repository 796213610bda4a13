"""What to delete: functions that tests cover, alone or in groups that belong together."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import zip_longest

from composer_replication.sandbox.pytest_run import CoverageByTest
from composer_replication.tasks.functions import Function, Skipped

__all__ = ["Candidate", "choose_candidates", "covering_tests"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Functions to delete together, and the tests that run at least one of their bodies."""

    functions: tuple[Function, ...]
    """The feature first, then its helpers or siblings."""
    tests: frozenset[str]

    @property
    def key(self) -> str:
        """Names the same deletion in every build of the same tree."""
        return " ".join(sorted(function.key for function in self.functions))


def covering_tests(function: Function, coverage: CoverageByTest, passing: Set[str]) -> frozenset[str]:
    """The tests among `passing` that execute a line of the function's body."""
    lines = coverage.get(function.path, {})
    found = (lines.get(line, frozenset()) for line in range(function.first_line, function.last_line + 1))
    return frozenset().union(*found) & passing


def choose_candidates(
    functions: Sequence[Function], coverage: CoverageByTest, passing: Set[str], *, group_size: int = 1, seed: int = 0
) -> tuple[list[Candidate], list[Skipped]]:
    """Every covered function alone and, for each size from 2 to `group_size`, with the functions that belong to it.

    A function's group holds its helpers (functions whose covering tests are a subset of its own) and its siblings (functions
    of the same class or module that share covering tests); those it calls come first. Sizes alternate and the order within a
    size is drawn with `seed`, so that any number of first candidates is a fair mix.
    """
    covers = {function.key: covering_tests(function, coverage, passing) for function in functions}
    skipped = [Skipped(function.key, "no passing test runs its body") for function in functions if not covers[function.key]]
    covered = [function for function in functions if covers[function.key]]
    rng = random.Random(seed)
    by_size: list[list[Candidate]] = []
    seen: set[frozenset[str]] = set()
    companions = {f.key: _companions(f, covered, covers) for f in covered} if group_size > 1 else {}
    for size in range(1, group_size + 1):
        chosen = []
        for function in covered:
            group = (function, *companions.get(function.key, ())[: size - 1])
            names = frozenset(member.key for member in group)
            if len(group) == size and names not in seen:
                seen.add(names)
                tests = frozenset().union(*(covers[member.key] for member in group))
                chosen.append(Candidate(functions=group, tests=tests))
        rng.shuffle(chosen)
        by_size.append(chosen)
    mixed = [candidate for row in zip_longest(*by_size) for candidate in row if candidate is not None]
    return mixed, skipped


def _companions(feature: Function, covered: Sequence[Function], covers: Mapping[str, frozenset[str]]) -> list[Function]:
    """Helpers and siblings of `feature`, closest first."""
    own = covers[feature.key]
    scope = feature.qualname.rpartition(".")[0]
    ranked = []
    for other in covered:
        theirs = covers[other.key]
        sibling = other.path == feature.path and other.qualname.rpartition(".")[0] == scope
        helper = theirs <= own
        if other is feature or not (helper or (sibling and theirs & own)):
            continue
        called = other.qualname.rpartition(".")[2] in feature.calls
        overlap = len(theirs & own) / len(theirs | own)
        ranked.append(((not called, not helper, not sibling, -overlap, other.key), other))
    return [other for _, other in sorted(ranked, key=lambda item: item[0])]
