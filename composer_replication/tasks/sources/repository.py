"""Tests for a source archive that has none, from the repository that its metadata names, at the tag of its version."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.tasks.sources.fetch import clone
from composer_replication.tasks.sources.run_git import git_for
from composer_replication.types.errors import SourceError

_FORGE = re.compile(r"https://(?:www\.)?(?:github\.com|gitlab\.com|codeberg\.org|bitbucket\.org)/[\w.-]+/[\w.-]+")
"""Repositories of public forges: metadata that strangers write may name no other host."""
_LIKELY = re.compile(r"source|repository|code|git", re.IGNORECASE)
"""Labels of a project's repository among its addresses."""
_TAG = re.compile(r"(?P<prefix>.*?)[-_/. ]?v?(?P<version>\d.*)", re.IGNORECASE)
_PREFIXES = frozenset({"", "v", "r", "rel", "release", "releases", "version"})
_MOST_BYTES = 16 << 20
_SAME = 0.8
"""Share of the archive's modules that the repository must hold unchanged to be what the archive was made from."""


def clone_of_archive(files: Mapping[str, bytes], name: str, version: str, folder: Path) -> tuple[str, str]:
    """Clone into `folder` the repository that a source archive names, at the tag of its version; return its URL and the commit.

    Args:
        files: contents of the archive by path; `PKG-INFO` names the repository.

    Raises:
        SourceError: the archive names no repository of a public forge, that has no such tag, cannot be fetched, or is not what
            the archive was made from.
    """
    missing = f"{name} {version} has no tests in its source archive"
    fix = f"name its repository instead (composer tasks build URL@TAG), or another version of {name}"
    url = next(_repositories(Parser().parsestr(files.get("PKG-INFO", b"").decode(errors="replace"), headersonly=True)), None)
    if url is None:
        raise SourceError(f"{missing}, and its metadata names no repository of a public forge", fix=fix)
    try:
        tag = _tag(git_for(url, url, folder).run("ls-remote", "--tags", "--refs", url, network=True).splitlines(), name, version)
        if tag is None:
            raise SourceError(f"it has no tag for {version}", fix=fix)
        _, commit = clone(f"{url}@{tag}", folder)
    except SourceError as error:
        raise SourceError(f"{missing}, and {url}, which it names, gives none: {error.message}", fix=fix) from error
    modules = [path for path in files if path.endswith(".py")]
    with OpenFolder(folder.resolve()) as top:
        same = sum(_text(_read(top, path)) == _text(files[path]) for path in modules)
    if same < _SAME * len(modules):
        raise SourceError(f"{missing}, and {url} at {tag} holds {same} of its {len(modules)} modules unchanged", fix=fix)
    return url, commit


def _repositories(metadata: Message) -> Iterator[str]:
    """Yield the repositories that metadata name, likely ones first."""
    labelled = [str(line).partition(",")[::2] for line in metadata.get_all("Project-URL", [])]
    labelled += [("", str(line)) for line in metadata.get_all("Home-page", [])]
    for _, address in sorted(labelled, key=lambda entry: _LIKELY.search(entry[0]) is None):
        if match := _FORGE.match(address.strip()):
            yield match[0].removesuffix(".git")


def _tag(lines: Sequence[str], name: str, version: str) -> str | None:
    """Return the tag of a version among the lines of `git ls-remote`: one that is the version, or its end behind a word that
    says so, or behind the project's name."""
    wanted = Version(version)
    for line in lines:
        tag = line.partition("refs/tags/")[2].strip()
        match = _TAG.fullmatch(tag)
        if (
            match
            and canonicalize_name(match["prefix"]) in {*_PREFIXES, canonicalize_name(name)}
            and _is(match["version"], wanted)
        ):
            return tag
    return None


def _is(text: str, wanted: Version) -> bool:
    try:
        return Version(text.replace("_", ".")) == wanted
    except InvalidVersion:
        return False


def _read(top: OpenFolder, path: str) -> bytes | None:
    """Return a file of a repository; None where it is none, or a link."""
    try:
        return top.read(path, _MOST_BYTES)
    except OSError:
        return None


def _text(content: bytes | None) -> bytes | None:
    return None if content is None else content.replace(b"\r\n", b"\n")
