"""Make an environment ready for Rust, once: bring a compiler with its standard library, and the required crates."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from composer_replication.languages.rust.registry import fill_registry
from composer_replication.languages.rust.settings import TOOLCHAIN
from composer_replication.sandbox.interpreter import clean_environment
from composer_replication.types.errors import SourceError

_TIME_S = 60
_SYSTEM = ("/usr", "/usr/local")
"""Where a compiler is one that sandboxes show."""
_PLACES = ("/usr/local/bin", "/usr/bin")
"""Where sandboxes find programs of the machine."""
_INSTALL = "install rustc and cargo (apt-get install rustc cargo, or https://rustup.rs), then build again"


def make_ready(python: Path, tree: Path, *, fetch: bool) -> tuple[str, ...]:
    """Bring a compiler and the required crates into the environment of `python`, unless that was done.

    Returns notes on crates that could not be had and that the code under test can do without.

    Args:
        fetch: bring them; nothing is done otherwise.

    Raises:
        SourceError: there is no compiler or no linker on this machine, or a crate that the code needs cannot be had.
    """
    prefix = python.absolute().parent.parent
    if fetch:
        _bring_compiler(prefix / TOOLCHAIN)
    if not any(os.access(Path(place) / "cargo", os.X_OK) for place in (prefix / TOOLCHAIN / "bin", *_PLACES)):
        fix = "let the environment be made: composer tasks build SOURCE --install"
        raise SourceError("sandboxes find no cargo: it is neither in the environment nor in /usr", fix=fix)
    if not any(os.access(Path(place) / "cc", os.X_OK) for place in _PLACES):
        raise SourceError("there is no linker (cc) in /usr/bin", fix="install a compiler of C: apt-get install gcc libc6-dev")
    return fill_registry(prefix, tree) if fetch else ()


def _bring_compiler(place: Path) -> None:
    """Copy the machine's compiler, by hard links where that is possible. Raises SourceError."""
    if place.exists():
        return
    sysroot, host = _machines_own()
    if str(sysroot) in _SYSTEM:
        return
    fresh = place.with_name(f".{place.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    libraries = sysroot / "lib" / "rustlib" / host
    wanted = [sysroot / "bin" / "rustc", sysroot / "bin" / "cargo", *sorted((sysroot / "lib").glob("*.so*"))]
    wanted += sorted(path for name in ("lib", "bin") for path in (libraries / name).rglob("*"))
    try:
        for path in wanted:
            if path.is_file():
                target = fresh / path.relative_to(sysroot)
                target.parent.mkdir(parents=True, exist_ok=True)
                _link_or_copy(path, target)
        fresh.rename(place)
    except OSError as error:
        raise SourceError(f"the compiler of {sysroot} cannot be copied: {error}", fix="free space, then build again") from error


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _machines_own() -> tuple[Path, str]:
    """Return the folder of this machine's compiler and the name of the machine's kind. Raises SourceError where there is none."""
    usual = [shutil.which("rustc"), str(Path.home() / ".cargo" / "bin" / "rustc")]
    for command in filter(None, usual):
        if not os.access(command, os.X_OK):
            continue
        sysroot = Path(_said(command, "--print", "sysroot").strip())
        host = [line.partition(": ")[2] for line in _said(command, "-vV").splitlines() if line.startswith("host: ")]
        if host and os.access(sysroot / "bin" / "cargo", os.X_OK):
            return sysroot, host[0]
        raise SourceError(f"{command} has no cargo beside it", fix=_INSTALL)
    raise SourceError("there is no Rust compiler on this machine", fix=_INSTALL)


def _said(command: str, *arguments: str) -> str:
    """Return what the compiler prints. rustup's front end is kept from installing anything. Raises SourceError."""
    environment = {**clean_environment("RUSTUP_", "CARGO_HOME"), "RUSTUP_AUTO_INSTALL": "0"}
    try:
        done = subprocess.run(
            [command, *arguments], capture_output=True, text=True, timeout=_TIME_S, cwd="/", env=environment, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(f"{command} does not run: {error}", fix=_INSTALL) from error
    return done.stdout
