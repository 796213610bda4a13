"""Stands in for torchmonarch where it is not installed: actor classes can then be imported and read, but not instantiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from composer_replication.types.errors import MissingExtraError

_Method = TypeVar("_Method", bound=Callable[..., Any])


def missing() -> MissingExtraError:
    """Return the error that says how to install Monarch."""
    return MissingExtraError(
        "the Monarch mesh needs torchmonarch, which is not installed", fix="pip install 'composer-replication[monarch]'"
    )


class Actor:
    """The base of actor classes. Making one raises MissingExtraError."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Actor:
        raise missing()


Port: TypeAlias = Any
"""Where an endpoint's answer goes."""


def endpoint(method: _Method | None = None, **_options: object) -> Any:
    """Mark a method as an endpoint, with options or without; the method itself stays."""
    return (lambda marked: marked) if method is None else method
