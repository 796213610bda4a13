"""Java, as the grader and the builder of tasks know it: JUnit runs the tests, and javac is all that builds."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import cast

from composer_replication.languages.calls.book import CallBook
from composer_replication.languages.calls.language import PARSING, LanguageWithCalls
from composer_replication.languages.copies import find_copies
from composer_replication.languages.functions import Function, Skipped
from composer_replication.languages.java.alarms import KINDS, telling
from composer_replication.languages.java.compiled import compiled_copies
from composer_replication.languages.java.environment import prepare_environment
from composer_replication.languages.java.held_out import is_call, make_call_book, wrong_calls
from composer_replication.languages.java.layout import java_layout
from composer_replication.languages.java.runner import JavaRunner
from composer_replication.languages.java.settings import JDK, place_of
from composer_replication.languages.java.support import FOLDER, RUNNERS, support_files
from composer_replication.languages.java.syntax import find_functions, outline
from composer_replication.languages.layout import RepositoryLayout, below
from composer_replication.languages.programs import program_of
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Ending, Sandbox, Tree
from composer_replication.types.held_out_checks import HeldOutProgram

_SHELL = """for composer_java in {own}/bin "$(dirname "$(readlink -f /usr/bin/javac)")" /usr/lib/jvm/*/bin; do
    [ -x "$composer_java/javac" ] && break
done
export composer_java PATH="$composer_java:$PATH" JAVA_HOME="$(dirname "$composer_java")"
java() {{ "$composer_java/java" {options} "$@"; }}
javac() {{ "$composer_java/javac" {compiling} "$@"; }}
[ -f /tmp/.run-tests.py ] || cat > /tmp/.run-tests.py <<'COMPOSER_END'
{program}
COMPOSER_END
run-tests() {{ {python} -s -B /tmp/.run-tests.py "$@"; }}
export -f java javac run-tests
"""
_ANSWERS = """if __name__ == "__main__":
    asked = json.load(sys.stdin)
    tell(asked["nonce"], answered(asked))
"""
"""The end of the driver of tests, which runs where the driver is the last part of a program."""
_OPTIONS = (
    *("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
    *("-XX:CompressedClassSpaceSize=128m", "-XX:ReservedCodeCacheSize=64m"),
)
"""Of JVMs that an agent starts: its box has less memory than the machine says."""


class Java(LanguageWithCalls):
    """See `languages.protocol.Language`."""

    name = "java"
    kinds = KINDS
    is_call = staticmethod(is_call)
    runner_type = JavaRunner
    stub = 'throw new UnsupportedOperationException("not implemented");'
    requirements = ()
    system_requirements = ("default-jdk-headless",)
    libraries = (*PARSING, "tree-sitter-java")

    def wrong_programs(self, runner: CodeRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
        """Make the held-out calls."""
        return wrong_calls(cast(JavaRunner, runner), tree, programs)

    def shell_setup(self, python_path: Sequence[str], python: Path) -> str:
        """Put the JDK on the path, and define `run-tests`, which compiles and runs the tests of all or some files."""
        del python_path
        own = shlex.quote(str(python.parent.parent / JDK))
        return _SHELL.format(
            own=own,
            options=" ".join(_OPTIONS),
            compiling=" ".join(f"-J{flag}" for flag in _OPTIONS),
            python=shlex.quote(str(python)),
            program=shell_program(),
        )

    def holds(self, paths: Sequence[str]) -> bool:
        """Return whether there is a build file of Maven or Gradle at the root, or nothing but Java, and a test."""
        built = {"pom.xml", "build.gradle", "build.gradle.kts", "build.xml"}.intersection(paths)
        places = {place_of(path) for path in paths}
        others = any(path.endswith((".py", ".go", ".ts", ".js")) for path in paths)
        return "main" in places and (bool(built) or (not others and "test" in places))

    def built_files(self, files: Mapping[str, bytes]) -> Set[str]:
        """Return what lies in folders that Maven, Gradle and Ant write to, and compiled classes of the project, in jars too."""
        return below(files, ["target", "build", "out", "bin", ".gradle"]) | compiled_copies(files)

    def layout(self, tree: Path, packages: Sequence[str], tests: Sequence[str]) -> RepositoryLayout:
        """Take `src/main/java` of the project and its modules, or what else is no test and no example."""
        return java_layout(tree, packages, tests)

    def prepare(self, python: Path, tree: Path, *, fetch: bool) -> tuple[str, ...]:
        """Find a JDK, and put the jars that the tests need into the environment."""
        return prepare_environment(python, tree, fetch=fetch)

    def find_functions(self, path: str, source: bytes, keep_docstring: bool) -> tuple[list[Function], list[Skipped]]:
        """Find methods and constructors with tree-sitter. A comment above one stays."""
        del keep_docstring
        return find_functions(path, source)

    def is_source(self, path: str) -> bool:
        """Return whether a file is code and no test."""
        return place_of(path) == "main"

    def outline(self, source: bytes, qualname: str) -> tuple[str, str]:
        """Return the signature, and the comment above it."""
        return outline(source, qualname)

    def find_copies(self, sandbox: Sandbox, python: Path, sources: Mapping[str, bytes], keys: Sequence[str]) -> Mapping[str, str]:
        """Search the Java files that a sandbox can read: in /usr and the environment."""
        roots = ("/usr", *sandbox.installation(python).binds)
        return find_copies(sandbox, sources, keys, find_functions, roots=roots, endings=(".java",), same_name=True)

    def make_book(self, runner: CodeRunner, tree: Path, layout: RepositoryLayout, passing: Set[str], seed: int) -> CallBook:
        """Record the calls that the tests make, and vary them."""
        del passing
        files = {path: (tree / path).read_bytes() for path in layout.sources}
        return make_call_book(cast(JavaRunner, runner), Tree(base=tree), files, layout.tests, seed=seed)

    def telling(self, sources: Mapping[str, bytes]) -> set[str]:
        """Return what of sources is worth a look."""
        return telling(sources)


def shell_program() -> str:
    """Return the program behind `run-tests`."""
    program = program_of(FOLDER, "settings", "toolchain", "driver", "shell")
    head, _, tail = program.partition(_ANSWERS)
    return f"SUPPORT = {json.dumps({name: support_files()[name] for name in RUNNERS})}\n{head}{tail}"


JAVA = Java()
