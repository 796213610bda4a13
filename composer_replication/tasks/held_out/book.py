"""Programs that the gold code answers the same each time, and that honest work answers alike.

A program is one that the project's own tests could be: one of their recorded programs, or one with another argument or order of
steps. A varied program is kept where honest work cannot be wrong about it, as far as that can be told: the gold code runs no line
for it that it does not run for the program it comes from, and raises nothing that it does not raise there. Any program must give
the same answers each time, in another order and with other hashes, and ask neither clock nor machine. An exception counts only
where the tests name it.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter

from composer_replication.languages.layout import RepositoryLayout
from composer_replication.languages.python.functions import find_functions
from composer_replication.languages.python.instrument import instrument
from composer_replication.sandbox.grading.literals import OPAQUE
from composer_replication.sandbox.grading.programs import Steps, answers_again, examine_programs, record_steps, watch_calls
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.steps.references import needs
from composer_replication.sandbox.protocol import Ending, Tree
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.held_out.expected_errors import ExpectedErrors
from composer_replication.tasks.held_out.inverted import make_anti_tests
from composer_replication.tasks.held_out.iterators import read_again, uses_of
from composer_replication.tasks.held_out.slices import RecordedProgram, programs_of
from composer_replication.tasks.held_out.variations import Variations
from composer_replication.types.held_out_checks import AntiTest

_PER_FUNCTION = 8
"""Recorded programs taken for each function that they run."""
_VARIATIONS, _MOST_VARIATIONS = 2, 8
"""Variations of a program that are tried, and those of one that runs a function which few others run."""
_FEW, _FEW_OTHERS = 5, 3
"""Programs with a new call of a function, and those of them with an answer other than the most frequent one, below which more
variations are tried."""
_AIMS, _TOWARDS = 4, 4
"""Programs of a function that these are made from, and how many of each."""
_LONGER = 6
"""Variations towards each function that ask it for longer arguments, or more of them, than the tests do."""
_ROUNDS = 2
"""Rounds of these, each for the functions that the one before brought further and not far enough."""
SLOW_S = 0.2
"""CPU-seconds of the gold code above which a program is not kept."""
_MISUSE = frozenset({"TypeError", "AttributeError", "NameError", "RecursionError", "MemoryError", "SystemExit", "TimeoutError"})
"""Exceptions never expected of a varied program."""
_OF_THE_MACHINE = re.compile(r"0x[0-9a-fA-F]{6,}|/repo\b|/tmp\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedProgram:
    """A program, and what the gold code does for it."""

    steps: list[tuple[int, dict[str, Any]]]
    expected: list[Any]
    """As in `HeldOutProgram`."""
    entered: frozenset[str]
    """Keys (`path::qualname`) of the functions the gold code runs for it."""
    called: frozenset[str]
    """Those of them that its steps call themselves."""
    lines: Mapping[str, Sequence[int]]
    """Lines (1-based) that it runs of each file."""
    cpu_s: float
    """CPU-seconds that the gold code takes for it."""
    new_calls: Mapping[str, Sequence[str | None]]
    """By key of the function, what it returns to some calls that no test makes, as `steps.calls.answer_of` writes it; None where
    that is not known. Empty for the steps of a test."""
    longer: bool = False
    """It was drawn to ask for longer arguments, or more of them, than the tests have."""

    @property
    def informative(self) -> list[Any]:
        """The answers that say something: data and exceptions."""
        return [answer for answer in self.expected if answer is not None and answer != ["returns", OPAQUE]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenBook:
    """Every check of a project that its gold code satisfies."""

    programs: Sequence[ObservedProgram]
    known: Mapping[str, Sequence[int]]
    """The calls that tests make of each function (`steps.calls.call_of`), by its key."""
    anti_tests: Sequence[AntiTest]
    notes: Sequence[str]
    """Why there are none of a kind, or not every call of the tests is known."""


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
    recorded, why_no_programs = _recorded(runner, tree, layout, passing)
    steps = [program.steps for program in recorded]
    seen = examine_programs(runner, Tree(base=tree), steps, lines=True) if recorded else []
    known, why_not_watched = _known_calls(runner, tree, layout, seen) if recorded else ({}, "")
    programs = _Examiner(runner, tree, known, _open_ended(tree, layout)).programs(recorded, seen, rng)
    tests, why_no_tests = make_anti_tests(runner, tree, passing, rng)
    return HiddenBook(
        programs=programs,
        known=known,
        anti_tests=tests,
        notes=[why for why in (why_no_programs, why_not_watched, why_no_tests) if why],
    )


def _recorded(runner: CodeRunner, tree: Path, layout: RepositoryLayout, passing: Set[str]) -> tuple[list[RecordedProgram], str]:
    """Return the programs of the tests, or why there are none."""
    rewritten = _rewritten_tests(tree, layout)
    run, recording = record_steps(runner, Tree(base=tree, changes=rewritten), sources=layout.sources, tests=layout.tests)
    if run.ending is not Ending.EXITED:
        return [], f"no held-out programs: recording what the tests do ended early ({run.ending})"
    held = {test for test, outcome in run.outcomes.items() if outcome.value == "passed"}
    recorded = programs_of(recording, passing & held)
    return recorded, "" if recorded else "no held-out programs: the tests do nothing with the project that can be written down"


def _known_calls(
    runner: CodeRunner, tree: Path, layout: RepositoryLayout, seen: Sequence[Mapping[str, Any] | None]
) -> tuple[dict[str, list[int]], str]:
    """Return the calls of each function that the tests make, by its key, and why some may be missing."""
    watched, whole = watch_calls(runner, Tree(base=tree), sources=layout.sources, tests=layout.tests)
    found: dict[str, dict[int, None]] = defaultdict(dict)
    for one in seen:
        for function, calls in one["calls"].items() if one is not None else ():
            found[function].update((call, None) for call, _ in calls)
    for function, numbers in watched.items():
        found[function].update(dict.fromkeys(numbers))
    why = "" if whole else "some answers of the tests may count as unknown: not every call of theirs could be watched"
    return {function: list(numbers) for function, numbers in found.items()}, why


_Times: TypeAlias = tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]
"""What a program answered and ran, twice."""


@dataclass(frozen=True, slots=True)
class _Varied:
    """A variation of one of the programs that were taken."""

    parent: int
    steps: Steps
    longer: bool = False


class _Examiner:
    """Examines recorded programs and variations of them on the gold code, and keeps those to be relied on."""

    def __init__(self, runner: CodeRunner, tree: Path, known: Mapping[str, Sequence[int]], open_ended: Mapping[str, int]) -> None:
        self.runner, self.tree, self.known, self.open_ended = runner, Tree(base=tree), known, open_ended
        self.errors = ExpectedErrors(tree)

    def programs(
        self, recorded: Sequence[RecordedProgram], seen: Sequence[Mapping[str, Any] | None], rng: random.Random
    ) -> list[ObservedProgram]:
        """Return programs for each function. Variations are tried of all programs, then towards those functions of which few
        variations make a new call."""
        numbers = _taken(recorded, seen)
        taken, first = [recorded[number] for number in numbers], [seen[number] for number in numbers]
        variations = Variations([program.steps for program in taken], rng, self.open_ended)
        varied = [_Varied(*one) for one in variations.draw(_wanted(first))]
        times = self.times([program.steps for program in taken] + [one.steps for one in varied])
        origins, rest = times[: len(taken)], times[len(taken) :]
        found = [
            _observed(program.steps, (*time, one), self.errors.of(program.test), new_calls={})
            for program, time, one in zip(taken, origins, first, strict=True)
        ]
        telling = {number for number, program in enumerate(found) if program is not None and program.informative}
        found += self.kept(varied, rest, taken, origins)
        poor = _poor(found)
        entered = sorted({function for one in first if one is not None for function in one["calls"]})
        leading = [_aims(function, None, taken, first, telling) for function in entered]
        turns = [aim for aims in leading for aim in itertools.islice(itertools.cycle(aims), _LONGER)]
        longer = [_Varied(*one, longer=True) for aim in turns for one in variations.draw_longer(*aim, 1)]
        for round_ in range(_ROUNDS):
            aims = [aim for function in sorted(poor) for aim in _aims(function, poor[function], taken, first, telling)]
            varied = [_Varied(*one) for number, leading in aims for one in variations.draw_towards(number, leading, _TOWARDS)]
            varied += longer if round_ == 0 else []
            more = self.kept(varied, self.times([one.steps for one in varied]), taken, origins)
            found += more
            further = {function for program in more if program is not None for function in program.new_calls}
            poor = {function: common for function, common in _poor(found).items() if function in further}
        return [program for program in found if program is not None and program.informative]

    def times(self, programs: Sequence[Steps]) -> list[_Times]:
        """Do programs twice, in another order and with other hashes; what they ran is that of the first time."""
        if not programs:
            return []
        lined = examine_programs(self.runner, self.tree, programs[::-1], lines=True, known=self.known, hash_seed=1)[::-1]
        first = [None if one is None else one["answers"] for one in lined]
        again = answers_again(self.runner, self.tree, programs, first, hash_seed=2)
        pairs = zip(lined, again, strict=True)
        return [(one, None if one is None or answers is None else {**one, "answers": answers}) for one, answers in pairs]

    def kept(
        self, varied: Sequence[_Varied], times: Sequence[_Times], taken: Sequence[RecordedProgram], origins: Sequence[_Times]
    ) -> list[ObservedProgram | None]:
        """Return the variations for which the gold code does nothing that it does not do for the programs they come from."""
        found = []
        for one, (lined, again) in zip(varied, times, strict=True):
            origin, parent = origins[one.parent][0], taken[one.parent]
            if origin is not None and lined is not None and _does_nothing_new(one.steps, lined, parent.steps, origin):
                answers = {function: [answer for _, answer in calls] for function, calls in lined["calls"].items() if calls}
                named = self.errors.of(parent.test) - _MISUSE
                observed = _observed(one.steps, (lined, again), named, new_calls=answers)
                found.append(replace(observed, longer=one.longer) if observed is not None else None)
        return found


def _open_ended(tree: Path, layout: RepositoryLayout) -> dict[str, int]:
    """Return the names of the project's functions and methods that take any number of arguments by position, and of the classes
    whose constructors do, each with the number of arguments before these."""
    found: dict[str, int] = {}
    files = [path for path in layout.sources if path.endswith(".py")]
    for function in (function for path in files for function in find_functions(path, (tree / path).read_bytes())[0]):
        if function.rest:
            *outer, name = function.qualname.split(".")
            before = [
                one for one in function.parameters[: function.parameters.index(function.rest)] if one not in ("self", "cls")
            ]
            found[outer[-1] if outer and name in ("__init__", "__new__") else name] = len(before)
    return found


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
    """Return the numbers of some programs for each function that any of them runs, and for each set of names that programs ask
    for which run none: short ones first, of different tests; and of those that run lines which none of these does."""
    by_function: dict[str, list[int]] = defaultdict(list)
    for number, found in enumerate(seen):
        for function in (found["calls"] or [" ".join(_names(recorded[number].steps))]) if found is not None else ():
            by_function[function].append(number)
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


def _names(steps: Steps) -> list[str]:
    """Return the names that steps ask for: in modules, and of attributes, methods and operators."""
    text = json.dumps([step for _, step in steps])
    return sorted({*re.findall(r'"named", "([^"]+)"', text), *(step["name"] for _, step in steps if "name" in step)})


def _lines_of(found: Mapping[str, Any] | None) -> list[tuple[str, int]]:
    return [] if found is None else [(path, line) for path, line in found["lines"]]


def _wanted(seen: Sequence[Mapping[str, Any] | None]) -> list[int]:
    """Return the number of variations of each program: more for one that runs a function which few of them run."""
    entered = [list(found["calls"]) if found is not None else [] for found in seen]
    counts = Counter(function for functions in entered for function in functions)
    rarest = [min((counts[function] for function in functions), default=0) for functions in entered]
    return [max(_VARIATIONS, min(_MOST_VARIATIONS, 2 * _PER_FUNCTION // rare)) if rare else 0 for rare in rarest]


def _poor(observed: Sequence[ObservedProgram | None]) -> dict[str, str | None]:
    """Return the functions of which few programs make a new call, or few give another answer to it than the most frequent one,
    with that answer. What a function returns that only ever returns None says nothing."""
    programs = [program for program in observed if program is not None]
    answers: dict[str, list[Sequence[str | None]]] = {function: [] for program in programs for function in program.entered}
    for program in programs:
        for function, returned in program.new_calls.items():
            answers[function].append(returned)
    found = {}
    for function, given in answers.items():
        counts = Counter(answer for some in given for answer in dict.fromkeys(some))
        common = max(counts, key=lambda answer: counts[answer], default=None)
        others = sum(any(answer != common for answer in some) for some in given)
        if len(given) < _FEW or (others < _FEW_OTHERS and counts.keys() - {None, "None"}):
            found[function] = common
    return found


def _aims(
    function: str,
    common: str | None,
    taken: Sequence[RecordedProgram],
    seen: Sequence[Mapping[str, Any] | None],
    telling: Set[int],
) -> list[tuple[int, frozenset[int]]]:
    """Return the numbers of some programs that run a function, each with its steps that lead there: the shortest, and others from
    among the rest, of those that tell something where there are any; first those in which it does not answer as usual."""
    entering = {number: one for number, one in enumerate(seen) if one is not None and function in one["steps"]}
    running = {number: frozenset(one["steps"][function]) for number, one in entering.items()}
    usual = {number: all(answer == common for _, answer in one["calls"].get(function, ())) for number, one in entering.items()}
    ranked = sorted(telling & running.keys() or running, key=lambda number: (usual[number], len(taken[number].steps)))
    short, rest = ranked[: _AIMS // 2], ranked[_AIMS // 2 :]
    others = rest[:: max(len(rest) // (_AIMS // 2), 1)][: _AIMS // 2]
    return [(number, running[number]) for number in (*short, *others)]


def _does_nothing_new(steps: Steps, seen: Mapping[str, Any], parent: Steps, parent_seen: Mapping[str, Any]) -> bool:
    """Return whether the gold code runs no other line for a variation, and raises nothing at a step where it did not.

    Nor may an iterator be read more often: work that gives a list instead would answer otherwise.
    """
    lines, known = ({(path, line) for path, line in found["lines"]} for found in (seen, parent_seen))
    if not lines <= known or any(uses_of(steps, number) > uses_of(parent, number) for number in seen["iterators"]):
        return False
    raised = {number: answer for (number, _), answer in zip(parent, parent_seen["answers"], strict=True) if answer[0] == "raises"}
    pairs = zip(steps, seen["answers"], strict=True)
    return all(answer[0] != "raises" or raised.get(number, [0, 0])[1] == answer[1] for (number, _), answer in pairs)


def _observed(
    steps: Steps, times: Sequence[Mapping[str, Any] | None], errors: Set[str], *, new_calls: Mapping[str, Sequence[str | None]]
) -> ObservedProgram | None:
    """Return a program with the answers that were the same each time and that count; None for one that is not to be relied on."""
    done = [one for one in times if one is not None and not one["unsteady"]]
    if len(done) < len(times) or min(one["seconds"] for one in done) > SLOW_S:
        return None
    answers = zip(*(one["answers"] for one in done), strict=True)
    expected = [_counted(same[0], errors) if all(one == same[0] for one in same) else None for same in answers]
    again = read_again(steps, done[0]["iterators"])
    expected = [None if read else answer for answer, read in zip(expected, again, strict=True)]
    kept = _needed(steps, expected)
    lines: dict[str, list[int]] = defaultdict(list)
    for path, line in done[0]["lines"]:
        lines[path].append(line)
    return ObservedProgram(
        steps=[steps[at] for at in kept],
        expected=[expected[at] for at in kept],
        entered=frozenset(done[0]["calls"]),
        called=frozenset(done[0]["outermost"]),
        lines=dict(lines),
        cpu_s=min(one["seconds"] for one in done),
        new_calls=new_calls,
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


def _counted(answer: list[Any], errors: Set[str]) -> list[Any] | None:
    """Return an answer as far as honest work gives it too, or None. Of an exception that is from the first class on that tests
    name: its own, or one of its bases where they name all from there to `Exception`."""
    if answer[0] != "raises":
        known = answer[0] == "returns" and _OF_THE_MACHINE.search(json.dumps(answer[1])) is None
        return answer if known else None
    classes: list[str] = answer[1]
    first = next((place for place, name in enumerate(classes) if name in errors), len(classes))
    common = classes.index("Exception") if "Exception" in classes else len(classes)
    promised = first == 0 or (first <= common and errors >= {*classes[first:common]})
    return ["raises", classes[first:]] if promised else None
