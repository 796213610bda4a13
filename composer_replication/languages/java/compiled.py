"""Compiled classes among a project's files: copies of its code that a class loader can use."""

from __future__ import annotations

from collections.abc import Mapping, Set
from io import BytesIO

from composer_replication.languages.java.settings import class_of, place_of
from composer_replication.sandbox.archive_members import DAMAGED, archive_members

_MOST_READ = 20_000
"""Bytes of a source in which its package is looked for."""


def classes_of(files: Mapping[str, bytes]) -> set[str]:
    """Return the names that class files of a project's code have, `a/b/C.class`, but those without a package."""
    sources = {path: text[:_MOST_READ].decode(errors="replace") for path, text in files.items() if place_of(path) == "main"}
    names = (class_of(path, text) for path, text in sources.items())
    return {f"{name.replace('.', '/')}.class" for name in names if "." in name}


def entries_of(jar: bytes) -> set[str] | None:
    """Return the names of what is in a jar; None of one that cannot be read."""
    try:
        return {member.name for member in archive_members(BytesIO(jar), most=0)}
    except DAMAGED:
        return None


def compiled_copies(files: Mapping[str, bytes]) -> Set[str]:
    """Return the paths of class files of a project's own classes, and of jars that hold one, or that cannot be read."""
    own = classes_of(files)
    found = {path for path in files if path.endswith(".class") and _is_own(path, own)}
    for path in (path for path in files if path.endswith((".jar", ".war", ".zip"))):
        entries = entries_of(files[path])
        unreadable = entries is None and path.endswith(".jar")
        if unreadable or any(_is_own(entry, own) for entry in entries or ()):
            found.add(path)
    return found


def _is_own(path: str, own: Set[str]) -> bool:
    """Return whether a path ends in the name of one of the class files."""
    parts = path.split("/")
    return any("/".join(parts[start:]) in own for start in range(len(parts) - 1))
