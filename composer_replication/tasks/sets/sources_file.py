"""The list of sources that a set is built from: a text file with one source a line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from composer_replication.tasks.proofs.validate import slug_of
from composer_replication.tasks.sources.fetch import is_git_url
from composer_replication.types.errors import ConfigError

_PYPI = "pypi:"
_FORMS = "write one folder, pypi:NAME==VERSION or git URL a line; # begins a comment"


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
        source = text if text.startswith(_PYPI) or is_git_url(text) else str((file.parent / text).resolve())
        if not (source == text or Path(source).is_dir()):
            raise ConfigError(f"{file}, line {number}: {text} is no folder", fix=_FORMS)
        if source in found:
            raise ConfigError(f"{file}, line {number}: {text} is line {found[source]} again", fix="remove one of the two lines")
        found[source] = number
    if not found:
        raise ConfigError(f"{file} lists no source", fix=_FORMS)
    return tuple(found)


def folders_of(sources: Sequence[str]) -> dict[str, str]:
    """Return the name of each source's folder in a set; it follows from the source alone."""
    return {source: _folder_of(source) for source in sources}


def _folder_of(source: str) -> str:
    if source.startswith(_PYPI):
        return re.sub(r"[^A-Za-z0-9._-]+", "-", source.removeprefix(_PYPI).replace("==", "-"))
    name = re.split(r"[/:]", source.rstrip("/").partition("@")[0] if is_git_url(source) else source.rstrip("/"))[-1]
    digest = hashlib.sha256(source.encode()).hexdigest()[:6]
    return f"{slug_of(name.removesuffix('.git')) or 'source'}-{digest}"
