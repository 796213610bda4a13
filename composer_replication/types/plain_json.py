"""Convert every class of this package to plain JSON data and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from composer_replication.types.grade import Reward, Unscored

_T = TypeVar("_T")
_field_types: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def to_json(value: Any) -> Any:
    """Return plain JSON data of any class of this module; `Unscored` becomes `{"unscored": reason}`."""
    if isinstance(value, Unscored):
        return {"unscored": value.reason}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, StrEnum):
        return value.value
    return value


def reward_from_json(value: Any) -> Reward:
    """Invert `to_json` for a reward."""
    return Unscored(value["unscored"]) if isinstance(value, dict) else float(value)


def from_json(kind: type[_T], data: Mapping[str, Any]) -> _T:
    """Invert `to_json` for a dataclass of this package. Raises KeyError, TypeError or ValueError on a record of another shape."""
    types = _field_types(kind)
    return kind(**{name: _read(types[name], value) for name, value in {**data}.items()})


def _read(kind: Any, value: Any) -> Any:
    """Return what `to_json` made `value` from, given the type of the field that held it."""
    inner = get_args(kind)
    if value is None and NoneType in inner:
        return None
    if Unscored in inner:
        return reward_from_json(value)
    if isinstance(kind, UnionType):
        return _read(inner[0], value)
    if get_origin(kind) in (tuple, Sequence):
        return tuple(value) if inner[0] in (int, float, str) else tuple(_read(inner[0], item) for item in value)
    if get_origin(kind) is Mapping and inner[1] is not Any:
        return {name: _read(inner[1], item) for name, item in value.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return from_json(kind, value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, StrEnum) else value
