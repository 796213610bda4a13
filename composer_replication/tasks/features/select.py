"""Selection of deletions: functions that tests cover, alone, in related groups, or as whole features."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import zip_longest

from composer_replication.languages.functions import Function, Skipped
from composer_replication.sandbox.grading.pytest_run import CoverageByTest
from composer_replication.tasks.features.difficulty import difficulty_of
from composer_replication.tasks.report import BuildOptions

_MOST_IN_COMMON, _MOST_OF_FEATURES = 0.8, 0.5
"""Groups, and whole features, with a greater share of their functions in common (Jaccard) are the same exercise twice."""
_TRIVIAL_LINES = 3
"""Lines of code deleted in all, without a branch among them, that make no task by default."""
_SHARE_OF_TESTS = 0.5
"""Share of a function's tests that also run a feature, above which it belongs to it: a helper may have tests of its own."""
_NAMESAKES = 3
"""Functions of one name, none of them in the caller's file, above which a call of that name may be of anything."""
_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
"""Methods that a call of their class runs."""
_NEAR = 2
"""Steps in the call graph within which a function belongs to a whole feature; methods of the feature's class belong to it at any
distance."""


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

    @property
    def difficulty(self) -> float:
        """See `difficulty_of`."""
        return difficulty_of(self.functions, len(self.tests))


def covering_tests(function: Function, coverage: CoverageByTest, passing: Set[str]) -> frozenset[str]:
    """Return the tests among `passing` that execute a line of the function's body."""
    lines = coverage.get(function.path, {})
    found = (lines.get(line, frozenset()) for line in range(function.first_line, function.last_line + 1))
    return frozenset().union(*found) & passing


def choose_candidates(
    functions: Sequence[Function],
    coverage: CoverageByTest,
    passing: Set[str],
    *,
    options: BuildOptions | None = None,
    twins: Mapping[str, frozenset[str]] | None = None,
) -> tuple[list[Candidate], list[Skipped]]:
    """Return, for each covered function and each requested size, the function with those that belong to it.

    A function's group holds its helpers (functions whose covering tests are a subset of its own, in any file) and its siblings
    (functions of the same class or module that share covering tests); those closest in the call graph come first. Sizes
    alternate; within a size easy and hard ones do, and what is left of the order is drawn with the seed, so that any number of
    first candidates is a fair mix.

    Args:
        twins: functions by key, and those that are nearly their copies (`find_twins`).
    """
    options = options or BuildOptions()
    covers = {function.key: covering_tests(function, coverage, passing) for function in functions}
    skipped = [Skipped(function.key, "no passing test runs its body") for function in functions if not covers[function.key]]
    covered = [function for function in functions if covers[function.key]]
    rng = random.Random(options.seed)
    by_size: list[list[Candidate]] = []
    sizes = _groups(covered, covers, options)
    grouped = {member.key for groups in sizes for group in groups for member in group}
    skipped += [Skipped(f.key, "in no group of the size asked for (--size)") for f in covered if f.key not in grouped]
    for groups in sizes:
        chosen = [
            Candidate(functions=group, tests=frozenset().union(*(covers[member.key] for member in group))) for group in groups
        ]
        rng.shuffle(chosen)
        by_size.append(_evenly_hard(chosen))
    mixed = [candidate for row in zip_longest(*by_size) for candidate in row if candidate is not None]
    wanted = []
    for candidate in mixed:
        if reason := _unwanted(candidate, options, twins or {}):
            skipped.append(Skipped(candidate.key, reason))
        else:
            wanted.append(candidate)
    return _without_repeats(wanted, options, skipped), skipped


