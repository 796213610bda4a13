"""Outcomes of Java tests by id, whatever the tests print and however their JVM ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from java_builds import JavaBuild
from java_jars import unpacked
from java_projects import MAVEN, PLAIN, write

from composer_replication.languages.java.language import JAVA
from composer_replication.languages.java.runner import JavaRunner
from composer_replication.sandbox import Sandbox, open_sandbox
from composer_replication.sandbox.protocol import Limits, Tree
from composer_replication.types import Outcome
from composer_replication.types.errors import SourceError

GROUPS = ("junit/junit", "org/hamcrest/hamcrest", "org/junit", "org/opentest4j", "org/apiguardian", "com/univocity")
LEDGER, SCORES = "src/test/java/ledger/LedgerTest.java", "test/words/ScoreTest.java"


@pytest.fixture(scope="module")
def jars(maven_home: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """JUnit's jars, one of each name."""
    repository = unpacked(tmp_path_factory.mktemp("debian"))
    found = [path for group in GROUPS for path in sorted((repository / group).rglob("*.jar"))]
    return list({path.parent.parent: path for path in found if "console" not in path.name}.values())


@pytest.fixture(scope="module")
def java_runner(sandbox: Sandbox, maven_home: Path) -> JavaRunner:
    import sys

    return JavaRunner(sandbox=sandbox, python=Path(sys.executable), limits=Limits(wall_s=300, cpu_s=300))


def project(root: Path, files: dict[str, str], jars: list[Path]) -> Path:
    """Write a project with JUnit's jars in `lib`."""
    write(root, files)
    (root / "lib").mkdir()
    for jar in jars:
        shutil.copyfile(jar, root / "lib" / jar.name)
    return root


def test_every_test_has_an_id(java_runner: JavaRunner, jars: list[Path], tmp_path: Path) -> None:
    five = java_runner.run(Tree(base=project(tmp_path / "five", MAVEN, jars)), ())
    assert five.collect_errors == ()
    assert five.outcomes == {
        **{f"{LEDGER}::parses[{n}]": Outcome.PASSED for n in range(1, 6)},
        **{f"{LEDGER}::refuses[{n}]": Outcome.PASSED for n in range(1, 4)},
        **{f"{LEDGER}::{name}": Outcome.PASSED for name in ("kinds", "most", "pads[1]", "pads[2]")},
        **{f"{LEDGER}::Filled.{name}": Outcome.PASSED for name in ("sums", "groups", "largest", "counts")},
        f"{LEDGER}::never": Outcome.SKIPPED,
    }
    four = java_runner.run(Tree(base=project(tmp_path / "four", PLAIN, jars)), ())
    assert four.outcomes == {
        **{f"{SCORES}::scores[{n}]": Outcome.PASSED for n in range(1, 7)},
        **{f"test/words/WordsTest.java::{name}": Outcome.PASSED for name in ("counts", "measures", "joins", "inserts")},
        "test/words/WordsTest.java::later": Outcome.SKIPPED,
        "test/words/OldTest.java::testScore": Outcome.PASSED,
    }


ODD = {
    "src/main/java/odd/Odd.java": "package odd;\n\npublic class Odd {\n    public static int one() {\n"
    "        return 1;\n    }\n}\n",
    "src/test/java/odd/OddTest.java": """package odd;

import static org.junit.Assert.*;

import org.junit.*;
import org.junit.runners.MethodSorters;

@FixMethodOrder(MethodSorters.NAME_ASCENDING)
public class OddTest {
    @Test public void a_first() { assertEquals(1, Odd.one()); }
    @Test public void b_fails() { fail("seven are wanted"); }
    @Test public void c_throws() { throw new IllegalStateException(); }
    @Test public void d_assumes() { Assume.assumeTrue(false); }
    @Test public void e_ends() { System.out.println("OK (9 tests)"); System.exit(0); }
    @Test public void f_halts() { Runtime.getRuntime().halt(0); }
    @Test public void g_prints() { System.out.println("MARK\\tdone\\tx\\tpassed\\t"); fail(); }
    @Test(expected = ArithmeticException.class) public void h_expects() { Math.floorDiv(1, Odd.one() - 1); }
    @Test public void i_recurses() { i_recurses(); }
    @Test public void j_last() { }
}
""",
    "src/test/java/odd/GroupTest.java": """package odd;

import org.junit.*;

public class GroupTest {
    @BeforeClass public static void before() { throw new IllegalStateException("nothing is ready"); }
    @Test public void never() { }
}
""",
    "src/test/java/odd/BrokenTest.java": "package odd;\n\nimport gone.Away;\n\npublic class BrokenTest {\n"
    "    @org.junit.Test public void x() { new Away(); }\n}\n",
    "src/test/java/odd/BaseTest.java": "package odd;\n\npublic abstract class BaseTest {\n"
    "    @org.junit.Test public void inherited() { }\n}\n",
    "src/test/java/odd/DeepTest.java": "package odd;\n\npublic class DeepTest extends BaseTest {\n}\n",
}


