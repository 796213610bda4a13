"""Grading checks beyond the tests: found once per project, chosen and proven for each task.

A held-out call is one that the project's own tests could make: of a function they call themselves, with arguments put together
from theirs. It is kept where honest work cannot be wrong about it, as far as that can be told: the gold code runs no line for it
that it does not run for one of the tests' own calls, gives the same kind of result, does so twice, in another order and with
other hashes, and asks neither clock nor machine. An exception counts only where the tests expect that exception.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from composer_replication.languages.python.functions import Function
from composer_replication.languages.python.inputs import vary
from composer_replication.sandbox.grading.anti_tests import expectations
from composer_replication.sandbox.grading.calls import Recorded, examine_calls, record_calls, wrong_calls
from composer_replication.sandbox.grading.held_out import lay_out
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Ending, Tree
from composer_replication.tasks.sources.layout import RepositoryLayout
from composer_replication.types.held_out_checks import AntiTest, HeldOutCall, HeldOutChecks

_NEW_PER_TARGET = 16
_MOST_CALLS = 20_000
_MOST_CASES = 40
"""Limit on the cases of a parametrized test that an anti-test is made from."""
_SLOW_S = 0.1
_NEW_PER_FUNCTION, _SEEN_PER_FUNCTION, _ANTI_PER_TASK, _CALLS_PER_TASK = 4, 2, 6, 24
_MISUSE = frozenset({"TypeError", "AttributeError", "NameError", "RecursionError", "MemoryError", "SystemExit", "TimeoutError"})
"""Exceptions never expected from new arguments."""
_OF_THE_MACHINE = re.compile(r"0x[0-9a-fA-F]{6,}|/repo\b|/tmp\b")
_RAISING = frozenset({"raises", "assertRaises", "assertRaisesRegex"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _ObservedCall:
    held_out: HeldOutCall
    entered: frozenset[str]
    """Keys (`path::qualname`) of the functions the gold code runs for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenBook:
    """Every check of a project that its gold code satisfies."""

    calls: Sequence[_ObservedCall]
    anti_tests: Sequence[AntiTest]
    notes: Sequence[str]
    """Why there are none of a kind."""

    def for_task(self, functions: Iterable[Function], failing: Set[str], *, seed: str) -> HeldOutChecks:
        """Choose checks for a task that deletes `functions` and whose fail-to-pass tests are `failing`; deterministic in `seed`.

        For each function calls that run it, new ones before those of the tests; and some of the tests that fail without it.
        """
        rng = random.Random(seed)
        keys = [function.key for function in functions]
        chosen: dict[HeldOutCall, None] = {}
        for row in zip_longest(*(self._of(key, rng) for key in keys)):
            chosen.update(dict.fromkeys(call for call in row if call is not None))
        names = {test_id.partition("[")[0] for test_id in failing}
        possible = [test for test in self.anti_tests if test.test in names]
        rng.shuffle(possible)
        return HeldOutChecks(calls=tuple(chosen)[:_CALLS_PER_TASK], anti_tests=tuple(possible[:_ANTI_PER_TASK]))

    def _of(self, key: str, rng: random.Random) -> list[HeldOutCall]:
        """Return calls that run one function, direct calls first."""
        running = [call for call in self.calls if key in call.entered]
        rng.shuffle(running)
        name = key.rpartition("::")[2]
        own = [call for call in running if call.held_out.target.rpartition(":")[2] == name]
        others = [call for call in running if call.held_out.target.rpartition(":")[2] != name]
        ordered = [call.held_out for call in (*_in_turns(own), *_in_turns(others))]
        new = [call for call in ordered if not call.seen][:_NEW_PER_FUNCTION]
        return new + [call for call in ordered if call.seen][:_SEEN_PER_FUNCTION]


HIDDEN_BOOK = TypeAdapter(HiddenBook)
"""Writes a book as plain data, and reads it back."""


