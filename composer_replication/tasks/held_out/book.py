"""Programs that the gold code answers the same each time, and that honest work answers alike.

A program is one that the project's own tests could be: one of their recorded programs, or one with another argument or order of
steps. A varied program is kept where honest work cannot be wrong about it, as far as that can be told: the gold code runs no line
for it that it does not run for the program it comes from, and raises nothing that it does not raise there. Any program must give
the same answers each time, in another order and with other hashes, and ask neither clock nor machine. An exception counts only
where the tests name it.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from composer_replication.languages.python.instrument import instrument
from composer_replication.sandbox.grading.literals import OPAQUE
from composer_replication.sandbox.grading.programs import Steps, examine_programs, record_steps
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Ending, Tree
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.held_out.inverted import make_anti_tests
from composer_replication.tasks.held_out.slices import RecordedProgram, needs, programs_of
from composer_replication.tasks.held_out.variations import palette_of, vary
from composer_replication.tasks.sources.layout import RepositoryLayout
from composer_replication.types.held_out_checks import AntiTest
from composer_replication.types.syntax import parse_module

_PER_FUNCTION = 8
"""Recorded programs taken for each function that they run."""
_VARIATIONS, _MOST_VARIATIONS, _ATTEMPTS = 2, 8, 3
"""Variations of a program that are tried, those of one that runs a function which few others run, and draws for each."""
_SLOW_S = 0.2
_MISUSE = frozenset({"TypeError", "AttributeError", "NameError", "RecursionError", "MemoryError", "SystemExit", "TimeoutError"})
"""Exceptions never expected of a varied program."""
_OF_THE_MACHINE = re.compile(r"0x[0-9a-fA-F]{6,}|/repo\b|/tmp\b")
_EXPECTING = frozenset({"raises", "assertRaises", "assertRaisesRegex"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedProgram:
    """A program, and what the gold code does for it."""

    steps: list[tuple[int, dict[str, Any]]]
    expected: list[Any]
    """As in `HeldOutProgram`."""
    entered: frozenset[str]
    """Keys (`path::qualname`) of the functions the gold code runs for it."""
    lines: Mapping[str, Sequence[int]]
    """Lines (1-based) that it runs of each file."""
    cpu_s: float
    """CPU-seconds that the gold code takes for it."""
    seen: bool
    """A test does these very steps."""

    @property
    def informative(self) -> list[Any]:
        """The answers that say something: data and exceptions."""
        return [answer for answer in self.expected if answer is not None and answer != ["returns", OPAQUE]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenBook:
    """Every check of a project that its gold code satisfies."""

    programs: Sequence[ObservedProgram]
    anti_tests: Sequence[AntiTest]
    notes: Sequence[str]
    """Why there are none of a kind."""


HIDDEN_BOOK = TypeAdapter(HiddenBook)
"""Writes a book as plain data, and reads it back."""


def make_hidden_book(runner: CodeRunner, tree: Path, *, layout: RepositoryLayout, passing: Set[str], seed: int) -> HiddenBook:
    """Record what the tests do, try variations of it, and invert expectations; all on the gold code.

    Args:
        runner: its limits are those of each of the runs. One that needs more gives no checks, and a note.
        passing: ids of the tests that pass.

    Raises:
        SandboxError: the sandbox broke.
    """
    rng = random.Random(seed)
    programs, why_no_programs = _programs(runner, tree, layout, passing, rng)
    tests, why_no_tests = make_anti_tests(runner, tree, passing, rng)
    return HiddenBook(programs=programs, anti_tests=tests, notes=[why for why in (why_no_programs, why_no_tests) if why])


def _programs(
    runner: CodeRunner, tree: Path, layout: RepositoryLayout, passing: Set[str], rng: random.Random
) -> tuple[list[ObservedProgram], str]:
    rewritten = _rewritten_tests(tree, layout)
    run, recording = record_steps(runner, Tree(base=tree, changes=rewritten), sources=layout.sources, tests=layout.tests)
    if run.ending is not Ending.EXITED:
        return [], f"no held-out programs: recording what the tests do ended early ({run.ending})"
    held = {test for test, outcome in run.outcomes.items() if outcome.value == "passed"}
    recorded = programs_of(recording, passing & held)
    if not recorded:
        return [], "no held-out programs: the tests do nothing with the project that can be written down"
    first = examine_programs(runner, Tree(base=tree), [program.steps for program in recorded], lines=True)
    taken = _taken(recorded, first)
    varied = _varied([recorded[number].steps for number in taken], _wanted([first[number] for number in taken]), rng)
    tried = [recorded[number].steps for number in taken] + [steps for _, steps in varied]
    lined = examine_programs(runner, Tree(base=tree), tried[::-1], lines=True, hash_seed=1)[::-1]
    again = examine_programs(runner, Tree(base=tree), tried, hash_seed=2)
    errors = _ExpectedErrors(tree)
    found = []
    for place, number in enumerate(taken):
        named = errors.of(recorded[number].test)
        found.append(_observed(tried[place], (lined[place], again[place], first[number]), named, seen=True))
    for place, (parent, steps) in enumerate(varied, len(taken)):
        origin, one = lined[parent], lined[place]
        if origin is not None and one is not None and _does_nothing_new(steps, one, tried[parent], origin):
            named = errors.of(recorded[taken[parent]].test) - _MISUSE
            found.append(_observed(steps, (one, again[place]), named, seen=False))
    return [program for program in found if program is not None and program.informative], ""


def _rewritten_tests(tree: Path, layout: RepositoryLayout) -> dict[str, bytes]:
    """Rewrite the test files for the recorder; one that cannot be rewritten stays, and gives no programs."""
    sources = set(layout.sources)
    found = {}
    for path in tree_files(tree):
        inside = any(path == test or path.startswith(f"{test.rstrip('/')}/") or test == "." for test in layout.tests)
        if inside and path.endswith(".py") and path not in sources:
            try:
                found[path] = instrument((tree / path).read_text(encoding="utf-8")).encode()
            except (SyntaxError, ValueError, RecursionError):
                continue
    return found


def _taken(recorded: Sequence[RecordedProgram], seen: Sequence[Mapping[str, Any] | None]) -> list[int]:
    """Return the numbers of some programs for each function that any of them runs: short ones first, of different tests; and of
    those that run lines which none of these does."""
    by_function: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, found in enumerate(seen):
        for path, name in found["entered"] if found is not None else ():
            by_function[path, name].append(number)
    taken: set[int] = set()
    for numbers in by_function.values():
        tests: dict[str, int] = defaultdict(int)
        ranked = []
        for number in sorted(numbers, key=lambda n: len(recorded[n].steps)):
            test = recorded[number].test
            ranked.append((tests[test], len(recorded[number].steps), number))
            tests[test] += 1
        taken.update(number for _, _, number in sorted(ranked)[:_PER_FUNCTION])
    known = {line for number in taken for line in _lines_of(seen[number])}
    for number in sorted(range(len(recorded)), key=lambda n: len(recorded[n].steps)):
        if not known.issuperset(_lines_of(seen[number])):
            known.update(_lines_of(seen[number]))
            taken.add(number)
    return sorted(taken)


def _lines_of(found: Mapping[str, Any] | None) -> list[tuple[str, int]]:
    return [] if found is None else [(path, line) for path, line in found["lines"]]


def _wanted(seen: Sequence[Mapping[str, Any] | None]) -> list[int]:
    """Return the number of variations of each program: more for one that runs a function which few of them run."""
    entered = [{(path, name) for path, name in found["entered"]} if found is not None else set() for found in seen]
    counts = Counter(key for keys in entered for key in keys)
    rarest = [min((counts[key] for key in keys), default=0) for keys in entered]
    return [max(_VARIATIONS, min(_MOST_VARIATIONS, 2 * _PER_FUNCTION // rare)) if rare else 0 for rare in rarest]


def _varied(programs: Sequence[Steps], wanted: Sequence[int], rng: random.Random) -> list[tuple[int, Steps]]:
    """Return variations, each with the number of the program that it comes from."""
    palette = palette_of(programs)
    known = {json.dumps(program) for program in programs}
    found: list[tuple[int, Steps]] = []
    for number, program in enumerate(programs):
        for _ in range(wanted[number]):
            for _ in range(_ATTEMPTS):
                steps = vary(program, palette, rng)
                written = json.dumps(steps)
                if steps and written not in known:
                    known.add(written)
                    found.append((number, steps))
                    break
    return found


def _does_nothing_new(steps: Steps, seen: Mapping[str, Any], parent: Steps, parent_seen: Mapping[str, Any]) -> bool:
    """Return whether the gold code runs no other line for a variation, and raises nothing at a step where it did not.

    Nor may an iterator be read more often: work that gives a list instead would answer otherwise.
    """
    lines, known = ({(path, line) for path, line in found["lines"]} for found in (seen, parent_seen))
    if not lines <= known or any(_uses(steps, number) > _uses(parent, number) for number in seen["iterators"]):
        return False
    raised = {number: answer for (number, _), answer in zip(parent, parent_seen["answers"], strict=True) if answer[0] == "raises"}
    pairs = zip(steps, seen["answers"], strict=True)
    return all(answer[0] != "raises" or raised.get(number, [0, 0])[1] == answer[1] for (number, _), answer in pairs)


def _uses(steps: Steps, number: int) -> int:
    return sum(number in needs(step) for _, step in steps)


def _observed(steps: Steps, times: Sequence[Mapping[str, Any] | None], errors: Set[str], *, seen: bool) -> ObservedProgram | None:
    """Return a program with the answers that were the same each time and that count; None for one that is not to be relied on."""
    done = [one for one in times if one is not None and not one["unsteady"]]
    if len(done) < len(times) or min(one["seconds"] for one in done) > _SLOW_S:
        return None
    answers = zip(*(one["answers"] for one in done), strict=True)
    expected = [same[0] if all(one == same[0] for one in same) and _counts(same[0], errors) else None for same in answers]
    kept = _needed(steps, expected)
    entered = frozenset(f"{path}::{name}" for path, name in done[0]["entered"])
    lines: dict[str, list[int]] = defaultdict(list)
    for path, line in done[0]["lines"]:
        lines[path].append(line)
    return ObservedProgram(
        steps=[steps[at] for at in kept],
        expected=[expected[at] for at in kept],
        entered=entered,
        lines=dict(lines),
        cpu_s=min(one["seconds"] for one in done),
        seen=seen,
    )


def _needed(steps: Steps, expected: Sequence[Any]) -> list[int]:
    """Return the places of all steps but those that take an attribute which is no data and which no later step uses."""
    kept: list[int] = []
    used: set[int] = set()
    for at in reversed(range(len(steps))):
        number, step = steps[at]
        if step["do"] == "attribute" and number not in used and expected[at] in (None, ["returns", OPAQUE]):
            continue
        used.update(needs(step))
        kept.append(at)
    return kept[::-1]


def _counts(answer: list[Any], errors: Set[str]) -> bool:
    """Return whether an answer is one that honest work gives too."""
    if answer[0] == "raises":
        return answer[1][0] in errors
    return answer[0] == "returns" and _OF_THE_MACHINE.search(json.dumps(answer[1])) is None


class _ExpectedErrors:
    """Knows the exceptions that test files name as expected or caught."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.known: dict[str, frozenset[str]] = {}

    def of(self, test: str) -> frozenset[str]:
        path = test.partition("::")[0]
        if path not in self.known:
            self.known[path] = frozenset(_expected_errors(self.tree / path))
        return self.known[path]


def _expected_errors(test_file: Path) -> Iterable[str]:
    try:
        tree = parse_module(test_file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        expected: ast.AST | None = None
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _EXPECTING and node.args:
            expected = node.args[0]
        elif isinstance(node, ast.ExceptHandler):
            expected = node.type
        for name in ast.walk(expected) if expected is not None else ():
            match name:
                case ast.Name(id=mentioned) | ast.Attribute(attr=mentioned):
                    yield mentioned
