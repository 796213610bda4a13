"""Repositories of Maven's layout: folders of this machine, and one on the web.

The web's is Maven Central, or the mirror of it that `~/.m2/settings.xml` names (https://maven.apache.org/settings.html#mirrors).
It is read here and not by mvn: mvn asks for plugins, runs extensions that a project's own files name, and wants its whole build
to be right, where all that is needed are a few files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from composer_replication.languages.java.jars.coordinates import Artifact
from composer_replication.sandbox.web import fetch_bytes
from composer_replication.types.errors import SourceError

_CENTRAL = "https://repo.maven.apache.org/maven2"
_DEBIAN = Path("/usr/share/maven-repo")
"""Where packages of Debian (`lib*-java`) put what they have, each in one version, which it calls `debian` too."""
_MOST = {"pom": 4 << 20, "jar": 128 << 20}
_MIRRORED = ("*", "central", "external:*")


@dataclass(slots=True, kw_only=True)
class Repositories:
    """Where artifacts are looked for."""

    folders: tuple[Path, ...]
    address: str
    """The address of the repository on the web; empty where the network is not to be asked."""
    notes: list[str] = field(default_factory=list)
    """Notes on each version that stands in for another."""
    _known: dict[str, bytes | None] = field(default_factory=dict)

    def read(self, artifact: Artifact, ending: str) -> bytes | None:
        """Return a file of an artifact; None where no repository has it. Raises SourceError where the web's does not answer."""
        if not artifact.is_named:
            return None
        path = artifact.path(ending)
        if path not in self._known:
            self._known[path] = self._found(path, ending) or self._of_debian(artifact, ending)
        return self._known[path]

    def _found(self, path: str, ending: str) -> bytes | None:
        for folder in self.folders:
            if (folder / path).is_file():
                return (folder / path).read_bytes()
        return self._fetched(path, ending) if self.address else None

    def _of_debian(self, artifact: Artifact, ending: str) -> bytes | None:
        if _DEBIAN not in self.folders:
            return None
        there = Artifact(group=artifact.group, name=artifact.name, version="debian", classifier=artifact.classifier)
        file = _DEBIAN / there.path(ending)
        if not file.is_file():
            return None
        note = f"Debian's {artifact.key} stands for version {artifact.version}"
        if ending == "jar" and note not in self.notes:
            self.notes.append(note)
        return file.read_bytes()

    def _fetched(self, path: str, ending: str) -> bytes | None:
        content = _answer(f"{self.address}/{path}", _MOST[ending])
        if content is None:
            return None
        digest = _answer(f"{self.address}/{path}.sha1", 4096)
        words = (digest or b"").split()
        if words and words[0].decode(errors="replace").lower() != hashlib.sha1(content).hexdigest():
            raise SourceError(f"{path} does not have the SHA-1 that its repository gives", fix="try again, or another mirror")
        return content


def repositories(*, fetch: bool) -> Repositories:
    """Return the repositories of this machine's user, with that on the web where `fetch`. Raises SourceError for settings that
    cannot be read."""
    local = (Path.home() / ".m2" / "repository", _DEBIAN)
    return Repositories(folders=tuple(folder for folder in local if folder.is_dir()), address=_mirror() if fetch else "")


def _mirror() -> str:
    """Return the address of Maven Central, or of its mirror in the user's settings."""
    file = Path.home() / ".m2" / "settings.xml"
    if not file.is_file():
        return _CENTRAL
    try:
        root = parsed(file.read_bytes())
    except ValueError as error:
        raise SourceError(f"{file} cannot be read: {error}", fix="correct it") from error
    for mirror in root.iterfind("./mirrors/mirror"):
        names = [name.strip() for name in mirror.findtext("mirrorOf", "").split(",")]
        address = mirror.findtext("url", "").strip().rstrip("/")
        if "!central" not in names and any(name in _MIRRORED for name in names):
            if not address.startswith(("http://", "https://")):
                raise SourceError(f"{file}: the mirror {address} is no address of HTTP", fix="name one that is")
            return address
    return _CENTRAL


def parsed(content: bytes) -> ElementTree.Element:
    """Return the root of a file of XML, its names without name spaces. Raises ValueError for what is none, or has a document
    type."""
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise ValueError("it defines a document type")
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise ValueError(str(error)) from error
    for node in root.iter():
        if isinstance(node.tag, str):
            node.tag = node.tag.rpartition("}")[2]
    return root


def _answer(address: str, most: int) -> bytes | None:
    """Return what an address answers; None where it has nothing. Raises SourceError."""
    try:
        return fetch_bytes(address, most=most)
    except OSError as error:
        fix = "see whether it can be reached from here, or name a mirror in ~/.m2/settings.xml"
        raise SourceError(f"{address} cannot be fetched: {error}", fix=fix) from error
