"""Read the paths and texts of a Java project, alike on the host and in a sandbox.

This text runs behind that of `tell` in every program of this language that runs in a sandbox.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from zipfile import BadZipFile, ZipFile

JARS, JDK, READY = "java-jars", "java-jdk", "java-ready"
"""Folders of an environment: the jars that projects require, each project's in a folder of its own; a JDK that is kept elsewhere
than below /usr; and compiled classes of our own, with an archive of javac's that makes it start faster."""
OLDEST_JDK = 17
BUILD_FILES = ("pom.xml", "build.gradle", "build.gradle.kts", "gradle.properties", "settings.gradle", "settings.gradle.kts")
FRAMEWORKS = {
    "JUnit4.java": "org.junit.runner.notification.RunListener",
    "Jupiter.java": "org.junit.jupiter.engine.JupiterTestEngine",
}
"""Class of ours that runs tests -> a class that has to be among the jars for it."""
TEST_FOLDERS = frozenset({"test", "tests", "testing", "unittest", "unittests", "src-test", "test-src", "testsrc", "junit"})
ASIDE = frozenset(
    {
        *("target", "build", "out", "bin", "dist", "doc", "docs", "site", "xdocs", "example", "examples", "sample", "samples"),
        *("demo", "demos", "benchmark", "benchmarks", "jmh", "perf", "tools", "scripts", "generated", "archetype-resources"),
        *("it", "integration-test", "android", "gradle", "node_modules", "debian"),
    }
)
_STANDARD = re.compile(r"(?P<head>(?:.*/)?)src/(?P<set>\w+)/java/.+")
_NO_CLASS = ("module-info.java", "package-info.java")
_TEST_NAME = re.compile(r"(Test\w*|\w+(Test|Tests|TestCase|IT))\.java")
_PACKAGE = re.compile(r"^\s*package\s+([\w.]+)\s*;", re.MULTILINE)
_TOOL = re.compile(r"(junit|hamcrest|opentest4j|apiguardian)[\w.-]*\.jar")
_HAS_TESTS = re.compile(
    r"@(org\.junit\.(jupiter\.api\.)?)?(Test|ParameterizedTest|RepeatedTest|TestFactory|TestTemplate|Theory|RunWith)\b"
    r"|\bextends\s+[\w.]*Test\w*"
)


def place_of(path: str) -> str:
    """Return `main` for code of a project, `test` for code of its tests, and nothing for any other file."""
    *folders, name = path.split("/")
    if not name.endswith(".java") or name in _NO_CLASS or any(re.fullmatch(r"java-?\d+|\..+", folder) for folder in folders):
        return ""
    standard = _STANDARD.fullmatch(path)
    if standard:
        if ASIDE.intersection(standard["head"].split("/")):
            return ""
        return {"main": "main", "test": "test", "testFixtures": "test"}.get(standard["set"], "")
    if TEST_FOLDERS.intersection(folders):
        return "test"
    if ASIDE.intersection(folders[:3]):
        return ""
    return "test" if _TEST_NAME.fullmatch(name) else "main"


def has_tests(path: str, text: str) -> bool:
    """Return whether a file of tests may have a class that JUnit runs."""
    return _HAS_TESTS.search(text) is not None or _TEST_NAME.fullmatch(path.rpartition("/")[2]) is not None


def package_of(text: str) -> str:
    """Return the package that a source says it is in; empty where it says none."""
    found = _PACKAGE.search(re.sub(r"/\*.*?\*/|//[^\n]*", " ", text[:20_000], flags=re.DOTALL))
    return found[1] if found else ""


def class_of(path: str, text: str) -> str:
    """Return the name of the class that a file is named after."""
    stem = path.rpartition("/")[2].removesuffix(".java")
    package = package_of(text)
    return f"{package}.{stem}" if package else stem


def root_of_package(path: str, text: str) -> str:
    """Return the folder that a file's package begins in, `.` for the root of the project."""
    folder = path.rpartition("/")[0]
    inner = package_of(text).replace(".", "/")
    if inner and (folder == inner or folder.endswith("/" + inner)):
        folder = folder[: len(folder) - len(inner)].rstrip("/")
    return folder or "."


def java_paths(tree: str) -> Iterator[str]:
    """Yield the paths of a tree's Java files, in order."""
    for folder, inner, names in os.walk(tree):
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name != "node_modules")
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(".java") and os.path.isfile(path) and not os.path.islink(path):
                yield os.path.relpath(path, tree)


def build_files(tree: str) -> list[str]:
    """Return the paths of the files that say what a project requires, its modules' among them."""
    found = []
    for folder, inner, names in os.walk(tree):
        inner[:] = sorted(n for n in inner if not n.startswith(".") and n not in TEST_FOLDERS and n not in ASIDE and n != "src")
        found += [os.path.relpath(os.path.join(folder, name), tree) for name in BUILD_FILES if name in names]
    return sorted(found)


def jars_for(tree: str) -> str:
    """Return the name of the folder below `JARS` that holds what a project requires."""
    found = hashlib.sha256()
    for path in build_files(tree):
        with open(os.path.join(tree, path), "rb") as file:
            found.update(path.encode() + b" " + file.read())
    return found.hexdigest()[:16]


def own_jars(tree: str) -> list[str]:
    """Return the jars that come with a project, in folders `lib` or `libs`."""
    found: list[str] = []
    for name in ("lib", "libs"):
        found += glob.glob(os.path.join(glob.escape(tree), name, "**", "*.jar"), recursive=True)
    return sorted(found)


def is_tool(jar: str) -> bool:
    """Return whether a jar is of what runs tests, by its name."""
    return _TOOL.fullmatch(os.path.basename(jar)) is not None


def jdk_version(home: str) -> int:
    """Return the version of the JDK in a folder; 0 where there is none with a compiler."""
    if not os.access(os.path.join(home, "bin", "javac"), os.X_OK):
        return 0
    try:
        with open(os.path.join(home, "release"), encoding="utf-8", errors="replace") as file:
            found = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', file.read())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def find_jdk(prefix: str) -> str | None:
    """Return the JDK that boxes with an environment use: its own, the system's usual one, or the newest that the system has."""
    usual = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("javac", path="/usr/bin:/bin") or "/nowhere")))
    others: Iterable[str] = sorted(glob.glob("/usr/lib/jvm/*"), key=jdk_version, reverse=True)
    return next((home for home in (os.path.join(prefix, JDK), usual, *others) if jdk_version(home) >= OLDEST_JDK), None)


def holds_class(jars: Iterable[str], name: str) -> bool:
    """Return whether one of the jars has a class."""
    entry = name.replace(".", "/") + ".class"
    for jar in jars:
        with contextlib.suppress(OSError, ValueError, RuntimeError, BadZipFile), ZipFile(jar) as opened:
            if entry in opened.NameToInfo:
                return True
    return False


def runners_for(jars: Iterable[str]) -> list[str]:
    """Return the classes of ours that can run tests with these jars."""
    listed = list(jars)
    found = [name for name, needed in FRAMEWORKS.items() if holds_class(listed, needed)]
    return ["Runner.java", *found] if found else []


def ready_name(support: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the name of the folder below `READY` that holds classes of ours compiled."""
    text = "".join(f"{name} {support[name]}" for name in sorted(names))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def archive_of(prefix: str, home: str | None) -> str:
    """Return the path of an environment's archive of the classes of a JDK's javac."""
    return os.path.join(prefix, READY, f"javac-{jdk_version(home or '/nowhere')}.jsa")
