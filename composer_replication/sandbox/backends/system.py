"""The part of the machine's programs and libraries that every sandbox shows, in one table.

Tests need a shell, compilers, git, Perl, time zones and locales. What other software keeps below /usr (SDKs, other interpreters'
packages, sources, caches) may hold a copy of the code that a task deletes, and is not shown.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders of programs and libraries at the top: symbolic links into /usr, or separate folders, which are shown whole."""
_LIBRARIES = (
    *("*-linux-*", "*.so", "*.so.*", "cpp", "file", "gcc", "git-core", "jvm", "locale", "perl*", "rustlib", "terminfo"),
)
_USR = {
    "bin": ("*",),
    "sbin": ("*",),
    "include": ("*",),
    **dict.fromkeys(_FOLDERS[2:], _LIBRARIES),
    "libexec": ("gcc", "git-core"),
    "share": ("git-core", "misc", "perl", "perl5", "terminfo", "zoneinfo"),
}
"""Folder of /usr -> the names in it that are shown."""
_MANY = 16
"""A folder with more shared libraries than this is where the distribution keeps all of them, and is shown whole."""
_ETC = ("/etc/ld.so.cache", "/etc/alternatives")
_ETC_FOLDERS = ("java", "java-*")
"""Names of folders of /etc with the settings of what is in /usr: Debian's JDKs have links to theirs."""
_PREFIXES = ("/usr", "/usr/local")
"""Prefixes that an interpreter shares with other software."""
_INTERPRETER = ("bin", "include/python3*", "lib*/libpython3*")


@dataclass(frozen=True, slots=True)
class SystemView:
    """What a sandbox shows of the system, all of it read-only."""

    folders: tuple[str, ...]
    """Folders to make, each after the one it is in."""
    paths: tuple[str, ...]
    """Folders and files to show at the same path."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links to make: path and target."""


@cache
def system_view() -> SystemView:
    """Return what every sandbox on this machine shows. Looked up once in a process, as programs are seldom installed."""
    return view_of("")


def view_of(root: str) -> SystemView:
    """Return what sandboxes show of the system whose files are below the folder `root`; paths are as the system has them."""
    paths: list[str] = []
    links: list[tuple[str, str]] = []
    for path in (*_candidates(root), *_ETC):
        if os.path.islink(root + path):
            links.append((path, os.readlink(root + path)))
        elif os.path.isfile(root + path) or _filled(root + path):
            paths.append(path)
    parents = {parent for path in (*paths, *dict(links)) for parent in _parents(path)}
    return SystemView(tuple(sorted(parents)), tuple(paths), tuple(links))


def is_shared_prefix(path: str) -> bool:
    """Return whether an interpreter with that prefix shares it with software that is not shown."""
    return path in _PREFIXES


def interpreter_patterns(prefix: str) -> list[str]:
    """Return patterns of what belongs to an interpreter in a shared prefix, besides its libraries and packages."""
    return [f"{prefix}/{pattern}" for pattern in _INTERPRETER]


def _candidates(root: str) -> Iterator[str]:
    yield from (f"/{name}" for name in _FOLDERS)
    for name in sorted(os.listdir(root + "/etc")) if os.path.isdir(root + "/etc") else ():
        if any(fnmatch.fnmatch(name, pattern) for pattern in _ETC_FOLDERS):
            yield f"/etc/{name}"
    for folder, patterns in _USR.items():
        top = f"/usr/{folder}"
        if os.path.islink(root + top) or patterns == ("*",) or _holds_all_libraries(root + top):
            yield top
        elif os.path.isdir(root + top):
            names = sorted(os.listdir(root + top))
            yield from (f"{top}/{name}" for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns))


def _holds_all_libraries(folder: str) -> bool:
    return os.path.isdir(folder) and sum(".so" in name for name in os.listdir(folder)) > _MANY


def _filled(folder: str) -> bool:
    return os.path.isdir(folder) and bool(os.listdir(folder))


def _parents(path: str) -> list[str]:
    names = path.split("/")[1:-1]
    return ["/" + "/".join(names[: count + 1]) for count in range(len(names))]
