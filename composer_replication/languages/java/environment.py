"""Make an environment ready for Java, once: find a JDK, and fetch the jars that the project requires."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from composer_replication.languages.java.compiled import classes_of, entries_of
from composer_replication.languages.java.jars.repositories import repositories
from composer_replication.languages.java.jars.resolution import resolve
from composer_replication.languages.java.settings import (
    JARS,
    JDK,
    OLDEST_JDK,
    READY,
    archive_of,
    build_files,
    find_jdk,
    jars_for,
    java_paths,
    jdk_version,
    own_jars,
    place_of,
    ready_name,
    runners_for,
)
from composer_replication.languages.java.support import ASKERS, RECORDERS, support_files
from composer_replication.sandbox.confined import Reach, run_confined
from composer_replication.sandbox.interpreter import clean_environment
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.types.errors import SourceError

_NOTES, _TIME_S = "composer-notes.json", 300
_IMPORTED = {"jupiter": r"\borg\.junit\.jupiter\.", "junit4": r"\borg\.junit\.(?!jupiter|platform)|\bjunit\.framework\."}
"""Framework -> what stands in files that import it; JUnit 4 runs tests of JUnit 3 too."""


def prepare_environment(python: Path, tree: Path, *, fetch: bool) -> tuple[str, ...]:
    """Find a JDK, and put the jars that a project requires into the environment, unless that was done; return notes.

    Args:
        fetch: copy the JDK that JAVA_HOME names, and ask the repository of Maven for jars.

    Raises:
        SourceError: there is no JDK that boxes see.
    """
    prefix = python.absolute().parent.parent
    if fetch:
        take_jdk(prefix)
    if find_jdk(str(prefix)) is None:
        debian = "such as Debian's openjdk-17-jdk-headless"
        fix = f"install one, {OLDEST_JDK} or newer, {debian}, or name it in JAVA_HOME and use --install"
        raise SourceError("there is no JDK with javac that sandboxes can see", fix=fix)
    notes = collect_jars(prefix, tree, fetch=fetch)
    if os.access(prefix, os.W_OK):
        jars = [*own_jars(str(tree.absolute())), *map(str, (prefix / JARS / jars_for(str(tree))).glob("*.jar"))]
        for names, needed in ((runners_for(jars), jars), (ASKERS, ()), (RECORDERS, ())):
            make_ready(prefix, names, needed)
    return notes


def make_ready(prefix: Path, names: Sequence[str], jars: Sequence[str]) -> None:
    """Compile classes of ours into an environment, unless that was done, and keep an archive of what javac loads for that.

    Raises SourceError where javac fails.
    """
    support, home = support_files(), find_jdk(str(prefix))
    place, archive = prefix / READY / ready_name(support, names), archive_of(str(prefix), home)
    if not names or home is None or place.exists():
        return
    with scratch_folder() as room:
        for name in names:
            (room / name).write_text(support[name])
        out = place.with_name(f".{place.name}")
        shutil.rmtree(out, ignore_errors=True)
        kept = [] if os.path.exists(archive) else [f"-J-XX:ArchiveClassesAtExit={archive}"]
        place.parent.mkdir(exist_ok=True)
        out.mkdir()
        (room / "none").mkdir()  # javac starts plug-ins that it finds on the path of processors, which is else that of classes
        command = [f"{home}/bin/javac", *kept, "-proc:none", "-processorpath", str(room / "none"), "-nowarn", "-g", "-parameters"]
        command += ["-encoding", "UTF-8", "-cp", os.pathsep.join(jars) or str(room), "-d", str(out)]
        command += [str(room / name) for name in names]
        reach = Reach(
            writable=frozenset({str(room), str(out), *([str(place.parent)] if kept else [])}),
            readable=frozenset({str(home), os.path.realpath(home), "/etc/java", *jars, *_settings_of(home)}),
        )
        try:
            done = run_confined(command, reach, environment=clean_environment(), most_s=_TIME_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceError(f"{home}/bin/javac does not run: {error}", fix="install the JDK again") from error
        if done.returncode:
            why = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:500])
            raise SourceError(f"what runs the tests does not compile with the project's JUnit: {why}", fix="take a newer JUnit")
    out.rename(place)


def _settings_of(home: str) -> set[str]:
    """Return the folders in /etc that a JDK of Debian has links to."""
    return {str(folder) for folder in Path("/etc").glob("java-*")} if os.path.realpath(home).startswith("/usr/") else set()


def collect_jars(prefix: Path, tree: Path, *, fetch: bool) -> tuple[str, ...]:
    """Put the jars that a project requires into an environment, unless that was done; return notes on what is lacking.

    Where the environment cannot be written nothing is done. A jar that has a class of the project itself is left out: a published
    version of the project has the code that tasks delete.

    Raises:
        SourceError: the repository on the web does not answer.
    """
    place = prefix / JARS / jars_for(str(tree))
    if (place / _NOTES).exists():
        return tuple(json.loads((place / _NOTES).read_text()))
    if not os.access(prefix, os.W_OK):
        return ()
    known = repositories(fetch=fetch)
    if not known.folders and not known.address:
        return ()
    files = {path: (tree / path).read_bytes() for path in build_files(str(tree))}
    found = resolve(files, _frameworks_in(tree), known)
    own = classes_of({path: (tree / path).read_bytes() for path in java_paths(str(tree))})
    fresh = place.with_name(f".{place.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    notes = list(known.notes)
    for artifact, content in found.jars.values():
        entries = entries_of(content)
        if entries is None:
            notes.append(f"{artifact} is no jar: left out")
        elif own & entries:
            notes.append(f"{artifact} has classes of the project: left out")
        else:
            (fresh / artifact.path("jar").rpartition("/")[2]).write_bytes(content)
    if found.lacking:
        notes.append(f"no repository that was asked has {', '.join(sorted(set(found.lacking)))}: left out")
    if not fetch and found.lacking:  # another call may ask the network
        shutil.rmtree(fresh)
        return tuple(notes) if found.jars else ()
    (fresh / _NOTES).write_text(json.dumps(notes))
    shutil.rmtree(place, ignore_errors=True)
    fresh.rename(place)
    return tuple(notes)


def _frameworks_in(tree: Path) -> frozenset[str]:
    """Return which frameworks the tests import."""
    found: set[str] = set()
    for path in java_paths(str(tree)):
        if place_of(path) == "test":
            text = (tree / path).read_text("utf-8", errors="replace")
            found |= {name for name, pattern in _IMPORTED.items() if re.search(pattern, text)}
    return frozenset(found)


def take_jdk(prefix: Path) -> None:
    """Put the JDK that JAVA_HOME names into an environment, where boxes see it. Raises SourceError where it is none."""
    named = os.environ.get("JAVA_HOME", "")
    place = prefix / JDK
    if not named or place.exists():
        return
    if jdk_version(named) < OLDEST_JDK:
        raise SourceError(
            f"JAVA_HOME={named} is no JDK of version {OLDEST_JDK} or newer with javac", fix="name another, or unset it"
        )
    real = os.path.realpath(named)
    if real.startswith("/usr/lib/jvm/"):
        place.symlink_to(real)
        return
    unneeded = shutil.ignore_patterns("src.zip", "jmods", "demo", "man", "sample")
    shutil.copytree(real, place, symlinks=False, ignore=unneeded, ignore_dangling_symlinks=True)
