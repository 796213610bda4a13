"""Tests for a source archive that has none, from the repository that its metadata names, at the tag of its version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.tasks.indexes.archives import IndexedVersion, repositories_of
from composer_replication.tasks.sources.fetch import clone
from composer_replication.tasks.sources.run_git import git_for
from composer_replication.types.errors import SourceError

_TAG = re.compile(r"(?P<prefix>.*?)[-_/.@ ]?v?(?P<version>\d.*)", re.IGNORECASE)
_PREFIXES = frozenset({"", "v", "r", "rel", "release", "releases", "version"})
_MOST_BYTES = 16 << 20
_SAME = 0.8
"""Share of the archive's modules that the repository must hold unchanged to be what the archive was made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClonedProject:
    """A project in a clone of its repository."""

    url: str
    commit: str
    tree: Path
    """Its folder: that of the clone, or one in it."""


def clone_of_archive(version: IndexedVersion, files: Mapping[str, bytes], folder: Path) -> ClonedProject:
    """Clone into `folder` the repository that a source archive names, at the tag of its version.

    Args:
        files: contents of the archive by path; its metadata names the repository.

    Raises:
        SourceError: the archive names no repository of a public forge, that has no such tag, cannot be fetched, or is not what
            the archive was made from.
    """
    name, number = version.name, version.version
    missing = f"{name} {number} has no tests in its source archive"
    fix = f"name its repository instead (composer tasks build URL@TAG), or another version of {name}"
    repositories, inner = repositories_of(version, files)
    url = next(repositories, None)
    if url is None:
        raise SourceError(f"{missing}, and its metadata names no repository of a public forge", fix=fix)
    try:
        tag = _tag(git_for(url, url, folder).run("ls-remote", "--tags", "--refs", url, network=True).splitlines(), name, number)
        if tag is None:
            raise SourceError(f"it has no tag for {number}", fix=fix)
        _, commit = clone(f"{url}@{tag}", folder)
    except SourceError as error:
        raise SourceError(f"{missing}, and {url}, which it names, gives none: {error.message}", fix=fix) from error
    modules = [path for path in files if version.index.is_code(path)]
    with OpenFolder(folder.resolve()) as top:
        same = sum(_text(_read(top, f"{inner}/{path}".lstrip("/"))) == _text(files[path]) for path in modules)
    if same < _SAME * len(modules):
        raise SourceError(f"{missing}, and {url} at {tag} holds {same} of its {len(modules)} modules unchanged", fix=fix)
    return ClonedProject(url=url, commit=commit, tree=folder / inner)


def _tag(lines: Sequence[str], name: str, version: str) -> str | None:
    """Return the tag of a version among the lines of `git ls-remote`: one that is the version, or its end behind a word that
    says so, or behind the project's name."""
    for line in lines:
        tag = line.partition("refs/tags/")[2].strip()
        match = _TAG.fullmatch(tag)
        if (
            match
            and canonicalize_name(match["prefix"]) in {*_PREFIXES, canonicalize_name(name)}
            and _is(match["version"], version)
        ):
            return tag
    return None


def _is(text: str, wanted: str) -> bool:
    try:
        return Version(text.replace("_", ".")) == Version(wanted)
    except InvalidVersion:
        return text == wanted


def _read(top: OpenFolder, path: str) -> bytes | None:
    """Return a file of a repository; None where it is none, or a link."""
    try:
        return top.read(path, _MOST_BYTES)
    except OSError:
        return None


def _text(content: bytes | None) -> bytes | None:
    return None if content is None else content.replace(b"\r\n", b"\n")
