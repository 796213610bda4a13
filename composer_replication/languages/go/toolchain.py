"""The go command inside a sandbox: its place, its environment, and a cache of the standard library that is only read.

This text runs behind that of `settings`, in one namespace, and in front of what a program does.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from composer_replication.languages.go.settings import CACHE, MODULES, SETTINGS, flags_for

WORK = tempfile.mkdtemp(prefix="composer-go-")


def find_go() -> str | None:
    """Return the go command: that of the interpreter's environment, of the path, or where Debian and go.dev put it."""
    own = glob.glob(os.path.join(sys.prefix, "lib", "python3*", "site-packages", "go", "bin", "go"))
    usual = [shutil.which("go"), "/usr/local/go/bin/go", *sorted(glob.glob("/usr/lib/go-*/bin/go"), reverse=True)]
    return next((path for path in [*own, *usual] if path and os.access(path, os.X_OK)), None)


def cache() -> str:
    """Return a cache that holds links to that of the environment: what is compiled here stays here."""
    place = os.path.join(WORK, "cache")
    ready = os.path.join(sys.prefix, CACHE)
    os.makedirs(place)
    if os.path.isdir(ready):
        for folder in os.scandir(ready):
            if folder.is_dir():
                os.mkdir(os.path.join(place, folder.name))
                for entry in os.scandir(folder.path):
                    os.symlink(entry.path, os.path.join(place, folder.name, entry.name))
    return place


ENVIRONMENT = {
    **os.environ,
    **SETTINGS,
    "HOME": WORK,
    "TMPDIR": WORK,
    "GOCACHE": cache(),
    "GOMODCACHE": os.path.join(sys.prefix, MODULES),
    "GOPATH": os.path.join(WORK, "path"),
    "GOFLAGS": flags_for("."),
    "COMPOSER_RECORD": os.path.join(WORK, "record"),
}
GO = find_go()


def go(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run the go command in the tree."""
    if GO is None:
        sys.exit("there is no go command")
    return subprocess.run([GO, *arguments], env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def compiler_said(said: subprocess.CompletedProcess[bytes]) -> str:
    """Return the compiler's first complaint in one line."""
    lines = [line.strip() for line in (said.stderr + said.stdout).decode(errors="replace").splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith("#")), f"exit status {said.returncode}").removeprefix("./")[:500]


def last_line(said: subprocess.CompletedProcess[bytes]) -> str:
    """Return the last line of what the go command complained of; empty where it did not."""
    lines = said.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else ""
