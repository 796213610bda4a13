"""Cargo inside a sandbox: its place, its environment, and folders that it may write to.

This text runs behind that of `settings`, in one namespace, and in front of what a program does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.languages.rust.settings import LOOSE, SETTINGS, TOOLCHAIN, crates_for, sources_for

MOST_ROUNDS = 6
"""Times that a crate is built again without generated text that the compiler refuses."""
GENERATED = re.compile(r"/\*composer\*/.*?/\*composer\*/")
WORK = tempfile.mkdtemp(prefix="composer-rust-")
TOLD, HITS, CALLS = (os.path.join(WORK, name) for name in ("told", "hits", "calls"))
"""Files that programs of tests write: outcomes, blocks that ran, and calls."""


def find_cargo() -> str | None:
    """Return cargo: that of the interpreter's environment, or where Debian and rust-lang.org put it."""
    places = [os.path.join(sys.prefix, TOOLCHAIN, "bin"), "/usr/local/bin", "/usr/bin"]
    return next((os.path.join(p, "cargo") for p in places if os.access(os.path.join(p, "cargo"), os.X_OK)), None)


CARGO = find_cargo()


def environment() -> dict[str, str]:
    """Return the environment of cargo and of what it builds, and write its configuration."""
    home = os.path.join(WORK, "home")
    os.makedirs(home)
    with open(os.path.join(home, "config.toml"), "w", encoding="utf-8") as file:
        folder = crates_for(".", sys.prefix)
        file.write(sources_for(folder))
    if os.path.exists(os.path.join(folder, LOOSE)) and os.path.exists("Cargo.lock"):
        os.unlink("Cargo.lock")
    own = {"HOME": WORK, "TMPDIR": WORK, "CARGO_HOME": home, "CARGO_TARGET_DIR": os.path.join(WORK, "target")}
    if CARGO is not None:
        own["PATH"] = os.path.dirname(CARGO) + os.pathsep + os.environ.get("PATH", "/usr/bin:/bin")
        own["RUSTC"] = os.path.join(os.path.dirname(CARGO), "rustc")
    return {**os.environ, **SETTINGS, **own}


ENVIRONMENT = environment()


def cargo(*arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run cargo in the tree."""
    if CARGO is None:
        sys.exit("there is no cargo")
    env = {**ENVIRONMENT, **variables}
    return subprocess.run([CARGO, *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def project() -> tuple[list[dict[str, Any]], str]:
    """Return the packages of the project as cargo describes them, or none and what it complains of."""
    said = cargo("metadata", "--no-deps", "--format-version=1", "--offline")
    if said.returncode:
        return [], last_line(said)
    found: list[dict[str, Any]] = json.loads(said.stdout)["packages"]
    return found, ""


def targets_of(packages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield each target with tests: its kind, its root file, the options that select it, and the folder of its package."""
    for package in packages:
        folder = os.path.dirname(package["manifest_path"])
        for target in package["targets"]:
            kind = target["kind"][0]
            kind = kind if kind in ("bin", "test", "example", "bench", "custom-build") else "lib"
            lacking = set(target.get("required-features") or ()) - set(package["features"].get("default") or ())
            if kind not in ("lib", "bin", "test") or not target.get("test", True) or lacking:
                continue
            chosen = ["--lib"] if kind == "lib" else [f"--{kind}", target["name"]]
            root = os.path.relpath(target["src_path"], os.getcwd())
            yield kind, root, ["-p", package["name"], *chosen], folder


def built(selected: list[str], **variables: str) -> tuple[dict[str, str], dict[str, str], str]:
    """Build tests: the programs by root file, complaints by root file, and what cargo itself complains of.

    Generated text that the compiler refuses is taken out, and what remains is built again.

    Args:
        selected: cargo's options that say which.
    """
    for _ in range(MOST_ROUNDS):
        said = cargo("test", "--no-run", "--offline", "--message-format=json", *selected, **variables)
        messages = list(messages_in(said))
        if not said.returncode or not without_refused(messages):
            break
    programs: dict[str, str] = {}
    complaints: dict[str, str] = {}
    for message in messages:
        root = os.path.relpath((message.get("target") or {}).get("src_path", "/"), os.getcwd())
        if message.get("reason") == "compiler-artifact" and message.get("executable") and message["profile"]["test"]:
            programs[root] = message["executable"]
        elif is_error(message):
            complaints.setdefault(root, complaint(message["message"]))
    return programs, complaints, last_line(said) if said.returncode and not complaints else ""


def messages_in(said: subprocess.CompletedProcess[bytes]) -> Iterator[dict[str, Any]]:
    """Yield what cargo says in JSON."""
    for line in said.stdout.decode(errors="replace").splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict):
            yield message


def is_error(message: Mapping[str, Any]) -> bool:
    """Return whether a message of cargo is the compiler's about an error."""
    return bool(message.get("reason") == "compiler-message" and message["message"].get("level") == "error")


def without_refused(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Take generated text out of the lines that errors name; return whether there was any."""
    lines: dict[str, set[int]] = {}
    for message in filter(is_error, messages):
        for span in message["message"].get("spans") or ():
            lines.setdefault(span["file_name"], set()).update(range(span["line_start"], span["line_end"] + 1))
    found = False
    for name, numbers in lines.items():
        if not os.path.isfile(name):
            continue
        with open(name, encoding="utf-8", errors="surrogateescape", newline="") as file:
            before = file.read().split("\n")
        after = [GENERATED.sub("", line) if number in numbers else line for number, line in enumerate(before, 1)]
        if after != before:
            found = True
            with open(name, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
                file.write("\n".join(after))
    return found


def complaint(message: dict[str, Any]) -> str:
    """Return what the compiler complains of in one line."""
    spans = [span for span in message.get("spans") or () if span.get("is_primary")]
    place = f"{spans[0]['file_name']}:{spans[0]['line_start']}: " if spans else ""
    return f"{place}{message.get('message', '')}".split("\n", 1)[0][:500]


def last_line(said: subprocess.CompletedProcess[bytes]) -> str:
    """Return why cargo failed in one line."""
    lines = [line.strip() for line in said.stderr.decode(errors="replace").splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("Updating", "Compiling", "Locking", "warning", "Caused by"))]
    first = next((n for n, line in enumerate(kept) if line.startswith("error")), 0)
    return " ".join(kept[first : first + 3])[:500] or f"exit status {said.returncode}"


def run(program: str, folder: str, mark: str, *arguments: str, **variables: str) -> list[list[str]]:
    """Run a program of tests, and return what they reported: state, what, libtest's name and message each."""
    for path in (TOLD, HITS):
        if os.path.exists(path):
            os.unlink(path)
    env = {**ENVIRONMENT, "COMPOSER_TOLD": TOLD, "COMPOSER_HITS": HITS, "COMPOSER_CALLS": CALLS, **variables}
    libraries = [os.path.dirname(program), os.path.join(os.path.dirname(os.path.dirname(ENVIRONMENT.get("RUSTC", ""))), "lib")]
    env = {**env, "CARGO_MANIFEST_DIR": folder, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    nothing = subprocess.DEVNULL
    command = [program, "--test-threads=1", *arguments]
    subprocess.run(command, cwd=folder, env=env, stdin=nothing, stdout=nothing, stderr=nothing, check=False)
    rows = [line.split("\t") for line in lines_of(TOLD)]
    return [row[1:] for row in rows if len(row) == 5 and row[0] == mark]


def lines_of(path: str) -> list[str]:
    """Return the lines of a file; none where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(64 << 20).split("\n")
    except OSError:
        return []
