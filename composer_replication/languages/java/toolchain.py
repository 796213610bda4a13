"""The JDK inside a sandbox: its place, its environment, the class path, and compiling.

This text runs behind that of `settings`, in one namespace, and in front of what a program does.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from composer_replication.languages.java.settings import (
        JARS,
        READY,
        archive_of,
        find_jdk,
        is_tool,
        jars_for,
        own_jars,
        ready_name,
        root_of_package,
    )

WORK = tempfile.mkdtemp(prefix="composer-java-")
MOST_ROUNDS = 8
"""Times that javac is started again without files that it refuses."""
HEAP_MB = 1024
LIMITS = (
    *(f"-Xmx{HEAP_MB}m", "-Xss2m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1", "-Xshare:auto"),
    *("-XX:-UsePerfData", "-XX:CompressedClassSpaceSize=128m", "-XX:ReservedCodeCacheSize=64m", "-XX:+ExitOnOutOfMemoryError"),
)
"""Settings of every JVM: it starts fast, and reserves less address space than a box allows."""
PROPERTIES = (
    *("-ea", "-Duser.timezone=UTC", "-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8"),
    *("-Djava.awt.headless=true", f"-Djava.io.tmpdir={WORK}", f"-Duser.home={WORK}"),
)
OPENED = tuple(
    word
    for package in ("java.lang", "java.util", "java.io", "java.time")
    for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
)
"""Tests of older projects look into these packages."""
JAVA_HOME = find_jdk(sys.prefix)
ENVIRONMENT = {
    **os.environ,
    "HOME": WORK,
    "TMPDIR": WORK,
    "LC_ALL": "C.UTF-8",
    "JAVA_HOME": JAVA_HOME or "",
    "COMPOSER_RECORD": os.path.join(WORK, "record"),
}
for unwanted in ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH"):
    ENVIRONMENT.pop(unwanted, None)


def java_command(name: str) -> str:
    """Return the path of a program of the JDK."""
    if JAVA_HOME is None:
        sys.exit("there is no JDK")
    return os.path.join(JAVA_HOME, "bin", name)


def jars() -> tuple[list[str], list[str]]:
    """Return the jars of what runs tests, and the others that the project requires."""
    ready = sorted(glob.glob(os.path.join(sys.prefix, JARS, jars_for("."), "*.jar")))
    every = [*(os.path.abspath(jar) for jar in own_jars(".")), *ready]
    return [jar for jar in every if is_tool(jar)], [jar for jar in every if not is_tool(jar)]


def text_of_file(path: str) -> str:
    """Return the text of a file, whatever its encoding."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def resources_of(paths: Iterable[str]) -> list[str]:
    """Return the folders that sources' packages begin in and those of resources beside them: what a class path has of them."""
    roots = dict.fromkeys(root_of_package(path, text_of_file(path)) for path in paths)
    found = [os.path.join(os.path.dirname(root), "resources") for root in roots if os.path.basename(root) == "java"]
    return [os.path.abspath(folder) for folder in [*found, *roots] if os.path.isdir(folder)]


def encoding_of(paths: Iterable[str]) -> str:
    """Return the encoding that all of the files can be read in."""
    for path in paths:
        with open(path, "rb") as file:
            try:
                file.read().decode("utf-8")
            except UnicodeDecodeError:
                return "ISO-8859-1"
    return "UTF-8"


