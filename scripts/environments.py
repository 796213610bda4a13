"""Build the environments of the nox sessions without installing torch a dozen times.

An environment is whole, private to its checkout, and what pip would have made. Its files are hard links: to an equal
environment in the cache, or to `.venv`, on top of which pip installs what the session adds. pip replaces files and never
writes into them, so links are safe.

The cache is `$XDG_CACHE_HOME/composer-replication/envs` (by default in `~/.cache`). The name of an entry is a hash of what
decides its content: the interpreter, the versions in `.venv`, and pip's arguments. An entry is rebuilt after two weeks, so
that sessions meet new releases. A cache that cannot be written or linked to is reported and left aside.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import distributions
from pathlib import Path

MAX_AGE_S = 14 * 24 * 3600
OWN = "composer_replication"
"""In the names of the files that install this checkout: they differ from clone to clone, so the cache holds none of them."""

PLACE = "@ENVIRONMENT@"
"""In the scripts of a cached environment, instead of its path."""

Say = Callable[[str], None]


def build(home: Path, steps: Sequence[Sequence[str]], base: Path | None, say: Say = print) -> None:
    """Fill the environment `home` unless it is current: with what `base` has, then with each `pip install` of `steps`."""
    key = _key(home, steps, base)
    stamp = home / "composer.stamp"
    if stamp.is_file() and stamp.read_text("utf-8") == key:
        return
    cached = _cache(say, key)
    if not (cached and cached.is_dir() and _restored(cached, home, say)):
        if base:
            _clear(home)
            _link(base, home, str(base), str(home))
        for step in steps:
            pip = (sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"))
            subprocess.run([*pip, "install", "--quiet", *step], check=True)
        if cached:
            _store(home, cached, say)
    if base:
        _link(base, home, str(base), str(home), only_own=True)
    stamp.write_text(key, "utf-8")


def _packages(home: Path) -> Path:
    return next(home.glob("lib/python*/site-packages"))


def _key(home: Path, steps: Sequence[Sequence[str]], base: Path | None) -> str:
    """Hash what decides the content of an environment."""
    found = distributions(path=[str(_packages(base))]) if base else ()
    versions = sorted(f"{item.name}=={item.version}" for item in found if OWN not in item.name.replace("-", "_"))
    python = subprocess.run([home / "bin" / "python", "-VV"], capture_output=True, text=True, check=True).stdout
    text = json.dumps([Path(__file__).read_text("utf-8"), platform.machine(), python, versions, [list(step) for step in steps]])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _cache(say: Say, key: str) -> Path | None:
    """Return the path of the entry `key` after the removal of old entries, or nothing where there cannot be a cache."""
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = caches / "composer-replication" / "envs"
        folder.mkdir(parents=True, exist_ok=True)
        for entry in folder.iterdir():
            if time.time() - entry.stat().st_mtime > MAX_AGE_S:
                shutil.rmtree(entry, ignore_errors=True)
    except (OSError, RuntimeError) as error:  # the latter when no home directory is known
        say(f"environments are not cached: {error}")
        return None
    return folder / key


def _restored(cached: Path, home: Path, say: Say) -> bool:
    """Fill `home` from the cache. Return whether that worked: the entry may be half removed, or on another file system."""
    try:
        _clear(home)
        _link(cached, home, PLACE, str(home))
    except OSError as error:
        say(f"the cached environment cannot be used: {error}")
        return False
    say(f"taken from the cache: {cached}")
    return True


def _store(home: Path, cached: Path, say: Say) -> None:
    """Add `home` to the cache. Whoever is first wins: an entry appears whole, under its name, or not at all."""
    draft = cached.with_name(f"{cached.name}.{os.getpid()}")
    try:
        draft.mkdir()
        _link(home, draft, str(home), PLACE)
        draft.rename(cached)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        if not cached.is_dir():
            say(f"the environment is not cached: {error}")


def _clear(home: Path) -> None:
    """Remove the packages of `home`, pip too."""
    packages = _packages(home)
    shutil.rmtree(packages)
    packages.mkdir()


def _link(source: Path, target: Path, was: str, now: str, *, only_own: bool = False) -> None:
    """Link the installed files of `source` into `target`, and copy its scripts with the path `now` where they had `was`.

    Only those that install this checkout, or all others.
    """
    for place, folders, names in os.walk(source):
        inside = Path(place).relative_to(source)
        to = target / inside
        own_folder = any(OWN in part for part in inside.parts)
        if inside == Path():
            folders[:] = sorted({"bin", "lib", "share", "etc"} & set(folders))  # the rest belongs to the environment itself
            names = []
        for name in names:
            path = Path(place) / name
            in_bin = inside.parts == ("bin",)
            is_own = own_folder or OWN in name or (in_bin and name == "composer")
            if is_own != only_own or path.is_symlink() or (in_bin and name.lower().startswith("activate")):
                continue
            to.mkdir(parents=True, exist_ok=True)
            (to / name).unlink(missing_ok=True)
            if in_bin and path.read_bytes()[:2] == b"#!":
                (to / name).write_bytes(path.read_bytes().replace(f"{was}/bin/".encode(), f"{now}/bin/".encode()))
                (to / name).chmod(path.stat().st_mode)
            else:
                os.link(path, to / name)
