"""pip on this machine, held to moving files: it starts no program, takes packages from the index of its settings only, and
installs them nowhere but in the environment."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from composer_replication.sandbox.confined import (
    WEB_PORTS,
    Reach,
    interpreter_reach,
    named_in,
    proxy_ports,
    run_confined,
)
from composer_replication.sandbox.interpreter import clean_environment
from composer_replication.types.errors import SourceError

OWN = "install them yourself and name that interpreter with --python PATH"
_MOST_S, _SETTINGS_S = 1800, 60
_SETTING = re.compile(r"[^=]*\.(?P<name>[\w-]+)=(?P<value>'.*'|\".*\")")
"""A line of `pip config list`: where it stands, the setting's name, its value as Python writes it."""
_TRACEBACK = "ERROR: Exception:"
"""What pip writes above the traceback of an exception that it does not expect; the last line says what it was."""
NO_PROGRAM = """
import sys

starting = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn"}

def refuse(event, _arguments):
    if event in starting:
        raise PermissionError("pip may start no program here: it would run the code of a package")

sys.addaudithook(refuse)
"""
"""Builds are programs that pip starts, and `--only-binary` does not keep it from building what a requirement's address names. An
audit hook cannot be removed (PEP 578, https://peps.python.org/pep-0578/)."""
_NO_WRITING_ELSEWHERE = """
import os, tempfile

places = tuple(os.path.join(os.path.realpath(place), "") for place in (sys.prefix, tempfile.gettempdir()))
changing = {
    **dict.fromkeys(("os.rename", "os.link"), ((0, 2), (1, 3))),
    **dict.fromkeys(("os.remove", "os.rmdir", "shutil.rmtree"), ((0, 1),)),
    **dict.fromkeys(("os.mkdir", "os.chmod"), ((0, 2),)),
    **dict.fromkeys(("os.chown", "os.utime"), ((0, 3),)),
    **dict.fromkeys(("os.truncate", "os.setxattr", "os.removexattr"), ((0, None),)),
    "os.symlink": ((1, 2),),
}

def refuse_elsewhere(event, arguments):
    if event == "open":
        if not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
            return
        paths = ((0, None),)
    else:
        paths = changing.get(event, ())
    for path, descriptor in paths:
        relative_to = arguments[descriptor] if descriptor is not None and descriptor < len(arguments) else None
        if isinstance(arguments[path], (str, bytes, os.PathLike)) and relative_to in (None, -1):  # else below a tree looked at
            check(os.fsdecode(arguments[path]), event)

def check(path, event):
    folder, name = os.path.split(path.rstrip("/"))
    whole = event in ("open", "os.truncate", "os.chmod", "os.chown", "os.utime") or name in ("", ".", "..")
    real = os.path.realpath(path) if whole else os.path.join(os.path.realpath(folder or "."), name)
    if real != os.devnull and not os.path.join(real, "").startswith(places):
        raise PermissionError(f"a package has pip write to {path!a}, outside the environment")

sys.addaudithook(refuse_elsewhere)
"""
"""The name of a console script may be a path, and a list of what to uninstall may name any file whose path begins as the
environment's does: newer and older releases of pip write and remove what these say."""
_RUN = """
from pip._vendor.packaging.requirements import InvalidRequirement, Requirement

parse = Requirement.__init__

def parse_without_address(self, text):
    parse(self, text)
    if self.url:
        raise InvalidRequirement(f"{text!a} names an address, and packages come from the index only")

Requirement.__init__ = parse_without_address

from pip._internal.cli.main import main

sys.exit(main(sys.argv[1:]))
"""


def download(python: Path, wanted: list[str], into: Path, *, found_in: Path | None = None) -> None:
    """Download wheels of the requirements and of what they require, by the user's settings of pip. Raises SourceError.

    Args:
        found_in: a folder with further wheels.
    """
    here = [] if found_in is None else ["--find-links", str(found_in)]
    arguments = ["download", "--no-input", "--only-binary=:all:", "--dest", str(into), *here, *wanted]
    reach = network_reach(python, into, *([] if found_in is None else [found_in]))
    _pip(python, NO_PROGRAM + _RUN, *arguments, reach=reach)