def test_each_way_to_end_is_told_apart(java_runner: JavaRunner, jars: list[Path], tmp_path: Path) -> None:
    tree = Tree(base=project(tmp_path, ODD, jars))
    run = java_runner.run(tree, ())
    failing = ("b_fails", "c_throws", "e_ends", "f_halts", "g_prints", "i_recurses")
    assert {test_id.partition("::")[2]: outcome for test_id, outcome in run.outcomes.items()} == {
        **dict.fromkeys(("a_first", "h_expects", "j_last", "inherited"), Outcome.PASSED),
        **dict.fromkeys(failing, Outcome.FAILED),
        "d_assumes": Outcome.SKIPPED,
    }
    said = {test_id.partition("::")[2]: message for test_id, message in run.failures.items()}
    assert said["b_fails"] == "java.lang.AssertionError: seven are wanted"
    assert said["e_ends"] == said["f_halts"] == "it ended the test process"
    (error,) = run.collect_errors
    assert error == "src/test/java/odd/BrokenTest.java: line 3: package gone does not exist"
    never = "src/test/java/odd/GroupTest.java::never"
    first, second = java_runner.run_twice(
        tree, [never, "src/test/java/odd/OddTest.java::a_first", "src/test/java/odd/Gone.java::x"]
    )
    assert first.outcomes == second.outcomes
    assert second.outcomes[never] is Outcome.MISSING
    assert second.outcomes["src/test/java/odd/OddTest.java::a_first"] is Outcome.PASSED
    assert "nothing is ready" in second.failures[never]
    stopped = java_runner.run(
        tree, [f"src/test/java/odd/OddTest.java::{name}" for name in ("a_first", "b_fails", "j_last")], ("-x",)
    )
    assert stopped.outcomes["src/test/java/odd/OddTest.java::j_last"] is Outcome.MISSING


def test_code_that_does_not_compile_fails_all_tests(java_runner: JavaRunner, jars: list[Path], tmp_path: Path) -> None:
    tree = Tree(
        base=project(tmp_path, ODD, jars), changes={"src/main/java/odd/Odd.java": b"package odd; class Odd { int f() { } }"}
    )
    run = java_runner.run(tree, ["src/test/java/odd/OddTest.java::j_last"])
    assert run.outcomes == {"src/test/java/odd/OddTest.java::j_last": Outcome.MISSING}
    assert run.collect_errors == ("src/test/java/odd/OddTest.java: src/main/java/odd/Odd.java: line 1: missing return statement",)


def test_lines_are_counted_for_the_tests_that_run_them(java_runner: JavaRunner, jars: list[Path], tmp_path: Path) -> None:
    _, coverage = java_runner.run_with_coverage(Tree(base=project(tmp_path, PLAIN, jars)), ("test",))
    assert coverage.keys() == {"src/words/Words.java"}
    rows = PLAIN["src/words/Words.java"].splitlines()
    lines = {text: coverage["src/words/Words.java"].get(rows.index(text) + 1) for text in rows if "total +=" in text}
    assert lines["                    total += 10;"] == {
        *(f"{SCORES}::scores[{n}]" for n in (2, 6)),
        "test/words/OldTest.java::testScore",
    }
    counted = coverage["src/words/Words.java"][rows.index("        Map<String, Integer> found = new HashMap<>();") + 1]
    assert counted == {"test/words/WordsTest.java::counts"}


@pytest.mark.parametrize("kind", ["namespaces", "landlock", "bubblewrap"])
def test_every_kind_of_box_can_compile(kind: str, java_runner: JavaRunner, jars: list[Path], tmp_path: Path) -> None:
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("there is no bubblewrap on this machine")
    boxed = replace(java_runner, sandbox=open_sandbox(kind))
    assert boxed.run(Tree(base=project(tmp_path, PLAIN, jars)), ("test/words/OldTest.java::testScore",)).passed


def test_a_project_without_junit_says_so(java_runner: JavaRunner, tmp_path: Path) -> None:
    run = java_runner.run(Tree(base=write(tmp_path, PLAIN)), ("test/words/OldTest.java::testScore",))
    assert not run.passed
    assert "there is no JUnit among the project's jars" in run.collect_errors[0]


def test_jars_come_from_the_mirror_of_the_settings(java_built: Callable[[str], JavaBuild]) -> None:
    built = java_built("maven")
    names = {path.name for path in built.python.parent.parent.glob("java-jars/*/*.jar")}
    assert "junit-jupiter-debian.jar" in names
    assert any(name.startswith("junit-platform-launcher-") for name in names)
    assert not any(name.startswith("junit-4") for name in names)
    assert built.report.notes == ()


def test_a_jdk_elsewhere_is_taken_along(
    java_runner: JavaRunner, jars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from composer_replication.languages.java.environment import take_jdk
    from composer_replication.languages.java.settings import find_jdk

    home, prefix = tmp_path / "opt" / "jdk", tmp_path / "env"
    (home / "bin").mkdir(parents=True)
    prefix.mkdir()
    (home / "bin" / "javac").write_text("#!/bin/sh\n")
    (home / "bin" / "javac").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="11.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(SourceError, match="no JDK of version 17"):
        take_jdk(prefix)
    (home / "release").write_text('JAVA_VERSION="21.0.2"\n')
    take_jdk(prefix)
    assert find_jdk(str(prefix)) == str(prefix / "java-jdk")
    assert not (prefix / "java-jdk").is_symlink()


def test_layout_leaves_aside_what_is_no_code(tmp_path: Path) -> None:
    root = write(tmp_path, MAVEN)
    for path in ("src/main/java/module-info.java", "examples/E.java", "src/main/java9/x/Y.java", "target/Z.java"):
        write(root, {path: "class X {}\n"})
    assert JAVA.layout(root, (), ()).sources == ("src/main/java/ledger/Entry.java", "src/main/java/ledger/Ledger.java")
    with pytest.raises(SourceError, match="no gone"):
        JAVA.layout(root, ("gone",), ())
    (root / LEDGER).unlink()
    with pytest.raises(SourceError, match="no tests of JUnit"):
        JAVA.layout(root, (), ())
