"""Names of artifacts in repositories of Maven's layout."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PART = re.compile(r"[\w.+~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """An artifact of one version."""

    group: str
    name: str
    version: str
    classifier: str = ""

    @property
    def key(self) -> str:
        """Its group and name, whatever the version."""
        return f"{self.group}:{self.name}" + (f":{self.classifier}" if self.classifier else "")

    @property
    def is_named(self) -> bool:
        """Return whether its parts can be those of a path."""
        parts = (self.group, self.name, self.version, *filter(None, [self.classifier]))
        return all(_PART.fullmatch(part) and ".." not in part for part in parts)

    def path(self, ending: str) -> str:
        """Return where a repository has its file, `pom` or `jar`."""
        classifier = f"-{self.classifier}" if self.classifier and ending != "pom" else ""
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.name}-{self.version}{classifier}.{ending}"

    def __str__(self) -> str:
        return f"{self.key}:{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A requirement of a build file."""

    group: str
    name: str
    version: str = ""
    scope: str = "compile"
    kind: str = "jar"
    classifier: str = ""
    optional: bool = False
    excluded: frozenset[str] = frozenset()
    """`group:name` of what is not taken of its own dependencies; `*` stands for any."""

    @property
    def key(self) -> str:
        """Its group and name, whatever the version."""
        return f"{self.group}:{self.name}" + (f":{self.classifier}" if self.classifier else "")

    @property
    def artifact(self) -> Artifact:
        """The artifact of its version."""
        return Artifact(group=self.group, name=self.name, version=self.version, classifier=self.classifier)
