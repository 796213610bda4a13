"""The crates that a project requires, in a folder of the environment that cargo reads instead of an index.

`cargo vendor` brings them, from where the user's settings of cargo say. Where that fails they are taken from this machine: from
Debian's packages of crates, and from folders that these settings name. What is lacking there, and the code can be built without,
is replaced by an empty crate, because cargo demands every crate that a manifest names, also one that nothing uses.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from composer_replication.languages.rust.crates import manifest_of, packages_of
from composer_replication.languages.rust.requirements import RequiredCrate, lowest, required_crates, satisfies
from composer_replication.languages.rust.settings import LOOSE, REGISTRY, SETTINGS, TOOLCHAIN, registry_for
from composer_replication.sandbox.confined import WEB_PORTS, Reach, named_in, proxy_ports, run_confined
from composer_replication.sandbox.interpreter import clean_environment
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.types.errors import SourceError

_DEBIAN = Path("/usr/share/cargo/registry")
_TIME_S = 900
_NOTES = "composer-notes.json"
_NO_CARGO = "install rustc and cargo (apt-get install rustc cargo), then build again"


def fill_registry(prefix: Path, tree: Path) -> tuple[str, ...]:
    """Bring the crates that a project requires into an environment, unless that was done, or it has them in `vendor`.

    Returns a note on what is lacking.

    Args:
        prefix: the folder of the environment.

    Raises:
        SourceError: a crate that the code needs cannot be had.
    """
    paths = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("Cargo.toml") if path.is_file())
    manifests = packages_of(paths, lambda path: (tree / path).read_bytes())
    shared = _shared(tree)
    wanted = [one for manifest in manifests.values() for one in required_crates(manifest, shared, by_default=True)]
    place = prefix / REGISTRY / registry_for(str(tree))
    if not wanted or (tree / "vendor").is_dir():
        return ()
    if place.is_dir():
        return tuple(json.loads((place / _NOTES).read_text()))
    fresh = place.with_name(f".{place.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder() as room:
        why = _vendored(prefix, tree, room, fresh)
    notes: tuple[str, ...] = ()
    if why:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        notes = _from_this_machine(wanted, fresh, why)
    (fresh / _NOTES).write_text(json.dumps(notes))
    fresh.rename(place)
    return notes


def _shared(tree: Path) -> dict[str, Any]:
    """Return the dependencies of a workspace that its members refer to."""
    root = tree / "Cargo.toml"
    workspace = manifest_of(root.read_bytes()).get("workspace") if root.is_file() else None
    found = workspace.get("dependencies") if isinstance(workspace, dict) else None
    return found if isinstance(found, dict) else {}


def _vendored(prefix: Path, tree: Path, room: Path, place: Path) -> str:
    """Let cargo put the required crates into a folder; return why it could not. Raises SourceError where there is no cargo.

    It runs over a copy without the project's own settings of cargo, which may name programs to run.
    """
    own = prefix / TOOLCHAIN / "bin" / "cargo"
    command = own if own.exists() else Path(shutil.which("cargo") or "/usr/bin/cargo")
    if not command.exists():
        raise SourceError("there is no cargo on this machine", fix=_NO_CARGO)
    copy, home = room / "project", room / "home"
    shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns(".cargo", ".git", "target"))
    home.mkdir()
    settings = clean_environment("CARGO_HTTP_", "CARGO_REGISTRIES_")
    for path in _settings_files():
        shutil.copyfile(path, home / "config.toml")
    named = named_in(settings.values())
    reach = Reach(
        writable=frozenset({str(room), str(place.parent)}),
        readable=frozenset({str(prefix), *map(str, _folders())}) | named[0],
        ports=WEB_PORTS | named[1] | proxy_ports(settings),
        sockets="internet",
    )
    environment = {**settings, **SETTINGS, "CARGO_NET_OFFLINE": "false", "CARGO_HOME": str(home), "HOME": str(room)}
    environment |= {"RUSTC": str(command.with_name("rustc")), "CARGO_NET_RETRY": "1"}
    try:
        done = run_confined(
            [str(command), "vendor", "--versioned-dirs", "--respect-source-config", str(place)],
            reach,
            environment=environment,
            most_s=_TIME_S,
            cwd=str(copy),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cargo does not run: {error}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    telling = [
        line for line in lines if re.match(r"no matching|failed to (select|download|get)|could not|.*resolve host", line, re.I)
    ]
    return (telling or lines or [f"exit status {done.returncode}"])[-1 if not telling else 0][:300] if done.returncode else ""


def _settings_files() -> Iterator[Path]:
    """Yield the files with the user's settings of cargo."""
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    yield from (home / name for name in ("config", "config.toml") if (home / name).is_file())


