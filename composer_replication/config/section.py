"""Building blocks of the run file's sections."""

from __future__ import annotations

import re
from typing import Annotated, Any, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
Name = Annotated[str, Field(pattern=_NAME)]
Positive = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class ReadBy:
    """Metadata of a field that is read only if another field of its section, `chooser`, has one of `choices`."""

    def __init__(self, chooser: str, *choices: str | bool) -> None:
        self.chooser, self.choices = chooser, choices


class Section(BaseModel):
    """A frozen table. Unknown keys are errors, and so are fields the section's choices leave unread, unless at their default. A
    field's docstring is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=False, allow_inf_nan=False)

    @classmethod
    def readers(cls, field: str) -> tuple[ReadBy, ...]:
        """Return the conditions under which a field is read."""
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
    """Reject a combination of fields from a section's validator. The message begins with the name of one of them."""
    raise PydanticCustomError("refused", "{message}", {"message": message, "fix": fix})


def flat(table: Any) -> Any:
    """Flatten nested tables into dotted keys: TOML reads an unquoted `loss.hint.weight = 0` as nested tables."""
    if not isinstance(table, dict):
        return table
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= {f"{key}.{rest}": v for rest, v in flat(value).items()} if isinstance(value, dict) else {key: value}
    return found


def _written(value: object) -> str:
    """Format a value as in a run file, without the quotes of a string."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_name(text: str) -> bool:
    """Return whether a run, an arm or a teacher may have this name."""
    return re.fullmatch(_NAME, text) is not None
