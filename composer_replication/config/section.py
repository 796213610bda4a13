"""What the sections of a run file share."""

from __future__ import annotations

import re
from typing import Annotated, Any, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

__all__ = ["Decay", "Name", "Positive", "ReadBy", "Section", "Share", "Weight", "flat", "is_name", "refuse"]

_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
Name = Annotated[str, Field(pattern=_NAME)]
Positive = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class ReadBy:
    """Metadata of a field that means something only where another field of its section, `chooser`, has one of `choices`."""

    def __init__(self, chooser: str, *choices: str | bool) -> None:
        self.chooser, self.choices = chooser, choices


class Section(BaseModel):
    """A frozen table. An unknown key is an error, and so is a field that the choices made leave unread, unless at its default.
    A field's docstring is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=False, allow_inf_nan=False)

    @classmethod
    def readers(cls, field: str) -> tuple[ReadBy, ...]:
        """What has to be chosen for a field to be read."""
        return tuple(rule for rule in cls.model_fields[field].metadata if isinstance(rule, ReadBy))

    @model_validator(mode="after")
    def _everything_given_is_read(self) -> Self:
        for name, field in type(self).model_fields.items():
            given = getattr(self, name)
            for rule in self.readers(name) if given != field.default else ():
                chosen = getattr(self, rule.chooser)
                if chosen not in rule.choices:
                    choices = " or ".join(map(_written, rule.choices))
                    refuse(
                        f"{name} = {_written(given)} is not read with {rule.chooser} = {_written(chosen)}",
                        f"remove {name}, or choose {rule.chooser} = {choices}",
                    )
        return self


def refuse(message: str, fix: str) -> NoReturn:
    """In a validator of a section: what is wrong with its fields together, beginning with the name of one, and what to do."""
    raise PydanticCustomError("refused", "{message}", {"message": message, "fix": fix})


def flat(table: Any) -> Any:
    """TOML reads an unquoted `loss.hint.weight = 0` as nested tables: the same table, with such keys in one piece."""
    if not isinstance(table, dict):
        return table
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= {f"{key}.{rest}": v for rest, v in flat(value).items()} if isinstance(value, dict) else {key: value}
    return found


def _written(value: object) -> str:
    """As a run file has it, but for the quotes of a text."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_name(text: str) -> bool:
    """Whether a run, an arm or a teacher may have this name."""
    return re.fullmatch(_NAME, text) is not None
