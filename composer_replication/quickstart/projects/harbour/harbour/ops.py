"""Checked integer arithmetic: the operations every rule of the harbour is written in."""

from __future__ import annotations

__all__ = ["add", "div", "gap", "low", "mod", "mul", "sub", "top"]


def _check(**values: object) -> None:
    """Reject anything that is not a plain int; a bool is not a number here.

    Raises:
        TypeError: names the first argument that is not an int.
    """
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")


def _check_divisor(second: int) -> None:
    """Reject a zero divisor.

    Raises:
        ValueError: the divisor is zero.
    """
    if second == 0:
        raise ValueError("second must not be zero")


def add(first: int, second: int) -> int:
    """The sum of two ints."""
    _check(first=first, second=second)
    return first + second


def sub(first: int, second: int) -> int:
    """The difference: the first int less the second."""
    _check(first=first, second=second)
    return first - second


def mul(first: int, second: int) -> int:
    """The product of two ints."""
    _check(first=first, second=second)
    return first * second


def div(first: int, second: int) -> int:
    """The quotient of the first int by the second, rounded down.

    Raises:
        ValueError: the second int is zero.
    """
    _check(first=first, second=second)
    _check_divisor(second)
    return first // second


def mod(first: int, second: int) -> int:
    """The remainder of the first int by the second; it has the sign of the second.

    Raises:
        ValueError: the second int is zero.
    """
    _check(first=first, second=second)
    _check_divisor(second)
    return first % second


def gap(first: int, second: int) -> int:
    """The distance between two ints, never negative."""
    _check(first=first, second=second)
    return abs(first - second)


def top(first: int, second: int) -> int:
    """The maximum: the larger of two ints."""
    _check(first=first, second=second)
    return max(first, second)


def low(first: int, second: int) -> int:
    """The minimum: the smaller of two ints."""
    _check(first=first, second=second)
    return min(first, second)
