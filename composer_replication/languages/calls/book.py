"""Books of held-out calls: those of a project's tests, varied, and answered by the gold code; and what a task takes of them.

Variations are kept when the gold code runs no block for them that it does not run for the call they come from, and answers the
same each time, several times in each of two processes. For a task those are chosen that trivial bodies get wrong (`evidence`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from composer_replication.languages.calls.call import Answer, FunctionCall, HeldOutCall
from composer_replication.languages.calls.evidence import choose_evidence, form_of
from composer_replication.languages.calls.values import Value, differs
from composer_replication.languages.calls.variation import varied
from composer_replication.languages.functions import Function
from composer_replication.types.errors import TaskError
from composer_replication.types.held_out_checks import HeldOutChecks, HeldOutProgram

_ORIGINALS, _VARIATIONS = 24, 48
"""Calls of a function that are taken from its tests, and made of them."""
MOST_RECORDED = 150
"""Calls of a function that are written down; of one with more it is not known which calls its tests make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBook:
    """Held-out calls by function, and notes for people."""

    calls: Mapping[str, Sequence[HeldOutCall]]
    notes: tuple[str, ...] = ()


BOOK = TypeAdapter(CallBook)
"""Reads and writes a book as plain data."""


def with_variations(recorded: Iterable[FunctionCall], seed: int) -> tuple[list[FunctionCall], dict[int, int]]:
    """Return calls of the tests with variations, and for each the number of the one it comes from.

    Args:
        recorded: what tests call, repeats included. A function with `MOST_RECORDED` calls or more is left out.
    """
    calls: list[FunctionCall] = []
    bases: dict[int, int] = {}
    for key, found in sorted(_by_function(recorded).items()):
        rng = random.Random(f"{seed} {key}")
        made = {canonical(call.given) for call in found}
        originals = rng.sample(found, min(len(found), _ORIGINALS))
        start = len(calls)
        calls += originals
        bases |= {number: number for number in range(start, len(calls))}
        values = [call.given for call in found]
        for _ in range(4 * _VARIATIONS if found[0].given else 0):
            at = rng.randrange(len(originals))
            given = varied(originals[at].given, values, rng)
            text = canonical(given)
            if text not in made and len(calls) - start < len(originals) + _VARIATIONS:
                made.add(text)
                bases[len(calls)] = start + at
                calls.append(FunctionCall(key=key, how=originals[at].how, given=tuple(given)))
    return calls, bases


def _by_function(recorded: Iterable[FunctionCall]) -> dict[str, list[FunctionCall]]:
    """Return the calls of each function without repeats, in an order that does not depend on that of the tests."""
    found: dict[str, list[FunctionCall]] = {}
    for call in recorded:
        found.setdefault(call.key, []).append(call)
    by_text = {key: {canonical(one.given): one for one in calls} for key, calls in found.items() if len(calls) < MOST_RECORDED}
    return {key: [texts[text] for text in sorted(texts)] for key, texts in by_text.items()}


def canonical(given: Sequence[Value]) -> str:
    """Return what a call is given, the same for equal values however they are written down."""
    return repr([form_of(_without_zeros(value)) for value in given])


def _without_zeros(value: Value) -> Value:
    """Return a value without fields that are zero, which source code may name or not."""
    inner = value.get("e")
    if value["k"] == "struct":
        fields = [[name, _without_zeros(one)] for name, one in inner or ()]
        return {**value, "e": [[name, one] for name, one in fields if form_of(one) not in (None, 0, "bool false")]}
    if isinstance(inner, dict):
        return {**value, "e": _without_zeros(inner)}
    if value["k"] == "list":
        return {**value, "e": [_without_zeros(one) for one in inner or ()]}
    if value["k"] == "map":
        return {**value, "e": [[_without_zeros(key), _without_zeros(one)] for key, one in inner or ()]}
    return value


def steady_calls(
    calls: Sequence[FunctionCall], bases: Mapping[int, int], first: Sequence[Answer | None], again: Sequence[Answer | None]
) -> dict[str, list[HeldOutCall]]:
    """Return the variations that are kept, by function.

    Args:
        bases: for each call, the number of the one it comes from.
        first: the gold code's answers, with details.
        again: those of another process.
    """
    kept: dict[str, list[HeldOutCall]] = {}
    for number, base in bases.items():
        answer, other, origin = first[number], again[number], first[base]
        if answer is None or other is None or origin is None or changed(answer, other):
            continue
        if number != base and set(answer.get("h") or ()) <= set(origin.get("h") or ()):
            held = HeldOutCall(call=calls[number], answer=_without_blocks(answer), near=_without_blocks(origin))
            kept.setdefault(calls[number].key, []).append(held)
    return kept


