"""Files `pom.xml`: what they require, with what their parents and imported lists of versions say.

The format: https://maven.apache.org/ref/current/maven-model/maven.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from xml.etree import ElementTree

from composer_replication.languages.java.jars.coordinates import Artifact, Dependency
from composer_replication.languages.java.jars.repositories import Repositories, parsed

_DEEPEST = 12
_NAME = re.compile(r"\$\{([^}]+)\}")


@dataclass(slots=True, kw_only=True)
class Pom:
    """A file merged with its parents, its variables replaced."""

    group: str
    name: str
    version: str
    properties: dict[str, str] = field(default_factory=dict)
    managed: dict[str, Dependency] = field(default_factory=dict)
    """Versions and scopes by `Dependency.key`."""
    dependencies: list[Dependency] = field(default_factory=list)


class PomReader:
    """Reads files, and their parents from repositories or beside them."""

    def __init__(self, repositories: Repositories, beside: Mapping[str, bytes]) -> None:
        self._repositories = repositories
        self._beside = beside
        """The project's own files, by path."""
        self._made: dict[str, Pom | None] = {}

    @cached_property
    def _own(self) -> dict[str, bytes]:
        """The project's own files by `group:name`."""
        found: dict[str, bytes] = {}
        for content in self._beside.values():
            root = _root(content)
            if root is not None:
                group = _text(root, "groupId") or _text(root, "parent/groupId")
                found[f"{group}:{_text(root, 'artifactId')}"] = content
        return found

    def is_own(self, key: str) -> bool:
        """Return whether an artifact is one of the project's own modules."""
        return key in self._own

    def of(self, artifact: Artifact, depth: int = 0) -> Pom | None:
        """Return what a repository says of an artifact; None where none has it, or it cannot be read. Raises SourceError."""
        named = str(artifact)
        if named not in self._made:
            self._made[named] = None
            content = self._own.get(artifact.key) or self._repositories.read(artifact, "pom")
            if content is not None and depth < _DEEPEST:
                self._made[named] = self.read(content, depth)
        return self._made[named]

    def read(self, content: bytes, depth: int = 0) -> Pom | None:
        """Return what a file says; None where it cannot be read. Raises SourceError where the web's repository does not
        answer."""
        root = _root(content)
        if root is None:
            return None
        group, version = _text(root, "groupId"), _text(root, "version")
        above: Pom | None = None
        parent = root.find("parent")
        if parent is not None:
            wanted = Artifact(group=_text(parent, "groupId"), name=_text(parent, "artifactId"), version=_text(parent, "version"))
            above = self.of(wanted, depth + 1)
            group, version = group or wanted.group, version or wanted.version
        pom = Pom(group=group, name=_text(root, "artifactId"), version=version)
        pom.properties = dict(above.properties) if above is not None else {}
        for node in root.find("properties") if root.find("properties") is not None else ():  # type: ignore[union-attr]
            pom.properties[str(node.tag)] = (node.text or "").strip()
        own = {"groupId": group, "artifactId": pom.name, "version": version}
        pom.properties |= {f"{prefix}.{name}": value for prefix in ("project", "pom") for name, value in own.items()}
        if above is not None:
            pom.properties |= {"project.parent.version": above.version, "project.parent.groupId": above.group}
            pom.managed = dict(above.managed)
            pom.dependencies = list(above.dependencies)
        for one in _dependencies(root, "dependencyManagement/dependencies", pom.properties):
            if one.scope == "import":
                imported = self.of(one.artifact, depth + 1)
                pom.managed = {**(imported.managed if imported is not None else {}), **pom.managed}
            else:
                pom.managed[one.key] = one
        mine = list(_dependencies(root, "dependencies", pom.properties))
        kept = [one for one in pom.dependencies if one.key not in {other.key for other in mine}]
        pom.dependencies = [*kept, *mine]
        return pom


def with_managed(one: Dependency, managed: Mapping[str, Dependency]) -> Dependency:
    """Return a dependency with the version and scope that are managed, where it has none of its own."""
    known = managed.get(one.key)
    if known is None:
        return replace(one, scope=one.scope or "compile")
    return replace(
        one,
        version=one.version or known.version,
        scope=one.scope or known.scope or "compile",
        excluded=one.excluded | known.excluded,
    )


def _root(content: bytes) -> ElementTree.Element | None:
    try:
        return parsed(content)
    except ValueError:
        return None


def _text(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def _dependencies(root: ElementTree.Element, path: str, properties: Mapping[str, str]) -> Iterator[Dependency]:
    for node in root.iterfind(f"./{path}/dependency"):
        words = {name: filled(_text(node, name), properties) for name in ("groupId", "artifactId", "version", "scope", "type")}
        excluded = (f"{_text(one, 'groupId')}:{_text(one, 'artifactId')}" for one in node.iterfind("./exclusions/exclusion"))
        yield Dependency(
            group=words["groupId"],
            name=words["artifactId"],
            version=one_version(words["version"]),
            scope=words["scope"],
            kind=words["type"] or "jar",
            classifier="tests" if words["type"] == "test-jar" else filled(_text(node, "classifier"), properties),
            optional=filled(_text(node, "optional"), properties) == "true",
            excluded=frozenset(excluded),
        )


def filled(text: str, properties: Mapping[str, str]) -> str:
    """Return a text with its variables replaced, as far as they are known."""
    for _ in range(_DEEPEST):
        changed = _NAME.sub(lambda match: properties.get(match[1], match[0]), text)
        if changed == text or len(changed) > 1000:
            break
        text = changed
    return text


def one_version(text: str) -> str:
    """Return the first version that a range names, and any other text as it is."""
    found = re.match(r"[\[(]\s*([^,\])]*)\s*(?:,\s*([^\])]*))?", text)
    return (found[1] or found[2] or "").strip() if found else text
