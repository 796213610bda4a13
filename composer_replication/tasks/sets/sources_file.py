"""The list of sources that a set is built from: a text file with one source a line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from composer_replication.tasks.indexes.archives import FORMS, indexed_version
from composer_replication.tasks.proofs.validate import slug_of
from composer_replication.tasks.sources.fetch import is_git_url, split_revision, without_password
from composer_replication.types.errors import ConfigError

_FORMS = f"write one folder, version on a package index ({FORMS}) or git URL a line; # begins a comment"


def read_sources(file: Path) -> tuple[str, ...]:
    """Return the sources that a file lists; folders are relative to the file's own.

    Raises:
        ConfigError: it cannot be read, lists none, lists one twice, or a line names no source.
    """
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error})", fix=_FORMS) from error
    found: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text:
            continue
        fetched = indexed_version(text) or (is_git_url(text) and not text.startswith(("pypi:", "npm:", "debian:")))
        source = text if fetched else str((file.parent / text).resolve())
        if not fetched and not Path(source).is_dir():
            raise ConfigError(f"{file}, line {number}: {without_password(text)} is no source", fix=_FORMS)
        if source in found:
            again = f"{file}, line {number}: {without_password(text)} repeats line {found[source]}"
            raise ConfigError(again, fix="remove one of the two lines")
        found[source] = number
    if not found:
        raise ConfigError(f"{file} lists no source", fix=_FORMS)
    return tuple(found)


def folders_of(sources: Sequence[str]) -> dict[str, str]:
    """Return the name of each source's folder in a set; it follows from the source alone."""
    return {source: _folder_of(source) for source in sources}


def _folder_of(source: str) -> str:
    if wanted := indexed_version(source):
        return slug_of(f"{wanted.name}-{wanted.version}") if "/" in wanted.name else f"{wanted.name}-{wanted.version}"
    address = split_revision(source)[0] if is_git_url(source) and not Path(source).is_dir() else source
    name = re.split(r"[/:]", address.rstrip("/"))[-1].removesuffix(".git")
    digest = hashlib.sha256(without_password(source).encode()).hexdigest()[:6]
    return f"{slug_of(name) or 'source'}-{digest}"
