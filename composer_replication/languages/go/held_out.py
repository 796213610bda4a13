"""Held-out calls of a Go module: those of its tests, varied, and answered by the gold code.

A test's calls are written down by an instrumented copy. Variations are kept when the gold code neither panics nor runs a block
for them that it does not run for the call they come from, and answers the same each time, several times in each of two processes.
For a task those are chosen that trivial bodies get wrong (`evidence`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.languages.functions import Function
from composer_replication.languages.go.calls import Answer, GoCall, ask, call_of, names_types
from composer_replication.languages.go.evidence import HeldOutCall, choose_evidence, form_of
from composer_replication.languages.go.instrument import Target, callables_of, instrumented, packages_of, support, types_of
from composer_replication.languages.go.runner import GoRunner
from composer_replication.languages.go.values import Value, differs, is_value, varied
from composer_replication.sandbox.protocol import Ending, Tree
from composer_replication.types.errors import TaskError
from composer_replication.types.held_out_checks import HeldOutChecks, HeldOutProgram

_ORIGINALS, _VARIATIONS = 24, 48
"""Calls of a function that are taken from its tests, and made of them."""
_MOST_RESULTS = 20
_STEP = ("key", "folder", "package", "name", "method", "variadic", "results")
"""Fields of a call that a program holds as they are."""
_RECORDED = 150
"""Calls of a function that are written down; of one with more it is not known which calls its tests make."""
_BUILTIN = frozenset(
    {
        *("bool", "string", "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64", "uintptr"),
        *("float32", "float64", "map", "interface", "byte", "rune", "error", "any"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBook:
    """Held-out calls by function, and notes for people."""

    calls: Mapping[str, Sequence[HeldOutCall]]
    notes: tuple[str, ...] = ()


def make_call_book(runner: GoRunner, tree: Tree, files: Mapping[str, bytes], tests: Sequence[str], *, seed: int) -> CallBook:
    """Record the calls that tests make, vary them, and keep what the gold code answers.

    Args:
        files: the module's sources, by POSIX path.
        tests: what the runner is given.

    Raises:
        SandboxError: the sandbox broke.
    """
    observed = instrumented(files)
    run, lines = runner.run_observed(Tree(base=tree.base, changes={**tree.changes, **observed}), {}, tests)
    known = {one.key: one for path, source in files.items() for one in callables_of(path, source)}
    types = types_of(files)
    recorded = _recorded(lines or (), known, types)
    if not recorded:
        why = next(iter(run.collect_errors), f"the tests ended: {run.ending}")
        return CallBook(calls={}, notes=(f"no call of the tests could be recorded: {why}",))
    calls, bases = _with_variations(recorded, known, seed)
    more = ("values", "recorder", "hits")
    extra = {folder: _named(support(folder, package, more)) for folder, package in packages_of(files).items()}
    hits = Tree(base=tree.base, changes={**tree.changes, **observed})
    first, _, said = ask(runner, hits, calls, judged=False, extra=extra)
    again, _, _ = ask(runner, tree, calls, judged=False)
    kept: dict[str, list[HeldOutCall]] = {}
    for number, base in bases.items():
        answer, other, origin = first[number], again[number], first[base]
        if answer is None or other is None or origin is None or _changed(answer, other):
            continue
        if number != base and set(answer.get("h") or ()) <= set(origin.get("h") or ()):
            held = HeldOutCall(call=calls[number], answer=_without_blocks(answer), near=_without_blocks(origin))
            kept.setdefault(calls[number].key, []).append(held)
    return CallBook(calls=kept, notes=(f"held-out calls: {said}",) if said else ())


def _without_blocks(answer: Answer) -> Answer:
    return {part: value for part, value in answer.items() if part != "h"}


def _named(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path.rpartition("/")[2]: content for path, content in files.items()}


def _recorded(lines: Iterable[Any], known: Mapping[str, Target], types: Mapping[str, set[str]]) -> dict[str, list[GoCall]]:
    """Return the calls that can be made again: of known functions, with types that the sources define."""
    found: dict[str, list[GoCall]] = {}
    for line in lines:
        if not (isinstance(line, list) and len(line) == 2 and line[0] in known and isinstance(line[1], list)):
            continue
        target = known[line[0]]
        if len(line[1]) != len(target.given) or not all(map(is_value, line[1])):
            continue
        call = call_of(target, line[1])
        nil_receiver = call.method and call.given[0]["k"] == "nil"
        if not nil_receiver and names_types(call) - _numbers(call) <= types.get(target.folder, set()) | _BUILTIN:
            found.setdefault(target.key, []).append(call)
    return {key: _each_once(calls) for key, calls in found.items() if len(calls) < _RECORDED}


def _each_once(calls: Iterable[GoCall]) -> list[GoCall]:
    """Return calls without repeats, in an order that does not hang on that of the tests."""
    by_text = {canonical(call.given): call for call in calls}
    return [by_text[text] for text in sorted(by_text)]


def _numbers(call: GoCall) -> set[str]:
    return {word for word in names_types(call) if word.isdigit()}


def _with_variations(
    recorded: Mapping[str, list[GoCall]], known: Mapping[str, Target], seed: int
) -> tuple[list[GoCall], dict[int, int]]:
    """Return calls of the tests with variations, and for each the number of the one it comes from."""
    calls: list[GoCall] = []
    bases: dict[int, int] = {}
    for key, found in sorted(recorded.items()):
        rng = random.Random(f"{seed} {key}")
        made = {canonical(call.given) for call in found}
        originals = rng.sample(found, min(len(found), _ORIGINALS))
        start = len(calls)
        calls += originals
        bases |= {number: number for number in range(start, len(calls))}
        values = [call.given for call in found]
        for _ in range(4 * _VARIATIONS):
            at = rng.randrange(len(originals))
            given = varied(originals[at].given, values, rng)
            text = canonical(given)
            if text not in made and len(calls) - start < len(originals) + _VARIATIONS:
                made.add(text)
                bases[len(calls)] = start + at
                calls.append(call_of(known[key], given))
    return calls, bases


def canonical(given: Sequence[Value]) -> str:
    """Return what a call is given, the same for equal values however they are written down."""
    return repr([form_of(_without_zeros(value)) for value in given])


def _without_zeros(value: Value) -> Value:
    """Return a value without fields that are zero, which Go source may name or not."""
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


def _changed(expected: Answer, found: Answer) -> bool:
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


def _program(one: HeldOutCall) -> HeldOutProgram:
    step = {name: getattr(one.call, name) for name in _STEP}
    answer = {"r": one.answer["r"], "a": one.answer["a"]}
    return HeldOutProgram(
        steps=json.dumps([[0, {**step, "given": list(one.call.given)}]]),
        expected=json.dumps([answer]),
        uses=one.call.key,
        new_calls=1,
    )


def wrong_calls(runner: GoRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
    """Return the numbers of the held-out calls whose answers are wrong, and how the sandbox ended.

    Raises:
        TaskError: a program is not a call.
        SandboxError: the sandbox broke.
    """
    known = [read_program(program) for program in programs]
    answers, ending, _ = ask(runner, tree, [call for call, _ in known], judged=True)
    pairs = enumerate(zip(known, answers, strict=True))
    return [number for number, ((_, expected), answer) in pairs if answer is None or _changed(expected, answer)], ending


def read_program(program: HeldOutProgram) -> tuple[GoCall, Answer]:
    """Return the call and the expected answer of a program that anybody may have written. Raises TaskError."""
    try:
        (step,), (expected,) = (one[1] for one in json.loads(program.steps)), json.loads(program.expected)
        call = GoCall(**{**{name: step[name] for name in _STEP}, "given": tuple(step["given"])})
        whole = all(isinstance(part, list) and all(isinstance(v, dict) for v in part) for part in (expected["r"], expected["a"]))
        good = whole and _is_call(call)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise TaskError("a held-out call of the task cannot be read", fix="build the task again") from error
    if not good:
        raise TaskError("a held-out call of the task is not a call", fix="build the task again")
    return call, expected


def _is_call(call: GoCall) -> bool:
    """Return whether untrusted data are a call. Raises TypeError or AttributeError on data of other types."""
    names = (call.package, *call.name.split("."))
    inside = call.folder == "." or (not call.folder.startswith("/") and ".." not in call.folder.split("/"))
    numbers = isinstance(call.results, int) and 0 <= call.results <= _MOST_RESULTS and len(call.given) >= 1
    return numbers and inside and all(map(str.isidentifier, names)) and all(map(is_value, call.given))
