"""Whether held-out calls are evidence: how many of them a trivial body answers, whatever each of its results is made of.

An answer has places: each result, and each argument or field of one that the function changes. For every place a trivial body
gives a zero value, an argument, a part of one (an item or a field, two levels deep), a length, one of the most frequent values,
or what the gold code gives for the test's call that a held-out call was varied from (the tests' answers by heart, for the nearest
call). The worst body is the combination, one way a place, that answers most calls. All of it follows from what the function was
given, so nothing has to be compiled. Conversions are taken as given: numbers are compared by value, bytes as text.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from composer_replication.languages.calls.call import Answer, HeldOutCall
from composer_replication.languages.calls.values import Value, nodes_of

Form: TypeAlias = Hashable
"""A value without its types: numbers by value, texts and bytes as text, lists as tuples, what is empty as None."""

_FEWEST, _FEWEST_OF_TWO = 4, 8
"""Held-out calls of a function below which they are no evidence; and of one with only two answers, which are guessed."""
_MOST = 10
"""Calls of a function that a task keeps."""
_KILLED = 0.4
"""Share of these that the worst trivial body must get wrong, and at least two."""
_PARTS, _CONSTANTS, _TRIED = 16, 12, 50_000
"""Parts of an argument and constants of a place that are tried; combinations that are tried one by one."""
_OPAQUE = frozenset({"opaque", "more"})


def choose_evidence(calls: Sequence[HeldOutCall], rng: random.Random) -> tuple[list[HeldOutCall], str]:
    """Return few calls that trivial bodies get wrong, or some calls and why they are no evidence."""
    kept = [one for one in calls if not _has_opaque(one.answer)]
    if len(kept) < _FEWEST:
        unseen = len(calls) >= _FEWEST
        return list(calls)[:_MOST], "it gives what cannot be looked at" if unseen else "too few held-out calls"
    places = places_of(kept)
    answers = Counter(tuple(place.given(one.answer) for place in places) for one in kept)
    if len(answers) < 2:
        return kept[:_MOST], "its held-out calls have one answer"
    if len(answers) == 2 and len(kept) < _FEWEST_OF_TWO:
        return kept[:_MOST], "too few held-out calls for two answers"
    rng.shuffle(kept)
    ways = [_ways(place, kept) for place in places]
    easy = [sum(mask >> n & 1 for found in ways for mask in found.values()) for n in range(len(kept))]
    order = sorted(range(len(kept)), key=easy.__getitem__)[:_MOST]
    chosen = [kept[n] for n in order]
    name, most = worst_body([_ways(place, chosen) for place in places], len(chosen))
    if len(chosen) - most < max(2, math.ceil(_KILLED * len(chosen))):
        return chosen, f"a trivial body ({name})"
    return chosen, ""


def _has_opaque(answer: Answer) -> bool:
    return any(node["k"] in _OPAQUE for value in answer["r"] for node in nodes_of(value))


def worst_body(ways: Sequence[dict[str, int]], count: int) -> tuple[str, int]:
    """Return the combination of ways, one a place, that answers most of `count` calls, and how many.

    Args:
        ways: for each place, which calls each way answers, as bits.
    """
    every = (1 << count) - 1
    if math.prod(max(1, len(found)) for found in ways) <= _TRIED:
        combined = product(*(found.items() for found in ways))
    else:  # the best few of each place
        best = (sorted(found.items(), key=lambda item: -item[1].bit_count()) for found in ways)
        each = max(2, int(_TRIED ** (1 / len(ways))))
        combined = product(*(found[:each] for found in best))
    worst, most = "", -1
    for parts in combined:
        mask = every
        for _, one in parts:
            mask &= one
        if mask.bit_count() > most:
            worst, most = ", ".join(name for name, _ in parts), mask.bit_count()
    return worst or "nothing at all", most


@dataclass(frozen=True, slots=True)
class Place:
    """A part of an answer: a result, what was given as it is afterwards, or a field of that."""

    part: str
    """`r` or `a`."""
    index: int
    field: str = ""

    def given(self, answer: Answer) -> Form:
        """Return the form of what an answer has here."""
        return self._of(answer[self.part])

    def before(self, answer: Answer) -> Form:
        """Return the form of what was here before the call; of a result its zero value."""
        return self._of(answer.get("z" if self.part == "r" else "b") or [])

    def _of(self, values: Sequence[Value]) -> Form:
        value = values[self.index] if self.index < len(values) else None
        if self.field and value is not None:
            return next((form_of(inner) for name, inner in value.get("e") or () if name == self.field), None)
        return form_of(value)


def places_of(calls: Sequence[HeldOutCall]) -> list[Place]:
    """Return the results, and what of the arguments any call changes: single fields of structs."""
    answers = [one.answer for one in calls]
    places = [Place("r", n) for n in range(len(answers[0]["r"]))]
    for index in range(len(answers[0]["a"])):
        whole = Place("a", index)
        changed = [answer for answer in answers if whole.given(answer) != whole.before(answer)]
        if changed and all(_is_struct(answer, index) for answer in changed):
            names = dict.fromkeys(name for answer in changed for name, _ in answer["a"][index]["e"])
            fields = [Place("a", index, name) for name in names]
            places += [one for one in fields if any(one.given(answer) != one.before(answer) for answer in changed)]
        elif changed:
            places.append(whole)
    return places


def _is_struct(answer: Answer, index: int) -> bool:
    return all(answer[part][index].get("k") == "struct" for part in ("a", "b"))


def _ways(place: Place, calls: Sequence[HeldOutCall]) -> dict[str, int]:
    """Return the ways in which a trivial body may fill a place, and which calls each answers, as bits."""
    wanted = [place.given(one.answer) for one in calls]
    found: dict[str, int] = {}
    for n, one in enumerate(calls):
        for name, form in _fillings(place, one):
            if form == wanted[n]:
                found[name] = found.get(name, 0) | 1 << n
    for form, _ in Counter(wanted).most_common(_CONSTANTS):
        bits = sum(1 << n for n, other in enumerate(wanted) if other == form)
        found[f"the constant {str(form)[:40]}"] = bits
    return found or {"nothing": 0}


def _fillings(place: Place, one: HeldOutCall) -> Iterator[tuple[str, Form]]:
    yield ("zero" if place.part == "r" else "what it was"), place.before(one.answer)
    yield "the answer to the nearest call of a test", place.given(one.near)
    for at, value in enumerate(one.answer.get("b") or ()):
        form = form_of(value)
        yield f"argument {at}", form
        yield from _lengths(f"argument {at}", form)
        for number, part in enumerate(_parts(form)):
            yield f"part {number} of argument {at}", part
            yield from _lengths(f"part {number} of argument {at}", part)


def _parts(form: Form) -> list[Form]:
    """Return what is inside a form, and inside that."""
    first = _inside(form)
    return [*first, *(inner for part in first for inner in _inside(part))][:_PARTS]


def _inside(form: Form) -> list[Form]:
    if not isinstance(form, tuple):
        return []
    return [part[1] if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str) else part for part in form]


def _lengths(name: str, form: Form) -> Iterator[tuple[str, Form]]:
    if isinstance(form, str):
        yield f"the bytes of {name}", len(form.encode(errors="replace"))
        yield f"the letters of {name}", len(form)
    elif isinstance(form, tuple) or form is None:
        yield f"the length of {name}", len(form or ())


def form_of(value: Value | None) -> Form:
    """Return a value without its types."""
    match (value or {"k": "nil"})["k"]:
        case "bool":
            return f"bool {(value or {})['v']}"
        case "int" | "uint" | "float":
            return _number(str((value or {})["v"]))
        case "string" | "name":
            return (value or {})["v"] or None
        case "list":
            return _list_form((value or {}).get("e") or [])
        case "map":
            return tuple((form_of(key), form_of(inner)) for key, inner in (value or {}).get("e") or ()) or None
        case "struct":
            return tuple((name, form_of(inner)) for name, inner in (value or {}).get("e") or ()) or None
        case "interface" | "pointer":
            return form_of((value or {})["e"])
        case "nil":
            return None
        case kind:
            return ("kind", kind)


def _list_form(items: Sequence[Value]) -> Form:
    if items and all(item.get("t") in ("uint8", "u8", "byte", "Byte") for item in items):
        return bytes(int(item["v"]) & 255 for item in items).decode(errors="replace")
    return tuple(map(form_of, items)) or None


def _number(text: str) -> Form:
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() and abs(value) < 2**53 else int(text) if text.lstrip("-").isdigit() else value
