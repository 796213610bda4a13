"""The operations compute what their docstrings say and refuse what is not an int."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchard.ops import add, div, gap, low, mod, mul, sub, top

Operation = Callable[[int, int], int]
ALL = [add, div, gap, low, mod, mul, sub, top]


@pytest.mark.parametrize(
    ("operation", "first", "second", "result"),
    [
        (add, 17, 5, 22),
        (add, -17, 5, -12),
        (sub, 17, 5, 12),
        (sub, 5, 17, -12),
        (mul, 17, 5, 85),
        (mul, -3, 4, -12),
        (div, 17, 5, 3),
        (div, -17, 5, -4),
        (mod, 17, 5, 2),
        (mod, -17, 5, 3),
        (gap, 17, 5, 12),
        (gap, 5, 17, 12),
        (top, 17, 5, 17),
        (top, -17, 5, 5),
        (low, 17, 5, 5),
        (low, -17, 5, -17),
    ],
)
def test_result(operation: Operation, first: int, second: int, result: int) -> None:
    assert operation(first, second) == result


@pytest.mark.parametrize("operation", ALL)
@pytest.mark.parametrize("value", [True, 2.0, "2", None])
def test_not_an_int(operation: Operation, value: int) -> None:
    with pytest.raises(TypeError, match="first must be an int"):
        operation(value, 1)
    with pytest.raises(TypeError, match="second must be an int"):
        operation(1, value)


@pytest.mark.parametrize("operation", [div, mod])
def test_zero_divisor(operation: Operation) -> None:
    with pytest.raises(ValueError, match="second must not be zero"):
        operation(1, 0)
