"""The crates of a project: what its manifests say, and which files are which modules of each."""

from __future__ import annotations

import fnmatch
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.languages.rust.syntax import items_of, root_of
from composer_replication.languages.trees import text_of

_MANIFEST = "Cargo.toml"
_PATH = re.compile(r'#\[\s*path\s*=\s*"([^"]+)"\s*\]')
_NOT_WRITTEN = ("target", "vendor")
"""Folders of what is built and of what others wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crate:
    """A crate that cargo builds with its tests."""

    folder: str
    """That of its package, relative to the tree; empty for the root."""
    package: str
    """The package's name."""
    kind: str
    """`lib`, `bin` or `test`."""
    root: str
    """The path of its root file."""
    name: str
    """As the compiler knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RustModule:
    """A file as a module of a crate, and where it is declared."""

    path: str
    names: tuple[str, ...]
    """From the crate's root, which has none."""
    parent: tuple[str, tuple[str, ...]] = ("", ())
    """The file that declares it, and the modules of that file that it is declared in."""
    attributes: str = ""
    """The attributes above its declaration."""
    is_test: bool = False
    """It is compiled for tests alone."""


Reader = Callable[[str], bytes]


def manifest_of(text: bytes) -> dict[str, Any]:
    """Return what a manifest says; empty where it cannot be read."""
    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return {}


def packages_of(paths: Sequence[str], read: Reader) -> dict[str, dict[str, Any]]:
    """Return the manifests of the packages that belong to a project, by folder: that at the root and the workspace's members."""
    found = {
        posixpath.dirname(path): manifest_of(read(path))
        for path in paths
        if posixpath.basename(path) == _MANIFEST and not set(path.split("/")) & set(_NOT_WRITTEN)
    }
    workspace = _table(found.get("", {}), "workspace")
    members = [str(name).removeprefix("./").rstrip("/") for name in list_of(workspace.get("members"))]
    refused = [str(name).removeprefix("./").rstrip("/") for name in list_of(workspace.get("exclude"))]
    taken = {folder for folder in found if folder == "" or any(fnmatch.fnmatch(folder, name) for name in members)}
    waiting = list(taken)
    while waiting:
        folder = waiting.pop()
        for table in dependency_tables(found[folder]):
            for one in table.values():
                there = str(one["path"]) if isinstance(one, dict) and "path" in one else None
                near = "" if there is None else posixpath.normpath(posixpath.join(folder, there))
                if near in found and near not in taken:
                    taken.add(near)
                    waiting.append(near)
    return {
        folder: found[folder]
        for folder in sorted(taken)
        if "package" in found[folder] and not any(fnmatch.fnmatch(folder, name) for name in refused)
    }


def dependency_tables(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the tables of dependencies of a manifest, those for certain machines among them."""
    targets = [table for table in _table(manifest, "target").values() if isinstance(table, dict)]
    for part in (manifest, *targets):
        for name in ("dependencies", "dev-dependencies", "build-dependencies", "dev_dependencies", "build_dependencies"):
            yield _table(part, name)


def list_of(found: object) -> list[Any]:
    """Return a list of a manifest; an empty one where something else stands there."""
    return found if isinstance(found, list) else []


def _table(manifest: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = manifest.get(name)
    return found if isinstance(found, dict) else {}


def crates_of(paths: Sequence[str], read: Reader) -> list[Crate]:
    """Return the crates of a project that have tests of their own: libraries first, then programs, then files of tests."""
    there = set(paths)
    found: list[Crate] = []
    for folder, manifest in packages_of(paths, read).items():
        package = str(_table(manifest, "package").get("name", ""))
        for kind, roots in _roots_of(folder, manifest, paths).items():
            for root, name in sorted(roots.items()):
                if root in there:
                    found.append(
                        Crate(folder=folder, package=package, kind=kind, root=root, name=(name or package).replace("-", "_"))
                    )
    return sorted(found, key=lambda one: ("lib", "bin", "test").index(one.kind))


def _roots_of(folder: str, manifest: Mapping[str, Any], paths: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return by kind the root files of a package's crates and their names, empty for the package's own."""
    prefix = f"{folder}/" if folder else ""
    own = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
    lib = _table(manifest, "lib")
    named = str(lib.get("name", ""))
    found: dict[str, dict[str, str]] = {
        "lib": {str(lib.get("path", "src/lib.rs")): named},
        "bin": {"src/main.rs": ""},
        "test": {},
    }
    for kind, place in (("bin", "src/bin"), ("test", "tests")):
        for path in own:
            match = re.fullmatch(rf"{place}/(?:([^/]+)\.rs|([^/]+)/main\.rs)", path)
            if match:
                found[kind][path] = match[1] or match[2]
        for one in list_of(manifest.get(kind)):
            if isinstance(one, dict) and "name" in one:
                found[kind][str(one.get("path", f"{place}/{one['name']}.rs"))] = str(one["name"])
    return {kind: {posixpath.normpath(prefix + path): name for path, name in roots.items()} for kind, roots in found.items()}


def modules_of(crate: Crate, paths: Sequence[str], read: Reader) -> dict[str, RustModule]:
    """Return the files of a crate as modules, by path, the root first."""
    there = set(paths)
    found = {crate.root: RustModule(path=crate.root, names=())}
    waiting = [crate.root]
    while waiting:
        here = found[waiting.pop(0)]
        for module in _declared(here, crate.root, read(here.path), there):
            if module.path not in found:
                found[module.path] = module
                waiting.append(module.path)
    return found


def _declared(here: RustModule, root: str, source: bytes, there: set[str]) -> Iterator[RustModule]:
    """Yield the modules that a file declares and that have a file of their own."""
    place, name = posixpath.split(here.path)
    base = place if here.path == root or name == "mod.rs" else posixpath.join(place, name.removesuffix(".rs"))
    for item in items_of(root_of(source)):
        if item.node.type != "mod_item" or item.node.child_by_field_name("body") is not None:
            continue
        above = "\n".join(map(text_of, item.attributes))
        inside = posixpath.join(base, *item.modules)
        told = _PATH.search(above)
        own = item.name.removeprefix("r#")
        wanted = [f"{inside}/{own}.rs", f"{inside}/{own}/mod.rs"]
        if told:
            wanted = [posixpath.join(inside if item.modules else place, told[1])]
        path = next((path for path in map(posixpath.normpath, wanted) if path in there), None)
        if path is not None:
            names = (*here.names, *item.modules, item.name)
            parent = (here.path, item.modules)
            yield RustModule(path=path, names=names, parent=parent, attributes=above, is_test=here.is_test or item.is_test)