def _folders() -> list[Path]:
    """Return the folders of crates on this machine: those that the user's settings of cargo name, and Debian's."""
    found = []
    for path in _settings_files():
        try:
            sources = tomllib.loads(path.read_text("utf-8")).get("source", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SourceError(f"{path} cannot be read: {error}", fix="correct it") from error
        found += [Path(one["directory"]) for one in sources.values() if isinstance(one, dict) and "directory" in one]
    return [folder for folder in (*found, _DEBIAN) if folder.is_dir()]


def _from_this_machine(wanted: list[RequiredCrate], place: Path, why: str) -> tuple[str, ...]:
    """Copy required crates, and what these require, into a folder; make empty ones for what is lacking and not needed.

    Raises:
        SourceError: a crate that is needed is lacking.
    """
    there = [(folder, manifest_of((folder / "Cargo.toml").read_bytes())) for folder in _crate_folders()]
    waiting, taken = list(wanted), set[str]()
    lacking: dict[str, tuple[RequiredCrate, set[str]]] = {}
    while waiting:
        one = waiting.pop(0)
        found = next((pair for pair in there if _is(pair[1], one)), None)
        if found is None:
            if one.is_needed:
                fix = "make crates.io reachable, or run cargo vendor in the project, or install Debian's librust packages"
                raise SourceError(f"the crate {one.name} {one.version} cannot be had: {why}", fix=fix)
            key = f"{one.name} {one.version}"
            lacking.setdefault(key, (one, set()))[1].update(one.features)
        elif found[0].name not in taken:
            taken.add(found[0].name)
            shutil.copytree(found[0], place / found[0].name)
            inner = (need for need in required_crates(found[1], {}) if not need.is_for_tests)
            waiting += [_as_needed(need, one) for need in inner]
    for one, features in lacking.values():
        _make_empty(place, one, features)
    (place / LOOSE).touch()
    names = ", ".join(sorted({one.name for one, _ in lacking.values()}))
    return (
        (f"crates that the code can be built without are lacking, and tests that use them fail: {names} ({why})",)
        if names
        else ()
    )


def _as_needed(one: RequiredCrate, by: RequiredCrate) -> RequiredCrate:
    """Return what a crate requires: it is needed no more than that crate is."""
    needed = one.is_needed and by.is_needed
    return RequiredCrate(
        name=one.name, version=one.version, features=one.features, is_needed=needed, is_for_tests=by.is_for_tests
    )


def _crate_folders() -> Iterator[Path]:
    for root in _folders():
        yield from (folder for folder in sorted(root.iterdir(), reverse=True) if (folder / "Cargo.toml").is_file())


def _is(manifest: dict[str, Any], one: RequiredCrate) -> bool:
    package = manifest.get("package", {})
    return package.get("name") == one.name and satisfies(str(package.get("version", "0")), one.version)


def _make_empty(place: Path, one: RequiredCrate, features: set[str]) -> None:
    version = lowest(one.version)
    folder = place / f"{one.name}-{version}"
    if folder.exists():
        return
    folder.mkdir()
    switches = "".join(f'"{name}" = []\n' for name in sorted({"default", "std", "derive", *features}))
    text = f'[package]\nname = "{one.name}"\nversion = "{version}"\n[lib]\npath = "lib.rs"\n[features]\n{switches}'
    (folder / "Cargo.toml").write_text(text)
    (folder / "lib.rs").write_text("// This crate could not be had.\n")
    (folder / ".cargo-checksum.json").write_text('{"files": {}}')
