"""Held-out calls of a Go module: those of its tests, varied, and answered by the gold code.

A test's calls are written down by an instrumented copy. Variations are kept when the gold code neither panics nor runs a block
for them that it does not run for the call they come from, and answers the same in two processes. For a task those are chosen that
no trivial body answers: zero values, an argument, a field, an item or a length of one, a constant, or the answers of the tests by
heart with any of these behind them.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from composer_replication.languages.functions import Function
from composer_replication.languages.go.calls import Answer, GoCall, ask, call_of, names_types
from composer_replication.languages.go.instrument import Target, callables_of, instrumented, packages_of, support, types_of
from composer_replication.languages.go.runner import GoRunner
from composer_replication.languages.go.values import Value, differs, is_value, varied
from composer_replication.sandbox.protocol import Ending, Tree
from composer_replication.types.errors import TaskError
from composer_replication.types.held_out_checks import HeldOutChecks, HeldOutProgram

_ORIGINALS, _VARIATIONS = 24, 36
"""Calls of a function that are taken from its tests, and made of them."""
_FEWEST, _ANSWERS = 4, 2
"""Held-out calls of a function, and different answers to them, below which they are no evidence."""
_KILLS = 2
"""Calls that must tell each trivial body from the gold code."""
_PARTS, _CONSTANTS = 6, 12
"""Items or fields of an argument, and constants, that are tried as the whole body."""
_OPAQUE = frozenset({"func", "chan", "unsafe.Pointer", "more"})
_MOST = 10
"""Calls of a function that a task keeps."""
_BUILTIN = frozenset(
    {
        *("bool", "string", "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64", "uintptr"),
        *("float32", "float64", "map", "interface", "byte", "rune", "error", "any"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutCall:
    """A call that no test makes, and what the gold code answers."""

    call: GoCall
    answer: Answer


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
            kept.setdefault(calls[number].key, []).append(HeldOutCall(call=calls[number], answer=answer))
    return CallBook(calls=kept, notes=(f"held-out calls: {said}",) if said else ())


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
    return found


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
        made = {_text(call.given) for call in found}
        originals = rng.sample(found, min(len(found), _ORIGINALS))
        start = len(calls)
        calls += originals
        bases |= {number: number for number in range(start, len(calls))}
        values = [call.given for call in found]
        for _ in range(4 * _VARIATIONS):
            at = rng.randrange(len(originals))
            given = varied(originals[at].given, values, rng)
            text = _text(given)
            if text not in made and len(calls) - start < len(originals) + _VARIATIONS:
                made.add(text)
                bases[len(calls)] = start + at
                calls.append(call_of(known[key], given))
    return calls, bases


def _text(given: Sequence[Value]) -> str:
    return json.dumps(list(given), sort_keys=True)


def _changed(expected: Answer, found: Answer) -> bool:
    """Return whether two answers to a call differ in what is compared."""
    return any(len(expected[part]) != len(found[part]) or any(map(differs, expected[part], found[part])) for part in ("r", "a"))


def choose_calls(book: CallBook, functions: Sequence[Function], seed: str) -> HeldOutChecks:
    """Choose the held-out calls of a task that deletes `functions`, or say why there is no evidence."""
    programs: list[HeldOutProgram] = []
    weakness = ""
    for function in functions:
        chosen, why = _chosen(list(book.calls.get(function.key, ())), random.Random(f"{seed} {function.key}"))
        programs += [_program(one) for one in chosen]
        weakness = weakness or (f"{why}: {function.qualname}" if why else "")
    return HeldOutChecks(programs=tuple(programs), weakness=weakness)


def _chosen(calls: list[HeldOutCall], rng: random.Random) -> tuple[list[HeldOutCall], str]:
    """Return few calls that kill every trivial body, or why none are evidence."""
    answers = Counter(_answer_text(one.answer) for one in calls)
    if len(calls) < _FEWEST:
        return calls, "too few held-out calls"
    if len(answers) < _ANSWERS:
        return calls, "its held-out calls have one answer"
    if any(value["k"] in _OPAQUE for one in calls for value in one.answer["r"]):
        return calls, "it gives what cannot be looked at"
    bodies = trivial_bodies(calls)
    kills = {name: [n for n, one in enumerate(calls) if _tells(one.answer, body(one.answer))] for name, body in bodies.items()}
    least = min(_KILLS, len(calls))
    survivor = next((name for name, found in kills.items() if len(found) < least), None)
    if survivor is not None:
        return calls[:_MOST], f"a trivial body ({survivor})"
    rng.shuffle(order := list(range(len(calls))))
    order.sort(key=lambda n: answers[_answer_text(calls[n].answer)])
    chosen: dict[int, None] = {}
    for found in kills.values():
        wanted = least - len(chosen.keys() & set(found))
        chosen |= dict.fromkeys([n for n in order if n in found and n not in chosen][: max(0, wanted)])
    chosen |= dict.fromkeys([n for n in order if n not in chosen][: max(0, _MOST - len(chosen))])
    return [calls[n] for n in chosen], ""


def _answer_text(answer: Answer) -> str:
    """Return results, and what was given where the call changed it."""
    before = answer.get("b") or []
    changed = [after for after, was in zip(answer["a"], before, strict=False) if differs(after, was)]
    return json.dumps([answer["r"], changed], sort_keys=True)


def trivial_bodies(calls: Sequence[HeldOutCall]) -> dict[str, Callable[[Answer], Sequence[Any] | None]]:
    """Return trivial bodies by what they are called: what each gives where the gold code gives an answer, None for nothing.

    That is known from what the function was given, so nothing has to be compiled.
    """
    bodies: dict[str, Callable[[Answer], Sequence[Any] | None]] = {"zero values": lambda answer: answer.get("z") or []}
    for at in range(len(calls[0].answer.get("b") or ())):
        bodies[f"argument {at}"] = partial(_argument, at=at)
        bodies[f"the length of argument {at}"] = partial(_length, at=at)
        bodies |= {f"part {inner} of argument {at}": partial(_inside, at=at, inner=inner) for inner in range(_PARTS)}
    constants = Counter(json.dumps(one.answer["r"], sort_keys=True) for one in calls)
    for text, _ in constants.most_common(_CONSTANTS):
        bodies[f"constant {len(bodies)}"] = partial(_constant, text=text)
    return bodies


def _constant(_answer: Answer, text: str) -> Sequence[Any]:
    results: Sequence[Any] = json.loads(text)
    return results


def _argument(answer: Answer, at: int) -> Sequence[Any] | None:
    return _given_back(answer, _part(answer, at))


def _inside(answer: Answer, at: int, inner: int) -> Sequence[Any] | None:
    items = (_part(answer, at) or {}).get("e")
    if not isinstance(items, list) or inner >= len(items):
        return None
    return _given_back(answer, items[inner][1] if isinstance(items[inner], list) else items[inner])


def _length(answer: Answer, at: int) -> Sequence[Any] | None:
    value = _part(answer, at) or {}
    held = value.get("v", "").encode() if value.get("k") == "string" else value.get("e") if value.get("k") == "list" else None
    return None if held is None else _given_back(answer, {"k": "int", "v": str(len(held))})


def _part(answer: Answer, at: int) -> Value | None:
    before: list[Value] = answer.get("b") or []
    return before[at] if at < len(before) else None


def _given_back(answer: Answer, value: Value | None) -> Sequence[Any] | None:
    """Return results that begin with a value, the others zero; None where there is no such value."""
    zeros = answer.get("z") or []
    return None if value is None or not zeros else [value, *zeros[1:]]


def _tells(answer: Answer, results: Sequence[Any] | None) -> bool:
    """Return whether an answer differs from a body's that gives `results` and changes nothing."""
    if results is None or len(results) != len(answer["r"]):
        return True
    if any(map(differs, answer["r"], results)):
        return True
    before = answer.get("b") or []
    return len(before) != len(answer["a"]) or any(map(differs, answer["a"], before))


