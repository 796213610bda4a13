"""Documents of a corpus, from folders, files of JSON lines and data sets of the Hugging Face hub."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from composer_replication.tasks.sources.licence import UNKNOWN, licence_of
from composer_replication.types.errors import ConfigError, MissingExtraError

HUB = "hf:"
_FILES = (".jsonl", ".jsonl.gz")
_TEXT, _LICENCE, _PLACE = ("text", "content"), ("license", "licenses"), ("path", "id", "url")
_LITTER = frozenset({"node_modules", "__pycache__", "site-packages", "dist-packages", "build", "dist"})
"""Folders that hold what a project did not write. Those whose name begins with a dot are left out too."""
_MOST_BYTES = 1 << 20
"""Of one file. A larger one is data, and is left out."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text, where it is from, and its licence as an SPDX expression or `unknown`."""

    text: str
    place: str
    licence: str = UNKNOWN


def read_source(source: str, endings: tuple[str, ...]) -> Iterator[Document]:
    """Yield the documents of a folder, a `.jsonl` or `.jsonl.gz` file, or `hf:NAME[:CONFIG]`, always in the same order.

    Args:
        endings: how the names of the files end that are read in a folder.

    Raises:
        ConfigError: there is nothing of that name, or it cannot be read.
        MissingExtraError: the package `datasets`, which reads the hub, is not installed.
    """
    if source.startswith(HUB):
        return _of_hub(source.removeprefix(HUB))
    path = Path(source)
    if path.is_dir():
        return _of_folder(path, endings)
    if path.is_file() and path.name.endswith(_FILES):
        return _of_lines(path)
    found = "is neither a folder nor a .jsonl file" if path.exists() else "does not exist"
    raise ConfigError(f"pretrain.sources: {path} {found}", fix=f"name a folder, a {' or '.join(_FILES)} file, or {HUB}NAME")


def _of_folder(root: Path, endings: tuple[str, ...]) -> Iterator[Document]:
    """Yield the files of a folder in the order of their paths. Links are not followed."""
    licences: dict[Path, str] = {}
    for place, inner, names in os.walk(root, onerror=_refuse):
        folder = Path(place)
        inner[:] = sorted(name for name in inner if name not in _LITTER and not name.startswith("."))
        above = licences.get(folder.parent, UNKNOWN) if folder != root else UNKNOWN
        own = licence_of(folder)
        licences[folder] = above if own == UNKNOWN else own
        for name in sorted(names):
            path = folder / name
            if name.endswith(endings) and path.is_file() and not path.is_symlink() and path.stat().st_size <= _MOST_BYTES:
                text = _decoded(path)
                if text is not None:
                    yield Document(text, str(path.relative_to(root.parent)), licences[folder])


def _refuse(error: OSError) -> NoReturn:
    """Raise ConfigError for a folder or a file that cannot be read."""
    raise ConfigError(
        f"pretrain.sources: {error.filename} cannot be read: {error.strerror}",
        fix="give yourself the right, or name another folder",
    ) from error


def _decoded(path: Path) -> str | None:
    """Return a file as text; None where it is none. Raises ConfigError."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None
    except OSError as error:
        _refuse(error)


def _of_lines(path: Path) -> Iterator[Document]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _document(_row(line, path, number), f"{path.name}:{number}")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"pretrain.sources: {path} cannot be read: {error}", fix="write it anew, in UTF-8") from error


def _row(line: str, path: Path, number: int) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(
            f"pretrain.sources: {path}, line {number} is no JSON: {error}", fix="write one object a line"
        ) from error
    if not isinstance(row, dict):
        raise ConfigError(f"pretrain.sources: {path}, line {number} is no object", fix="write one object a line")
    return row


def _of_hub(name: str) -> Iterator[Document]:
    """Yield the documents of a data set's split `train`, which is streamed."""
    if find_spec("datasets") is None:
        raise MissingExtraError(
            f"pretrain.sources: {HUB}{name} is read by datasets, which is not installed",
            fix="pip install 'composer-replication[pretrain]'",
        )
    from datasets import load_dataset

    repository, _, config = name.partition(":")
    try:
        rows = load_dataset(repository, config or None, split="train", streaming=True)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"pretrain.sources: {HUB}{name} cannot be read: {error}", fix="check its name and your access to it"
        ) from error
    for number, row in enumerate(rows):
        yield _document(row, f"{name}:{number}")


def _document(row: Mapping[str, Any], place: str) -> Document:
    """Read a row's columns.

    Raises:
        ConfigError: it has no text.
    """
    text = next((row[column] for column in _TEXT if isinstance(row.get(column), str)), None)
    if text is None:
        raise ConfigError(
            f"pretrain.sources: {place} has no text in {' or '.join(_TEXT)}; it has {', '.join(itertools.islice(row, 8))}",
            fix="rename the column, or write the texts to a .jsonl file",
        )
    named = next((row[column] for column in _LICENCE if row.get(column)), UNKNOWN)
    licences = named if isinstance(named, list) else [named]
    at = next((str(row[column]) for column in _PLACE if isinstance(row.get(column), str)), "")
    return Document(text, f"{place} {at}".strip(), " AND ".join(map(str, licences)))
