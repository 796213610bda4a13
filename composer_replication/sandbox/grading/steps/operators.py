"""Operations that a rewritten test file or a program of steps names. The text of this module also runs inside sandboxes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

_OPERATORS: dict[str, Callable[..., Any]] = {
    "in": lambda item, container: item in container,
    "not in": lambda item, container: item not in container,
    "setattr": setattr,
    "delattr": delattr,
    "truth": bool,
}
"""Those that the module `operator` does not have, or has with its operands the other way round."""


def operate(name: str, *operands: Any) -> Any:
    """Apply an operator by its name in `operator` or `_OPERATORS`."""
    return (_OPERATORS.get(name) or getattr(operator, name))(*operands)


class Direct:
    """Carries out what rewritten code asks for, and nothing else: the functions of tests that travel with a program use it."""

    @staticmethod
    def call(function: Any, /, *args: Any, **named: Any) -> Any:
        return function(*args, **named)

    @staticmethod
    def method(owner: Any, name: str, /, *args: Any, **named: Any) -> Any:
        return getattr(owner, name)(*args, **named)

    call_unused, method_unused = call, method

    @staticmethod
    def attribute(owner: Any, name: str, /) -> Any:
        return getattr(owner, name)

    @staticmethod
    def operator(name: str, /, *operands: Any) -> Any:
        return operate(name, *operands)

    @staticmethod
    def items(values: Iterable[Any], /) -> Iterable[Any]:
        return values

    @staticmethod
    def truth(value: Any, /) -> Any:
        return value

    context = decorator = awaited = generated = truth
