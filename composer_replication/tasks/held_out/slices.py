"""Recorded steps cut into programs: what each test does with the project, with what that needs, and a look at what is left."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from composer_replication.sandbox.grading.programs import Recording, Step, Steps
from composer_replication.sandbox.grading.steps.references import needs, with_references

_PIECES = (8, 24, 60)
"""Steps that touch the project, from the start of a test, after which a program of its own ends."""
_PER_TEST_FUNCTION = 12
_MOST_PROGRAMS = 2000
_LOOKS_PER_CLASS, _OBJECTS_LOOKED_AT = 6, 4
_LOOKING = frozenset(f"builtins:{name}" for name in ("len", "list", "repr", "str", "sorted", "bool", "dict", "tuple", "set"))
_FIRST_LOOK = 1_000_000
"""Numbers of the steps that look at objects at a program's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedProgram:
    """What one test does with the project, or how that begins."""

    test: str
    steps: Steps


def programs_of(recording: Recording, passing: Set[str]) -> list[RecordedProgram]:
    """Return the different programs of the passing tests, at most so many of a test function and in all."""
    looks = _looks_by_class(recording)
    own: dict[str, list[int]] = defaultdict(list)
    for number, (test, touching, _) in enumerate(recording.facts):
        if touching and test in passing:
            own[test].append(number)
    functions: dict[str, list[str]] = defaultdict(list)
    for test in own:
        functions[test.partition("[")[0]].append(test)
    found: dict[str, RecordedProgram] = {}
    for tests in functions.values():
        count = len(found)
        for test in tests:
            if len(found) - count >= _PER_TEST_FUNCTION or len(found) >= _MOST_PROGRAMS:
                break
            for roots in _pieces(own[test]):
                steps = _renumbered(_with_looks(_closure(roots, recording), recording, looks))
                found.setdefault(json.dumps(steps), RecordedProgram(test=test, steps=steps))
    return list(found.values())


def _pieces(roots: Sequence[int]) -> Iterator[Sequence[int]]:
    for length in _PIECES:
        yield roots[:length]
        if len(roots) <= length:
            return
    yield roots


def _closure(roots: Iterable[int], recording: Recording) -> list[int]:
    """Return the roots and every step that they need, in order."""
    found: set[int] = set()
    pending = list(roots)
    while pending:
        number = pending.pop()
        if number not in found:
            found.add(number)
            pending += needs(recording.steps[number])
    return sorted(found)


def _looks_by_class(recording: Recording) -> Mapping[str, Sequence[Step]]:
    """Return for each class the ways in which tests look at its objects, most frequent first: steps on `["step", 0]`."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for step in recording.steps:
        match step:
            case {"do": "call", "of": ["named", name], "args": [["step", int(number)]]} if (
                name in _LOOKING and "named" not in step
            ):
                endless = name.rpartition(":")[2] in ("list", "tuple", "set", "sorted")
                look: Step = {"do": "items", "of": ["step", 0]} if endless else {**step, "args": [["step", 0]]}
            case {"do": "attribute" | "items", "of": ["step", int(number)]}:
                look = {**step, "of": ["step", 0]}
            case {"do": "operator", "name": "truth", "args": [["step", int(number)]]}:
                look = {**step, "args": [["step", 0]]}
            case _:
                continue
        kind = recording.facts[number][2]
        if kind and "unused" not in look:
            counts[kind][json.dumps(look)] += 1
    return {kind: [json.loads(look) for look, _ in seen.most_common(_LOOKS_PER_CLASS)] for kind, seen in counts.items()}


def _with_looks(numbers: Sequence[int], recording: Recording, looks: Mapping[str, Sequence[Step]]) -> list[tuple[int, Step]]:
    """Return the steps, and at their end a look at the last objects in every way in which tests look at their like."""
    steps = [(number, recording.steps[number]) for number in numbers]
    objects = [number for number in numbers if recording.facts[number][2] in looks][-_OBJECTS_LOOKED_AT:]
    extra = [_looking_at(number, look) for number in objects for look in looks[recording.facts[number][2]]]
    return steps + list(enumerate(extra, _FIRST_LOOK))


def _looking_at(number: int, look: Step) -> Step:
    step: Step = with_references(look, lambda _: ["step", number])
    return step


def _renumbered(steps: Sequence[tuple[int, Step]]) -> list[tuple[int, Step]]:
    """Return the steps numbered from 0 on, so that equal programs are equal."""
    numbers = {number: place for place, (number, _) in enumerate(steps)}
    return [(numbers[number], with_references(step, lambda of: ["step", numbers[of]])) for number, step in steps]