def _evenly_hard(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates in an order in which the first of them are spread evenly over easy and hard ones, as far as there are
    such; within a fifth of the scale they stay in their order."""
    fifths: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        fifths.setdefault(int(5 * candidate.difficulty), []).append(candidate)
    return [candidate for row in zip_longest(*(fifths[n] for n in sorted(fifths))) for candidate in row if candidate is not None]


def _unwanted(candidate: Candidate, options: BuildOptions, twins: Mapping[str, frozenset[str]]) -> str:
    """Return why a candidate is not worth a task; empty where it is."""
    if not options.min_difficulty <= candidate.difficulty <= options.max_difficulty:
        return "easier or harder than asked for"
    functions = candidate.functions
    if options.trivial:
        return ""
    if sum(function.lines for function in functions) <= _TRIVIAL_LINES and not any(function.branches for function in functions):
        return f"{_TRIVIAL_LINES} lines or fewer and no branch (--trivial keeps it)"
    deleted = {function.key for function in functions}
    if all(twins.get(key, frozenset()) - deleted for key in deleted):
        return "nearly a copy of a function that stays (--trivial keeps it)"
    return ""


def _groups(
    covered: Sequence[Function], covers: Mapping[str, frozenset[str]], options: BuildOptions
) -> list[list[tuple[Function, ...]]]:
    """Return distinct groups, one list for each size."""
    seen: set[frozenset[str]] = set()
    sizes: dict[int, list[tuple[Function, ...]]] = {size: [] for size in range(options.min_group_size, options.group_size + 1)}
    graph, whole_features = _call_graph(covered), options.mode == "feature"
    for function in covered:
        alone = options.group_size == 1 and not whole_features
        companions = [] if alone else _companions(function, covered, covers, graph, whole_features)
        found = range(options.min_group_size, min(options.group_size, len(companions) + 1) + 1)
        for size in [min(len(companions) + 1, options.group_size)] if whole_features else found:
            group = (function, *companions[: size - 1])
            names = frozenset(member.key for member in group)
            if size in sizes and names not in seen:
                seen.add(names)
                sizes[size].append(group)
    return list(sizes.values())


def _companions(
    feature: Function,
    covered: Sequence[Function],
    covers: Mapping[str, frozenset[str]],
    graph: Mapping[str, Set[str]],
    whole_features: bool,
) -> list[Function]:
    """Return helpers and siblings of `feature`, closest first. To a whole feature belong what it calls, directly or through one
    other function, and methods of its class, where at least half of their tests are its own."""
    own = covers[feature.key]
    scope = feature.qualname.rpartition(".")[0]
    distance = _distances(feature.key, graph)
    ranked = []
    for other in covered:
        theirs = covers[other.key]
        sibling = other.path == feature.path and other.qualname.rpartition(".")[0] == scope
        helper = theirs <= own
        if whole_features:
            mostly = len(theirs & own) >= _SHARE_OF_TESTS * len(theirs)
            belongs = mostly and (distance.get(other.key, _NEAR + 1) <= _NEAR or (sibling and bool(scope)))
        else:
            belongs = helper or bool(sibling and theirs & own)
        if other is feature or not belongs:
            continue
        overlap = len(theirs & own) / len(theirs | own)
        ranked.append(((distance.get(other.key, len(covered)), not helper, not sibling, -overlap, other.key), other))
    return [other for _, other in sorted(ranked, key=lambda item: item[0])]


def _call_graph(functions: Sequence[Function]) -> dict[str, frozenset[str]]:
    """Map each key to the keys of the functions it may call: calls are known by their last name only, and a class by its own. Of
    many namesakes those in the caller's file are meant, or none."""
    named: dict[str, set[Function]] = {}
    for function in functions:
        owner, _, name = function.qualname.rpartition(".")
        for known in (name, *([owner.rpartition(".")[2]] if owner and name in _CONSTRUCTORS else [])):
            named.setdefault(known, set()).add(function)

    def called(caller: Function, name: str) -> Iterator[str]:
        found = named.get(name, set())
        near = {one for one in found if one.path == caller.path}
        return (one.key for one in (near or (found if len(found) <= _NAMESAKES else ())))

    return {function.key: frozenset(key for name in function.calls for key in called(function, name)) for function in functions}


def _distances(start: str, graph: Mapping[str, Set[str]]) -> dict[str, int]:
    """Return the steps from `start` to every reachable function of the call graph."""
    found = {start: 0}
    frontier = {start}
    step = 0
    while frontier:
        step += 1
        frontier = set().union(*(graph[key] for key in frontier)) - found.keys()
        found.update(dict.fromkeys(frontier, step))
    return found


def _without_repeats(candidates: Sequence[Candidate], options: BuildOptions, skipped: list[Skipped]) -> list[Candidate]:
    """Keep the first of groups with nearly the same functions, of whole features the largest; the others go to `skipped`."""
    features = options.mode == "feature"
    most = _MOST_OF_FEATURES if features else _MOST_IN_COMMON
    kept: list[Candidate] = []
    holders: dict[str, list[int]] = {}
    for candidate in sorted(candidates, key=lambda c: -len(c.functions)) if features else candidates:
        size = len(candidate.functions)
        common = Counter(number for function in candidate.functions for number in holders.get(function.key, ()))
        if any(n >= most * (size + len(kept[i].functions) - n) for i, n in common.items()):
            skipped.append(Skipped(candidate.key, "nearly the functions of another group"))
            continue
        for function in candidate.functions:
            holders.setdefault(function.key, []).append(len(kept))
        kept.append(candidate)
    chosen = {candidate.key for candidate in kept}
    return [candidate for candidate in candidates if candidate.key in chosen]