def _in_turns(calls: Iterable[_ObservedCall]) -> list[_ObservedCall]:
    """Alternate between calls that return and calls that raise, in new and in seen ones: both halves of a validator get
    tested."""
    kinds: dict[tuple[bool, bool], list[_ObservedCall]] = {}
    for call in calls:
        kinds.setdefault((call.held_out.seen, _raises(call)), []).append(call)
    turns = zip_longest(*(kinds[kind] for kind in sorted(kinds)))
    return [call for turn in turns for call in turn if call is not None]


def without_broken(checks: HeldOutChecks, broken: Iterable[int]) -> HeldOutChecks:
    """Drop the checks numbered as in `GradeReport.hidden_broken`."""
    lost, first = set(broken), len(checks.calls)
    return replace(
        checks,
        calls=tuple(call for number, call in enumerate(checks.calls) if number not in lost),
        anti_tests=tuple(test for number, test in enumerate(checks.anti_tests, first) if number not in lost),
    )


def numbers_of(checks: HeldOutChecks) -> dict[str, int]:
    """Return the counts for a task's `provenance`."""
    new = sum(not call.seen for call in checks.calls)
    return {"held_out_calls": len(checks.calls), "held_out_new": new, "anti_tests": len(checks.anti_tests)}


def make_hidden_book(runner: CodeRunner, tree: Path, *, layout: RepositoryLayout, passing: Set[str], seed: int) -> HiddenBook:
    """Record the calls that the tests make, try new ones, and invert expectations; all on the gold code.

    Args:
        runner: its limits are those of each of the five runs. One that needs more gives no checks, and a note.
        passing: ids of the tests that pass.

    Raises:
        SandboxError: the sandbox broke.
    """
    rng = random.Random(seed)
    calls, why_no_calls = _calls(runner, Tree(base=tree), layout, rng)
    tests, why_no_tests = _anti_tests(runner, tree, passing, rng)
    return HiddenBook(calls=calls, anti_tests=tests, notes=[why for why in (why_no_calls, why_no_tests) if why])


def _calls(runner: CodeRunner, tree: Tree, layout: RepositoryLayout, rng: random.Random) -> tuple[list[_ObservedCall], str]:
    run, recorded = record_calls(runner, tree, sources=layout.sources, extra_args=layout.tests)
    if run.ending is not Ending.EXITED:
        return [], f"no held-out calls: recording the tests' calls ended early ({run.ending})"
    tried = _tried(recorded, rng)[:_MOST_CALLS]
    made = [(target, arguments) for target, arguments, _ in tried]
    first = examine_calls(runner, tree, made)
    again = examine_calls(runner, tree, made[::-1], hash_seed=1)
    if first is None or again is None:
        return [], "no held-out calls: the gold code does not get through them"
    steady = [
        (*call, answer) for call, answer, other in zip(tried, first, reversed(again), strict=True) if _is_steady(answer, other)
    ]
    expected_errors = {path: _expected_errors(tree.base / path) for path in {file for _, _, file in tried if file}}
    return _kept(steady, recorded, expected_errors), ""


def _tried(recorded: Recorded, rng: random.Random) -> list[tuple[str, str, str]]:
    """Return target, arguments and, for a call of the tests themselves, the test file."""
    found = []
    for target in sorted(recorded):
        calls = recorded[target]
        found += [(target, arguments, file) for arguments, file in calls]
        found += [(target, arguments, "") for arguments in vary([arguments for arguments, _ in calls], rng, _NEW_PER_TARGET)]
    return found