def _without_blocks(answer: Answer) -> Answer:
    return {part: value for part, value in answer.items() if part != "h"}


def without_throwing(calls: Mapping[str, Sequence[HeldOutCall]]) -> dict[str, list[HeldOutCall]]:
    """Return the calls for which the gold code does not throw: what it should throw no test says, and a task's own tree throws
    too."""
    return {key: [one for one in found if not _throws(one.answer)] for key, found in calls.items()}


def _throws(answer: Answer) -> bool:
    return any(value["k"] == "throws" for value in answer["r"])


def changed(expected: Answer, found: Answer) -> bool:
    """Return whether two answers to a call differ in what is compared."""
    return any(len(expected[part]) != len(found[part]) or any(map(differs, expected[part], found[part])) for part in ("r", "a"))


def choose_calls(book: CallBook, functions: Sequence[Function], seed: str) -> HeldOutChecks:
    """Choose the held-out calls of a task that deletes `functions`, or say why there is no evidence."""
    programs: list[HeldOutProgram] = []
    weakness = ""
    for function in functions:
        rng = random.Random(f"{seed} {function.key}")
        chosen, why = choose_evidence(book.calls.get(function.key, ()), rng)
        programs += [_program(one) for one in chosen]
        weakness = weakness or (f"{why}: {function.qualname}" if why else "")
    return HeldOutChecks(programs=tuple(programs), weakness=weakness)


def with_wrong_answers_only(checks: HeldOutChecks, wrong: Callable[[Sequence[HeldOutProgram]], Sequence[int]]) -> HeldOutChecks:
    """Return checks that a task's own tree fails one and all, or a weakness.

    Args:
        wrong: returns the numbers of the programs that this tree fails.
    """
    if checks.weakness or not checks.programs or len(set(wrong(checks.programs))) == len(checks.programs):
        return checks
    return HeldOutChecks(programs=checks.programs, weakness="a held-out call is answered without the feature")


def _program(one: HeldOutCall) -> HeldOutProgram:
    answer = {"r": one.answer["r"], "a": one.answer["a"]}
    return HeldOutProgram(
        steps=json.dumps([[0, {"key": one.call.key, **one.call.how, "given": list(one.call.given)}]]),
        expected=json.dumps([answer]),
        uses=one.call.key,
        new_calls=1,
    )


def read_program(program: HeldOutProgram, is_call: Callable[[FunctionCall], bool]) -> tuple[FunctionCall, Answer]:
    """Return the call and the expected answer of a program that anybody may have written.

    Args:
        is_call: whether the language can make the call; it may raise what reading data of another shape raises.

    Raises:
        TaskError: it is none.
    """
    try:
        (step,), (expected,) = (one[1] for one in json.loads(program.steps)), json.loads(program.expected)
        how = {name: value for name, value in step.items() if name not in ("key", "given")}
        call = FunctionCall(key=step["key"], how=how, given=tuple(step["given"]))
        whole = all(isinstance(part, list) and all(isinstance(v, dict) for v in part) for part in (expected["r"], expected["a"]))
        good = whole and isinstance(call.key, str) and is_call(call)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise TaskError("a held-out call of the task cannot be read", fix="build the task again") from error
    if not good:
        raise TaskError("a held-out call of the task is not a call", fix="build the task again")
    return call, expected


def wrong_answers(known: Sequence[tuple[FunctionCall, Answer]], answers: Sequence[Answer | None]) -> list[int]:
    """Return the numbers of the calls without an answer or with another one than is expected."""
    pairs = enumerate(zip(known, answers, strict=True))
    return [number for number, ((_, expected), answer) in pairs if answer is None or changed(expected, answer)]


def is_answer(answer: object) -> bool:
    """Return whether data of a sandbox are an answer of a call that came to its end."""
    if not isinstance(answer, dict) or answer.get("p"):
        return False
    return isinstance(answer.get("r"), list) and isinstance(answer.get("a"), list)
