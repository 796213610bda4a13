"""pip on this machine, held to moving files: it starts no program, and takes packages from the index of its settings only."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from composer_replication.sandbox.interpreter import clean_environment
from composer_replication.types.errors import SourceError

OWN = "install them yourself and name that interpreter with --python PATH"
_MOST_S = 1800
_TRACEBACK = "ERROR: Exception:"
"""What pip writes above the traceback of an exception that it does not expect; the last line says what it was."""
_PIP = """
import sys

starting = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn"}

def refuse(event, _arguments):
    if event in starting:
        raise PermissionError("pip may start no program here: it would run the code of a package")

sys.addaudithook(refuse)

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
"""Builds are programs that pip starts, and `--only-binary` does not keep it from building what a requirement's address names. An
audit hook cannot be removed (PEP 578, https://peps.python.org/pep-0578/)."""


def download(python: Path, wanted: list[str], into: Path, *more: str) -> None:
    """Download wheels of the requirements and of what they require, by the user's settings of pip. Raises SourceError."""
    _pip(python, "download", "--no-input", "--only-binary=:all:", "--dest", str(into), *more, *wanted)


def install_wheels(python: Path, wheels: list[Path]) -> None:
    """Install wheels in the environment of `python`, whatever settings of pip say about places. Raises SourceError."""
    _pip(python, "install", "--isolated", "--no-input", "--no-index", "--no-deps", *map(str, wheels), PIP_CONFIG_FILE=os.devnull)


def call(command: list[str], problem: str, **variables: str) -> None:
    """Run a Python program of ours outside a sandbox, away from any folder that it could import from. Raises SourceError."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MOST_S,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=clean_environment("PIP_") | variables,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{problem}: {error}", fix=OWN) from error
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR: ") and line != _TRACEBACK] or said[-1:]
        raise SourceError(f"{problem}: {'; '.join(errors[:2])}", fix=OWN)


def _pip(python: Path, *arguments: str, **variables: str) -> None:
    command = [str(python), "-I", "-c", _PIP, "-q", "--disable-pip-version-check", *arguments]
    call(command, "the project's dependencies cannot be installed", **variables)