def javac(paths: Sequence[str], out: str, class_path: Sequence[str]) -> tuple[int, dict[str, str], str]:
    """Compile files: the exit status, javac's first complaint of each file, and all that it printed. No annotation processor
    runs."""
    os.makedirs(out, exist_ok=True)
    arguments = os.path.join(WORK, "files")
    with open(arguments, "w", encoding="utf-8") as file:
        file.writelines('"{}"\n'.format(path.replace("\\", "\\\\").replace('"', '\\"')) for path in paths)
    archive = archive_of(sys.prefix, JAVA_HOME)
    fast = [f"-XX:SharedArchiveFile={archive}"] if os.path.isfile(archive) else []
    command = [java_command("javac"), *(f"-J{flag}" for flag in (*LIMITS, *fast)), "-proc:none", "-nowarn", "-g", "-parameters"]
    command += ["-encoding", encoding_of(paths), "-Xmaxerrs", "10000", "-Xlint:none", "-implicit:none"]
    command += ["-sourcepath", out, "-cp", os.pathsep.join(class_path) or out, "-d", out, f"@{arguments}"]
    said = subprocess.run(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    text = (said.stderr + said.stdout).decode(errors="replace")
    errors: dict[str, str] = {}
    for path, line, message in re.findall(r"^(.+?\.java):(\d+): error: (.*)$", text, re.MULTILINE):
        errors.setdefault(os.path.normpath(path), f"line {line}: {message}")
    return said.returncode, errors, text


def compiled(paths: Iterable[str], out: str, class_path: Sequence[str]) -> tuple[dict[str, str], str]:
    """Compile files, again without those that javac refuses, until the rest compiles.

    Returns:
        javac's complaint of each file that was left out, and why nothing could be compiled; empty where something was.
    """
    left, refused = list(paths), dict[str, str]()
    for _ in range(MOST_ROUNDS):
        if not left:
            return refused, ""
        status, errors, said = javac(left, out, class_path)
        if not status:
            return refused, ""
        bad = {path: errors[path] for path in left if path in errors}
        refused |= bad
        if not bad:
            return refused, last_line(said)
        left = [path for path in left if path not in bad]
    return refused, "javac refuses its files one after the other"


def compile_main(paths: Sequence[str], out: str, class_path: Sequence[str]) -> tuple[str, str]:
    """Compile a project's code; return why it cannot be, empty where it was, and the complaint of a file that was left out.

    Files that want a library that is not there are left out, and files that want these: any other complaint is an error.
    """
    left, lacking = list(paths), ""
    packages = {os.path.dirname(path) for path in paths}
    why = "javac refuses its files one after the other"
    for _ in range(MOST_ROUNDS):
        status, errors, said = javac(left, out, class_path)
        if not status:
            return "", lacking
        bad = {path: message for path, message in errors.items() if path in left}
        absent = {path for path, message in bad.items() if _wants_library(message, packages)}
        why = next((f"{path}: {message}" for path, message in bad.items()), last_line(said))
        if not bad or not (absent or lacking):
            return why, ""
        gone = absent or bad.keys()
        lacking = lacking or next(f"{path}: {bad[path]}" for path in left if path in gone)
        left = [path for path in left if path not in gone]
        if not left:
            break
    return why, ""


def _wants_library(message: str, packages: Iterable[str]) -> bool:
    """Return whether javac complains of a package that is not among these folders."""
    found = re.search(r"package ([\w.]+) does not exist", message)
    if found is None:
        return False
    folder = found[1].replace(".", "/")
    return not any(package == folder or package.endswith("/" + folder) for package in packages)


def last_line(said: str) -> str:
    """Return the line of what a program printed that says what went wrong."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower() or "Exception" in line), lines[-1] if lines else "")[:500]


def support_classes(support: Mapping[str, str], names: Sequence[str], jars: Sequence[str]) -> tuple[str, str]:
    """Return a folder outside of the tree with classes of the package `zzcomposer`, and why they cannot be compiled.

    The environment has them ready, or they are compiled here.
    """
    name = ready_name(support, names)
    ready = os.path.join(sys.prefix, READY, name)
    if os.path.isdir(ready):
        return ready, ""
    sources, out = os.path.join(WORK, "support", name), os.path.join(WORK, name)
    os.makedirs(sources, exist_ok=True)
    paths = [os.path.join(sources, one) for one in names]
    for path in paths:
        with open(path, "w", encoding="utf-8") as file:
            file.write(support[os.path.basename(path)])
    status, _, said = javac(paths, out, jars)
    return out, last_line(said) or "javac fails" if status else ""


def run_watched(
    main: Sequence[str], class_path: Sequence[str], seconds: float, start_s: float, most_s: float
) -> tuple[list[str], str, bool]:
    """Run a program on a JVM that writes lines to a descriptor that it inherits.

    Args:
        main: the class and its arguments; `{fd}` in one is the number of the descriptor.
        seconds: it is ended after these without a new line, `start_s` before the first, and `most_s` in all.

    Returns:
        its lines, the end of what it printed, and whether it was ended.
    """
    with tempfile.TemporaryFile(dir=WORK) as out, tempfile.TemporaryFile(dir=WORK) as printed:
        command = [java_command("java"), *LIMITS, *PROPERTIES, *OPENED, "-cp", os.pathsep.join(class_path)]
        command += [argument.replace("{fd}", str(out.fileno())) for argument in main]
        process = subprocess.Popen(
            command,
            env=ENVIRONMENT,
            pass_fds=[out.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        ended = not _watch(process, out.fileno(), seconds, start_s, most_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        out.seek(0)
        lines = out.read(64 << 20).decode(errors="replace").split("\n")
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - 20_000))
        return lines, printed.read().decode(errors="replace"), ended


def _watch(process: subprocess.Popen[bytes], fd: int, seconds: float, start_s: float, most_s: float) -> bool:
    """Wait for a process; return whether it ended by itself."""
    begun = since = time.monotonic()
    size, pause = 0, 0.005
    while (now := time.monotonic()) - since < (seconds if size else start_s) and now - begun < most_s:
        try:
            process.wait(timeout=pause)
        except subprocess.TimeoutExpired:
            pause = min(0.1, pause * 1.5)
            found = os.fstat(fd).st_size
            if found != size:
                size, since = found, time.monotonic()
        else:
            return True
    return False