def install_wheels(python: Path, wheels: list[Path]) -> None:
    """Install wheels in the environment of `python`, whatever settings of pip say about places.

    Raises SourceError, also when pip would write anywhere else.
    """
    program = NO_PROGRAM + _NO_WRITING_ELSEWHERE + _RUN
    arguments = ["install", "--isolated", "--no-input", "--no-index", "--no-deps", *map(str, wheels)]
    writable = frozenset({str(python.absolute().parents[1])})
    reach = Reach(writable=writable, readable=interpreter_reach(python) | {str(wheel.parent) for wheel in wheels})
    _pip(python, program, *arguments, reach=reach, PIP_CONFIG_FILE=os.devnull)


def network_reach(python: Path, into: Path, *readable: Path) -> Reach:
    """Return what the pip of an interpreter needs to fetch something into a folder: what its settings name, its cache, and the
    ports of its indexes and proxies.

    Raises TaskError and SandboxError like `installation_of`.
    """
    environment = clean_environment("PIP_")
    home, caches, settings = Path.home(), environment.get("XDG_CACHE_HOME"), environment.get("XDG_CONFIG_HOME")
    own = [
        Path(settings or home / ".config") / "pip",
        home / ".pip",
        home / ".netrc",
        Path("/etc/pip.conf"),
        Path("/etc/xdg/pip"),
    ]
    seen = interpreter_reach(python) | set(map(str, (*own, *readable)))
    seen |= named_in([environment.get("PIP_CONFIG_FILE", "")])[0]
    said = _settings(python, Reach(readable=seen), environment)
    paths, ports = named_in(value for _, value in said)
    pages = named_in(value for name, value in said if name.endswith("index-url"))[0]
    mirrors = {str(parent) for parent in (Path(page).parent for page in pages) if not home.is_relative_to(parent)}
    cache = named_in([str(Path(caches or home / ".cache") / "pip")])[0]
    cache |= named_in(value for name, value in said if name == "cache-dir")[0]
    if not any(name == "no-cache-dir" for name, _ in said):
        for path in cache:
            with contextlib.suppress(OSError):  # pip says that it goes without one
                Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
    return Reach(
        writable=cache | named_in(value for name, value in said if name == "log")[0] | {str(into)},
        readable=seen | paths | mirrors,  # the files of an index lie beside its pages
        ports=WEB_PORTS | ports | proxy_ports(environment, [value for name, value in said if name == "proxy"]),
        sockets="internet",
    )


def _settings(python: Path, reach: Reach, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return all settings of an interpreter's pip, from wherever they are; none where it cannot be asked, which it then says when
    it fetches."""
    command = [str(python), "-I", "-m", "pip", "--disable-pip-version-check", "config", "list"]
    try:
        listed = run_confined(command, reach, environment=environment, most_s=_SETTINGS_S, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = [_SETTING.fullmatch(line) for line in listed.stdout.splitlines()]
    return [(match["name"], str(ast.literal_eval(match["value"]))) for match in found if match]


def call(command: list[str], problem: str, *, reach: Reach, **variables: str) -> None:
    """Run a Python program of ours outside a sandbox, confined, away from any folder that it could import from. Raises
    SourceError."""
    environment = clean_environment("PIP_") | variables
    try:
        done = run_confined(command, reach, environment=environment, most_s=_MOST_S, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{problem}: {error}", fix=OWN) from error
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR: ") and line != _TRACEBACK] or said[-1:]
        raise SourceError(f"{problem}: {'; '.join(errors[:2])}", fix=OWN)


def _pip(python: Path, program: str, *arguments: str, reach: Reach, **variables: str) -> None:
    command = [str(python), "-I", "-c", program, "-q", "--disable-pip-version-check", *arguments]
    call(command, "the project's dependencies cannot be installed", reach=reach, **variables)
