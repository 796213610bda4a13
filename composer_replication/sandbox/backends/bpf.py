"""An assembler for the classic BPF programs of `linux/filter.h`: steps with labels become bytes, and it computes every jump."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _ANSWER = 0x20, 0x15, 0x35, 0x45, 0x06
_FARTHEST = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One instruction."""

    code: int
    value: int
    then: str = ""
    """Label to go to when the comparison holds; empty: the next step."""
    otherwise: str = ""
    """Label to go to when it does not hold; empty: the next step."""


Line: TypeAlias = Step | str
"""A step, or the label of the step that follows."""


def load(offset: int) -> Step:
    """Load the 32-bit word at `offset` of the data, for the comparisons that follow."""
    return Step(code=_LOAD, value=offset)


def if_equal(value: int, then: str = "", otherwise: str = "") -> Step:
    """Compare the loaded word with `value`."""
    return Step(code=_EQUAL, value=value, then=then, otherwise=otherwise)


def if_at_least(value: int, then: str = "", otherwise: str = "") -> Step:
    """Compare the loaded word with `value`, both unsigned."""
    return Step(code=_AT_LEAST, value=value, then=then, otherwise=otherwise)


def if_any_bit(bits: int, then: str = "", otherwise: str = "") -> Step:
    """Test whether the loaded word has any of `bits`."""
    return Step(code=_ANY_BIT, value=bits, then=then, otherwise=otherwise)


def answer(value: int) -> Step:
    """End the program with `value`."""
    return Step(code=_ANSWER, value=value)


def assemble(lines: Sequence[Line]) -> bytes:
    """Return the program as an array of `struct sock_filter`.

    Raises:
        ValueError: a label is missing, defined twice, never used, behind its jump or too far from it, or the last step is not
            an answer.
    """
    places: dict[str, int] = {}
    steps: list[Step] = []
    for line in lines:
        if isinstance(line, Step):
            steps.append(line)
        elif line in places:
            raise ValueError(f"the label {line!r} is defined twice")
        else:
            places[line] = len(steps)
    if not steps or steps[-1].code != _ANSWER:
        raise ValueError("the last step is not an answer")
    used = {label for step in steps for label in (step.then, step.otherwise) if label}
    if unused := sorted(places.keys() - used):
        raise ValueError(f"the labels {unused} are never used")

    def distance(place: int, label: str) -> int:
        if not label:
            return 0
        far = places.get(label, -1) - place - 1
        if not 0 <= far <= _FARTHEST or place + 1 + far >= len(steps):
            raise ValueError(f"step {place} cannot jump to {label!r}, {far} steps further")
        return far

    return b"".join(
        struct.pack("=HBBI", step.code, distance(place, step.then), distance(place, step.otherwise), step.value)
        for place, step in enumerate(steps)
    )
