"""Files of JSON lines as pydantic models, with errors that name file, line and field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from composer_replication.types.errors import ConfigError

_Line = TypeVar("_Line")


def read_models(path: Path, kind: TypeAdapter[_Line]) -> Iterator[tuple[int, _Line]]:
    """Yield `(line number, value)` for every line that is not blank, counting lines from 1.

    Raises:
        ConfigError: the file cannot be read, or a line holds no such value.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", fix="name a file of JSON lines") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, kind.validate_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                message = f"{path}, line {number}: {where + ': ' if where else ''}{first['msg'].lower()}"
                raise ConfigError(message, fix=f"correct {where or 'that line'}") from None
