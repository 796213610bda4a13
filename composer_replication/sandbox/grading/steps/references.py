"""References in what steps are written as: to the results of other steps, and to modules.

The text of this module runs inside sandboxes too, in front of those of `steps.passed_on` and `steps.replay`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

_ITEMS = ("list", "tuple", "set", "frozenset")
"""Kinds of values (`literals`) whose items are values: data such as `{"step": 3}` is no reference."""


def with_references(written: Any, other: Callable[[int], Any]) -> Any:
    """Return a step, or a value, with something else in the place of each reference to the result of a step, whose number `other`
    gets."""

    def again(value: Any) -> Any:
        return with_references(value, other)

    match written:
        case {"do": _}:
            changed = {"of": again(written["of"])} if "of" in written else {}
            changed |= {"args": [*map(again, written["args"])]} if "args" in written else {}
            changed |= {"named": _each(again, written["named"])} if "named" in written else {}
            return {**written, **changed}
        case ["step", int(number)]:
            return other(number)
        case [kind, list(items)] if kind in _ITEMS:
            return [kind, [*map(again, items)]]
        case ["dict", list(pairs)]:
            return ["dict", [[*map(again, pair)] for pair in pairs]]
        case ["method" | "stand-in" as kind, value, *rest]:
            return [kind, again(value), *rest]
        case ["shipped", name, source, dict(held)]:
            return ["shipped", name, source, _each(again, held)]
    return written


def _each(change: Callable[[Any], Any], values: dict[str, Any]) -> dict[str, Any]:
    return {name: change(value) for name, value in values.items()}


def values_in(written: Any) -> Iterator[list[Any]]:
    """Yield the values of a step, or in a value, that hold no others."""
    inside: Iterable[Any] = ()
    match written:
        case {"do": _}:
            inside = [written.get("of"), *written.get("args", ()), *written.get("named", {}).values()]
        case [kind, list(items)] if kind in _ITEMS:
            inside = items
        case ["dict", list(pairs)]:
            inside = [part for pair in pairs for part in pair]
        case ["method" | "stand-in", value, *_]:
            inside = [value]
        case ["shipped", _, _, dict(held)]:
            inside = held.values()
        case list():
            yield written
    for value in inside:
        yield from values_in(value)


def needs(written: Any) -> list[int]:
    """Return the numbers of the steps whose results a step, or a value, uses."""
    return [value[1] for value in values_in(written) if value[0] == "step"]


def modules_of(program: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the modules that the steps of a program name."""
    for _, step in program:
        yield from (value[1].partition(":")[0] for value in values_in(step) if value[0] in ("named", "module"))