def _program(one: HeldOutCall) -> HeldOutProgram:
    call = one.call
    step = {
        **{"key": call.key, "folder": call.folder, "package": call.package, "name": call.name, "method": call.method},
        **{"variadic": call.variadic, "results": call.results, "given": list(call.given)},
    }
    answer = {"r": one.answer["r"], "a": one.answer["a"]}
    return HeldOutProgram(steps=json.dumps([[0, step]]), expected=json.dumps([answer]), uses=call.key, new_calls=1)


def wrong_calls(runner: GoRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
    """Return the numbers of the held-out calls whose answers are wrong, and how the sandbox ended. Raises SandboxError."""
    calls = [_call_again(program) for program in programs]
    answers, ending, _ = ask(runner, tree, calls, judged=True)
    wrong = []
    for number, (program, answer) in enumerate(zip(programs, answers, strict=True)):
        if answer is None or _changed(json.loads(program.expected)[0], answer):
            wrong.append(number)
    return wrong, ending


def _call_again(program: HeldOutProgram) -> GoCall:
    """Read a call of a task that anybody may have written. Raises TaskError."""
    try:
        step = json.loads(program.steps)[0][1]
        call = GoCall(**{**step, "given": tuple(step["given"])})
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise TaskError("a held-out call of the task cannot be read", fix="build the task again") from error
    names = (call.package, *call.name.split("."))
    if not all(map(is_value, call.given)) or not all(name.isidentifier() for name in names) or not is_inside(call.folder):
        raise TaskError("a held-out call of the task is not a call", fix="build the task again")
    return call


def is_inside(folder: str) -> bool:
    """Return whether a folder lies in the tree."""
    return folder == "." or (not folder.startswith("/") and ".." not in folder.split("/") and bool(folder))
