"""Requirements of build files of Java, and the jars that they come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.languages.java.jars.coordinates import Artifact
from composer_replication.languages.java.jars.gradle import dependencies_of
from composer_replication.languages.java.jars.poms import one_version
from composer_replication.languages.java.jars.repositories import Repositories, parsed, repositories
from composer_replication.languages.java.jars.resolution import resolve
from composer_replication.languages.java.settings import jars_for, place_of
from composer_replication.types.errors import SourceError


def pom(coordinate: str, dependencies: str = "", more: str = "") -> str:
    group, name, version = coordinate.split(":")
    head = f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
    return f"<project xmlns='http://maven.apache.org/POM/4.0.0'>{head}{more}<dependencies>{dependencies}</dependencies></project>"


def needs(coordinate: str, more: str = "") -> str:
    group, name, *version = coordinate.split(":")
    versions = "".join(f"<version>{one}</version>" for one in version)
    return f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>{versions}{more}</dependency>"


def repository(root: Path, poms: dict[str, str], *, without_jar: frozenset[str] = frozenset()) -> Repositories:
    for coordinate, text in poms.items():
        group, name, version = coordinate.split(":")
        artifact = Artifact(group=group, name=name, version=version)
        file = root / artifact.path("pom")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if coordinate not in without_jar:
            (root / artifact.path("jar")).write_bytes(coordinate.encode())
    return Repositories(folders=(root,), address="")


def jars_of(files: dict[str, str], known: Repositories, imports: frozenset[str] = frozenset()) -> tuple[set[str], list[str]]:
    found = resolve({path: text.encode() for path, text in files.items()}, imports, known)
    return {jar.decode() for _, jar in found.jars.values()}, found.lacking


def test_the_nearest_version_wins_and_test_libraries_of_libraries_stay_away(tmp_path: Path) -> None:
    known = repository(
        tmp_path,
        {
            "a:near:1": pom("a:near:1", needs("a:deep:1") + needs("a:spare:1", "<scope>test</scope>")),
            "a:far:1": pom("a:far:1", needs("a:deep:2") + needs("a:left:1") + needs("a:maybe:1", "<optional>true</optional>")),
            "a:deep:1": pom("a:deep:1"),
            "a:deep:2": pom("a:deep:2"),
            "a:spare:1": pom("a:spare:1"),
            "a:left:1": pom("a:left:1"),
            "a:maybe:1": pom("a:maybe:1"),
        },
    )
    left_out = "<exclusions><exclusion><groupId>a</groupId><artifactId>left</artifactId></exclusion></exclusions>"
    files = {"pom.xml": pom("me:me:1", needs("a:near:1") + needs("a:far:1", left_out) + needs("b:gone:7"))}
    assert jars_of(files, known) == ({"a:near:1", "a:far:1", "a:deep:1"}, ["b:gone:7"])


def test_parents_variables_and_lists_of_versions_are_read(tmp_path: Path) -> None:
    managed = f"<dependencyManagement><dependencies>{needs('a:one:3')}</dependencies></dependencyManagement>"
    listed = f"<dependencyManagement><dependencies>{needs('a:two:4')}</dependencies></dependencyManagement>"
    known = repository(
        tmp_path,
        {
            "p:parent:1": pom("p:parent:1", needs("a:three:${three}"), f"<properties><three>5</three></properties>{managed}"),
            "b:list:1": pom("b:list:1", "", listed),
            "a:one:3": pom("a:one:3"),
            "a:two:4": pom("a:two:4"),
            "a:three:6": pom("a:three:6"),
        },
        without_jar=frozenset({"p:parent:1", "b:list:1"}),
    )
    parent = "<parent><groupId>p</groupId><artifactId>parent</artifactId><version>1</version></parent>"
    imported = needs("b:list:1", "<type>pom</type><scope>import</scope>")
    own = f"{parent}<properties><three>6</three></properties>"
    own += f"<dependencyManagement><dependencies>{imported}</dependencies></dependencyManagement>"
    child = f"<project>{own}<artifactId>me</artifactId><dependencies>{needs('a:one')}{needs('a:two')}</dependencies></project>"
    assert jars_of({"pom.xml": child}, known)[0] == {"a:one:3", "a:two:4"}
    known = repository(tmp_path / "again", {"p:parent:1": pom("p:parent:1", needs("a:one:3")), "a:one:3": pom("a:one:3")})
    assert jars_of({"pom.xml": f"<project>{parent}<artifactId>me</artifactId></project>"}, known)[0] == {"a:one:3"}


def test_modules_of_the_project_are_not_asked_for(tmp_path: Path) -> None:
    known = repository(tmp_path, {"a:one:1": pom("a:one:1"), "me:core:1": pom("me:core:1")})
    files = {"pom.xml": pom("me:all:1"), "core/pom.xml": pom("me:core:1"), "web/pom.xml": pom("me:web:1", needs("me:core:1"))}
    files["core/pom.xml"] = pom("me:core:1", needs("a:one:1"))
    assert jars_of(files, known) == ({"a:one:1"}, [])


def test_junit_has_its_engine_and_launcher(tmp_path: Path) -> None:
    jupiter, platform = "org.junit.jupiter", "org.junit.platform"
    coordinates = [f"{jupiter}:junit-jupiter-api:5.9.2", f"{jupiter}:junit-jupiter-engine:5.9.2"]
    coordinates += [f"{platform}:junit-platform-launcher:1.9.2", "junit:junit:4.13.2"]
    known = repository(tmp_path, {one: pom(one) for one in coordinates})
    files = {"pom.xml": pom("me:me:1", needs(coordinates[0], "<scope>test</scope>"))}
    assert jars_of(files, known, frozenset({"jupiter", "junit4"})) == (set(coordinates), [])


def test_gradle_files_are_read_as_text() -> None:
    text = """
    def junitVersion = '5.9.2'
    dependencies {
        api "a:one:1"
        implementation('a:two:2') { exclude group: 'x' }
        testImplementation platform("org.junit:junit-bom:$junitVersion")
        testImplementation("org.junit.jupiter:junit-jupiter")
        testImplementation group: 'a', name: 'three', version: junitVersion
        compileOnly "a:four:${other.version}"
    }
    """
    found = {
        f"{one.group}:{one.name}:{one.version}": one.scope
        for one in dependencies_of({"build.gradle": text.encode(), "gradle.properties": b"other.version=9\n"})
    }
    assert found == {
        **{"a:one:1": "compile", "a:two:2": "compile", "org.junit:junit-bom:5.9.2": "import"},
        **{"org.junit.jupiter:junit-jupiter:": "test", "a:three:5.9.2": "test", "a:four:9": "compile"},
    }


@pytest.mark.parametrize("text", [b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", b"<a>", b"", b"\xff"])
def test_odd_files_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed(text)


@pytest.mark.parametrize("odd", ["../../etc", "a/b", "", "a b"])
def test_names_that_leave_the_repository_are_not_read(odd: str, tmp_path: Path) -> None:
    assert repository(tmp_path, {}).read(Artifact(group="a", name=odd, version="1"), "jar") is None


def test_the_mirror_of_the_settings_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert repositories(fetch=True).address == "https://repo.maven.apache.org/maven2"
    assert repositories(fetch=False).address == ""
    (tmp_path / ".m2").mkdir()
    settings = tmp_path / ".m2" / "settings.xml"
    mirror = "<mirror><mirrorOf>{}</mirrorOf><url>{}</url></mirror>"
    listed = mirror.format("*,!central", "https://not.example") + mirror.format("central", "https://mirror.example/maven/")
    settings.write_text(f"<settings><mirrors>{listed}</mirrors></settings>")
    assert repositories(fetch=True).address == "https://mirror.example/maven"
    settings.write_text(f"<settings><mirrors>{mirror.format('*', 'ftp://x')}</mirrors></settings>")
    with pytest.raises(SourceError, match="no address of HTTP"):
        repositories(fetch=True)


@pytest.mark.parametrize(("text", "version"), [("1.2", "1.2"), ("[1.0,2)", "1.0"), ("(,3]", "3"), ("[4]", "4")])
def test_the_first_version_of_a_range_is_taken(text: str, version: str) -> None:
    assert one_version(text) == version


@pytest.mark.parametrize(
    ("path", "place"),
    [
        *(("src/main/java/a/B.java", "main"), ("core/src/main/java/a/test/B.java", "main"), ("src/test/java/a/B.java", "test")),
        *(("src/main/java/module-info.java", ""), ("src/main/java9/a/B.java", ""), ("examples/src/main/java/a/B.java", "")),
        *(("src/a/B.java", "main"), ("test/a/B.java", "test"), ("src/a/BTest.java", "test"), ("docs/B.java", "")),
        *(("src/main/resources/a.txt", ""), ("src/jmh/java/a/B.java", ""), ("B.java", "main"), (".mvn/wrapper/W.java", "")),
    ],
)
def test_files_have_their_places(path: str, place: str) -> None:
    assert place_of(path) == place


def test_the_folder_of_jars_hangs_on_build_files_alone(tmp_path: Path) -> None:
    empty = jars_for(str(tmp_path))
    (tmp_path / "A.java").write_text("class A {}")
    assert jars_for(str(tmp_path)) == empty
    (tmp_path / "pom.xml").write_text("<project/>")
    assert jars_for(str(tmp_path)) != empty
