"""Jars that a stranger's project brings: no class of them runs outside of a box, and none is its own code compiled."""

from __future__ import annotations

import subprocess
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from java_builds import JavaBuild
from java_projects import PLAIN, write

from composer_replication.languages.java.language import JAVA
from composer_replication.languages.java.settings import READY, find_jdk
from composer_replication.tasks import BuildOptions, build_tasks
from composer_replication.tasks.files import tree_files

PLUGIN = """
import com.sun.source.util.JavacTask;
import com.sun.source.util.Plugin;

public class Intruder implements Plugin {
    public String getName() { return "Intruder"; }
    public boolean autoStart() { return true; }
    public void init(JavacTask task, String... arguments) {
        try { java.nio.file.Files.writeString(java.nio.file.Path.of("PLACE"), "here"); }
        catch (java.io.IOException error) { throw new RuntimeException(error); }
    }
}
"""


def compiled(folder: Path, name: str, source: str) -> Path:
    """Compile a class; return the folder with its file."""
    home = find_jdk("/nowhere")
    assert home is not None
    folder.mkdir(parents=True)
    (folder / f"{name}.java").write_text(source)
    subprocess.run([f"{home}/bin/javac", "-proc:none", "-d", str(folder), str(folder / f"{name}.java")], check=True)
    return folder


def archive(jar: Path, folder: Path, **more: str) -> None:
    jar.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(jar, "w") as made:
        for path in sorted(folder.rglob("*.class")):
            made.write(path, path.relative_to(folder).as_posix())
        for name, text in more.items():
            made.writestr(f"META-INF/services/{name}", text)


@pytest.mark.usefixtures("maven_home")
def test_a_plugin_of_javac_in_a_jar_is_not_started(java_built: Callable[[str], JavaBuild], tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    tree = write(tmp_path / "plain", PLAIN)
    archive(
        tree / "lib" / "intruder.jar",
        compiled(tmp_path / "made", "Intruder", PLUGIN.replace("PLACE", str(sign))),
        **{"com.sun.source.util.Plugin": "Intruder\n"},
    )
    environment = java_built("plain").python.parent.parent
    for jar in environment.glob("java-jars/*/*.jar"):
        (tree / "lib" / jar.name).write_bytes(jar.read_bytes())
    venv.create(tmp_path / "env", with_pip=False)
    JAVA.prepare(tmp_path / "env" / "bin" / "python", tree, fetch=False)
    assert list((tmp_path / "env" / READY).rglob("*.class")), "it was compiled"
    assert not sign.exists()


def test_a_jar_with_the_projects_own_classes_is_no_part_of_its_tree(maven_home: Path, tmp_path: Path) -> None:
    tree = write(tmp_path / "plain", PLAIN)
    source = next(path for path in tree_files(tree) if path.endswith(".java") and "Test" not in path)
    name = Path(source).stem
    archive(tree / "lib" / "self-1.0.jar", compiled(tmp_path / "made", name, (tree / source).read_text()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(maven_home))
        build_tasks(str(tree), tmp_path / "tasks", BuildOptions(trivial=True, install=True, timeout_s=300, max_tasks=1))
    assert not list((tmp_path / "tasks").rglob("self-1.0.jar"))
