"""Which jars a project's requirements come to: the nearest version wins, as Maven takes it.

https://maven.apache.org/guides/introduction/introduction-to-dependency-mechanism.html
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from composer_replication.languages.java.jars.coordinates import Artifact, Dependency
from composer_replication.languages.java.jars.gradle import dependencies_of
from composer_replication.languages.java.jars.poms import PomReader, with_managed
from composer_replication.languages.java.jars.repositories import Repositories

_MOST = 500
_JUPITER, _PLATFORM, _JUNIT4 = "org.junit.jupiter", "org.junit.platform", "junit:junit"
_USUAL = {"jupiter": "5.11.4", "junit4": "4.13.2"}
"""Versions of JUnit where a project names none."""


@dataclass(slots=True, kw_only=True)
class Resolved:
    """Jars by `Artifact.key`, and what no repository has."""

    jars: dict[str, tuple[Artifact, bytes]] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)


def resolve(files: Mapping[str, bytes], imports: frozenset[str], repositories: Repositories) -> Resolved:
    """Find the jars that a project and its tests require.

    Args:
        files: its build files, by path.
        imports: which of `junit4` and `jupiter` its tests import.

    Raises:
        SourceError: the web's repository does not answer.
    """
    poms = {path: content for path, content in files.items() if path.rpartition("/")[2] == "pom.xml"}
    reader = PomReader(repositories, poms)
    managed: dict[str, Dependency] = {}
    wanted: list[Dependency] = []
    for content in poms.values():
        pom = reader.read(content)
        if pom is not None:
            managed = {**pom.managed, **managed}
            wanted += [with_managed(one, pom.managed) for one in pom.dependencies]
    for one in dependencies_of({path: content for path, content in files.items() if path not in poms}):
        if one.scope == "import":
            listed = reader.of(one.artifact)
            managed = {**(listed.managed if listed is not None else {}), **managed}
        else:
            wanted.append(one)
    wanted = [with_managed(one, managed) for one in wanted if not reader.is_own(one.key)]
    found = Resolved()
    versions = _walked([*wanted, *_frameworks(wanted, imports)], managed, reader, found)
    _walked(_companions(versions), managed, reader, found, versions)
    for artifact in versions.values():
        jar = repositories.read(artifact, "jar")
        if jar is not None:
            found.jars[artifact.key] = (artifact, jar)
        elif repositories.read(artifact, "pom") is None or not _is_list(reader, artifact):
            found.lacking.append(str(artifact))
    return found


def _walked(
    roots: Iterable[Dependency],
    managed: Mapping[str, Dependency],
    reader: PomReader,
    found: Resolved,
    versions: dict[str, Artifact] | None = None,
) -> dict[str, Artifact]:
    """Return the artifact of each thing that is required, breadth first."""
    versions = {} if versions is None else versions
    waiting = deque((one, frozenset[str]()) for one in roots)
    while waiting and len(versions) < _MOST:
        one, excluded = waiting.popleft()
        if one.key in versions or one.scope == "system" or one.kind not in ("jar", "test-jar", "bundle", "maven-plugin"):
            continue
        if not one.version or "${" in one.version:
            found.lacking.append(f"{one.key} (no version is given)")
            continue
        artifact = versions[one.key] = one.artifact
        pom = reader.of(artifact)
        for inner in [] if pom is None else pom.dependencies:
            whole = with_managed(inner, pom.managed if pom is not None else {})
            above = managed.get(inner.key)
            whole = replace(whole, version=above.version) if above is not None and above.version else whole
            left_out = excluded | one.excluded
            if whole.scope in ("compile", "runtime") and not whole.optional and not _is_excluded(whole, left_out):
                waiting.append((whole, left_out))
    return versions


def _is_excluded(one: Dependency, excluded: frozenset[str]) -> bool:
    return bool({f"{one.group}:{one.name}", f"{one.group}:*", "*:*", f"*:{one.name}"} & excluded)


def _frameworks(wanted: Iterable[Dependency], imports: frozenset[str]) -> Iterator[Dependency]:
    """Yield frameworks that tests import and no file names: they come with a parent that cannot be had, or there is no file."""
    named = {one.key for one in wanted if one.version} | {one.group for one in wanted if one.version}
    if "jupiter" in imports and _JUPITER not in named:
        yield Dependency(group=_JUPITER, name="junit-jupiter", version=_USUAL["jupiter"], scope="test")
    if "junit4" in imports and _JUNIT4 not in named:
        yield Dependency(group="junit", name="junit", version=_USUAL["junit4"], scope="test")


def _companions(versions: Mapping[str, Artifact]) -> Iterator[Dependency]:
    """Yield what runs tests and is not required by them: the engine beside the API, and the launcher."""
    api = versions.get(f"{_JUPITER}:junit-jupiter-api")
    if api is None:
        return
    yield Dependency(group=_JUPITER, name="junit-jupiter-engine", version=api.version, scope="test")
    commons = versions.get(f"{_PLATFORM}:junit-platform-commons")
    version = commons.version if commons is not None else re.sub(r"^5\.", "1.", api.version)
    yield Dependency(group=_PLATFORM, name="junit-platform-launcher", version=version, scope="test")


def _is_list(reader: PomReader, artifact: Artifact) -> bool:
    """Return whether an artifact is nothing but a list of others, such as `junit-jupiter` in some versions."""
    pom = reader.of(artifact)
    return pom is not None and bool(pom.dependencies)
