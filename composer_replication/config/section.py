"""What the sections of a run file share."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Decay", "Name", "Positive", "Section", "Share", "Weight", "is_name"]

_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
Name = Annotated[str, Field(pattern=_NAME)]
Positive = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """A frozen table whose unknown keys are errors; a field's docstring is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=False)


def is_name(text: str) -> bool:
    """Whether a run, an arm or a teacher may have this name."""
    return re.fullmatch(_NAME, text) is not None
