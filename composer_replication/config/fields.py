"""The run file's fields with their types, defaults and meanings, read from the models themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from composer_replication.config.run import RunConfig, TeacherConfig


@dataclass(frozen=True, slots=True)
class FieldLine:
    """One field of a run file."""

    key: str
    """Dotted, as on the command line."""
    kind: str
    default: str
    """As in the file; empty when there is none."""
    about: str
    required: bool


def field_lines(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[FieldLine]:
    """Yield every field of a run file, in the order of the file. Fields of a teacher are listed once, under `teachers[]`."""
    for name, field in model.model_fields.items():
        key, kind = f"{prefix}{name}", field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from field_lines(kind, f"{key}.")
            continue
        yield FieldLine(key, _kind(kind), _default(field), " ".join((field.description or "").split()), field.is_required())
        if TeacherConfig in get_args(kind):
            yield from field_lines(TeacherConfig, f"{key}[].")


def _kind(annotation: Any) -> str:
    """Name the type in TOML's terms."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(map(str, members))
    if NoneType in members:
        return " or ".join(_kind(m) for m in members if m is not NoneType)
    if origin is tuple:
        return "array"
    if origin is dict:
        return "table"
    names: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "path"}
    return names.get(annotation) or _kind(members[0])


def _default(field: FieldInfo) -> str:
    if field.is_required() or field.default is None:
        return ""
    return json.dumps(field.default, default=str) if field.default not in ((), {}) else ""