def _is_steady(answer: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether a call gave the same answer twice and the answer depends on neither time nor machine."""
    if "unwritable" in answer or answer["unsteady"] or max(answer["seconds"], other.get("seconds", 0.0)) > _SLOW_S:
        return False
    if any(answer.get(part) != other.get(part) for part in ("returns", "raises", "after")):
        return False
    return _OF_THE_MACHINE.search(json.dumps([answer.get("returns"), answer.get("after")])) is None


def _kept(
    steady: Sequence[tuple[str, str, str, Mapping[str, Any]]], recorded: Recorded, expected_errors: Mapping[str, Set[str]]
) -> list[_ObservedCall]:
    """Return the tests' own calls, and those new ones that do nothing theirs do not do."""
    found = []
    known: dict[str, list[tuple[Set[Any], str]]] = {}
    for target, _, file, answer in steady:
        if file:
            known.setdefault(target, []).append((_lines(answer), _kind(answer)))
    for target, arguments, file, answer in steady:
        errors = set().union(*(expected_errors.get(test_file, set()) for _, test_file in recorded[target]))
        if "raises" in answer and (answer["raises"][0] not in errors or (not file and answer["raises"][0] in _MISUSE)):
            continue
        lines, kind = _lines(answer), _kind(answer)
        if not file and not any(lines <= theirs and kind == their_kind for theirs, their_kind in known.get(target, ())):
            continue
        expected = {name: answer[name] for name in ("raises", "returns", "after") if name in answer}
        call = HeldOutCall(target=target, arguments=arguments, expected=json.dumps(expected), seen=bool(file))
        found.append(_ObservedCall(held_out=call, entered=frozenset(f"{path}::{name}" for path, name in answer["entered"])))
    raising = {call.held_out.target for call in found if _raises(call)}
    return [call for call in found if call.held_out.target in raising or not _tells_nothing(call)]


def _raises(call: _ObservedCall) -> bool:
    return "raises" in json.loads(call.held_out.expected)


def _tells_nothing(call: _ObservedCall) -> bool:
    """Return whether a call returns None and changes nothing, which is informative only where the function might have raised
    instead."""
    return bool(json.loads(call.held_out.expected) == {"returns": None, "after": {}})


def _lines(answer: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
    return frozenset((path, line) for path, line in answer["lines"])


def _kind(answer: Mapping[str, Any]) -> str:
    if "raises" in answer:
        return f"raises {answer['raises'][0]}"
    returned = answer["returns"]
    return str(returned[0]) if isinstance(returned, list) else type(returned).__name__


def _expected_errors(test_file: Path) -> frozenset[str]:
    """Return names mentioned as an expected exception in a test file."""
    try:
        tree = ast.parse(test_file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _RAISING and node.args:
            for name in ast.walk(node.args[0]):
                match name:
                    case ast.Name(id=mentioned) | ast.Attribute(attr=mentioned):
                        found.add(mentioned)
    return frozenset(found)


def _anti_tests(runner: CodeRunner, tree: Path, passing: Set[str], rng: random.Random) -> tuple[list[AntiTest], str]:
    """Make one anti-test per test function, as far as its copies behave as they should together, in any order."""
    cases: dict[str, int] = {}
    for test_id in passing:
        name = test_id.partition("[")[0]
        cases[name] = cases.get(name, 0) + 1
    counts = {
        f"{path}::{name}": count
        for path in sorted({name.partition("::")[0] for name in cases})
        if path.endswith(".py")
        for name, count in expectations((tree / path).read_bytes()).items()
    }
    chosen = [
        AntiTest(test=test, expectation=rng.randrange(count))
        for test, count in counts.items()
        if count and 0 < cases.get(test, 0) <= _MOST_CASES
    ]
    if not chosen:
        return [], "no anti-tests: no test has an expectation to turn around"
    broken: set[int] = set()
    for opposite_first in (False, True):
        laid_out = lay_out(chosen, tree, opposite_first=[opposite_first] * len(chosen))
        run = runner.run(Tree(base=tree, changes=laid_out.files), laid_out.wanted)
        if run.ending is not Ending.EXITED or run.tampered:
            return [], f"no anti-tests: their run ended early ({run.ending})"
        broken |= {number for number, _ in laid_out.broken(run.outcomes)}
    return [test for number, test in enumerate(chosen) if number not in broken], ""


def prove_calls(checks: HeldOutChecks, runner: CodeRunner, tree: Tree) -> HeldOutChecks:
    """Keep the checks whose calls fail on a task's own tree. Raises SandboxError."""
    if not checks.calls:
        return checks
    wrong, _ = wrong_calls(runner, tree, checks.calls)
    return replace(checks, calls=tuple(checks.calls[number] for number in wrong))
