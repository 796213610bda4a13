"""Pairs as lines of JSON in a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.observe.files import replace_file
from composer_replication.replaysim.records import problem_of
from composer_replication.types.errors import ConfigError, StorageError


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that holds no pair."""

    place: str
    """`FILE:LINE`, the first line being 1."""
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


def read_pairs(path: Path) -> tuple[list[dict[str, Any]], list[BadLine]]:
    """Read the pairs of a file of JSON lines, and the invalid lines; blank lines are neither.

    Raises:
        ConfigError: the file cannot be read.
    """
    pairs: list[dict[str, Any]] = []
    bad: list[BadLine] = []
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                pair, problem = _parse(line)
                if problem is None:
                    pairs.append(pair)
                else:
                    bad.append(BadLine(f"{path}:{number}", problem))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", fix="name a file with one pair per line") from error
    return pairs, bad


def _parse(line: bytes) -> tuple[Any, str | None]:
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        return None, f"not UTF-8 (byte {error.start + 1})"
    except RecursionError:
        return None, "not JSON (nested too deeply)"
    except ValueError as error:
        return None, f"not JSON ({error})"
    return value, problem_of(value)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def write_pairs(path: Path, pairs: Iterable[Mapping[str, Any]]) -> None:
    """Write one pair per line, the whole file or nothing.

    Raises:
        StorageError: it cannot be written; what was there before still is.
    """
    try:
        replace_file(path, b"".join(json.dumps(pair).encode() + b"\n" for pair in pairs))
    except StorageError as error:
        raise StorageError(
            f"cannot write {path}: {error.__cause__}", fix=f"free space or make {path.parent} writable; nothing was changed"
        ) from error
