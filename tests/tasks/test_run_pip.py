"""pip moves files and nothing else: whatever a release of it makes of a package, it starts no program and writes nowhere else.

A stand-in takes pip's place in a real virtual environment and does what releases of pip have done, or could.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from composer_replication.tasks.sources.run_pip import install_wheels
from composer_replication.types.errors import SourceError

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
REQUIREMENTS = """
class InvalidRequirement(ValueError): pass
class Requirement:
    def __init__(self, text):
        self.url = text.partition("@")[2]
"""
ELSEWHERE = [
    "open(f'{out}/new', 'w')",
    "open(f'{out}/kept', 'a')",
    "os.open(f'{out}/new', os.O_CREAT | os.O_WRONLY)",
    "os.truncate(f'{out}/kept', 0)",
    "os.rename(f'{sys.prefix}/mine', f'{out}/new')",
    "os.replace(f'{out}/kept', f'{sys.prefix}/new')",
    "shutil.move(f'{out}/kept', f'{sys.prefix}/new')",
    "os.link(f'{sys.prefix}/mine', f'{out}/new')",
    "os.symlink('/etc', f'{out}/new')",
    "os.remove(f'{out}/kept')",
    "os.rmdir(f'{out}/empty')",
    "os.mkdir(f'{out}/new')",
    "os.chmod(f'{out}/kept', 0o777)",
    "os.utime(f'{out}/kept', (0, 0))",
    "shutil.rmtree(out)",
    "open(sys.prefix + '.bak', 'w')",
    "open(sys.prefix + '/bin/../../new', 'w')",
    "os.symlink(out, sys.prefix + '/link'); open(sys.prefix + '/link/new', 'w')",
    "os.symlink(out, sys.prefix + '/link'); os.remove(sys.prefix + '/link/kept')",
    "os.symlink(f'{out}/new', sys.prefix + '/link'); open(sys.prefix + '/link', 'w')",
    "os.chdir(sys.prefix); open('../new', 'w')",
    "os.chdir(out); os.remove('kept')",
]
INSIDE = """
for place in (sys.prefix + "/made", tempfile.mkdtemp(prefix="pip-") + "/made"):
    os.mkdir(place)
    with open(place + "/a", "w") as file:
        file.write("text")
    os.rename(place + "/a", place + "/b")
    os.chmod(place + "/b", 0o600)
    os.symlink("b", place + "/link")
    os.link(place + "/b", place + "/c")
    os.remove(place + "/b")
    shutil.copytree(place, place + "-copy", symlinks=True)
    shutil.rmtree(place)
    open(os.devnull, "w").close()
"""
PROGRAMS = [
    "subprocess.run(['true'])",
    "os.system('true')",
    "os.popen('true')",
    "os.fork()",
    "os.execv('/bin/true', ['true'])",
    "os.posix_spawn('/bin/true', ['true'], {})",
    "os.spawnv(os.P_WAIT, '/bin/true', ['true'])",
    "pty.fork()",
]


def environment(folder: Path, action: str) -> Path:
    """The interpreter of a virtual environment whose pip does `action`; `out` in it is a folder beside the environment."""
    made = folder / "env"
    packages = made / "lib" / f"python{VERSION}" / "site-packages"
    for name, text in {
        "_internal/cli/main.py": f"import os, pty, shutil, subprocess, sys, tempfile\nout = {str(folder / 'out')!r}\n"
        f"def main(arguments):\n    exec({action!r}, globals())\n",
        "_vendor/packaging/requirements.py": REQUIREMENTS,
    }.items():
        (packages / "pip" / name).parent.mkdir(parents=True)
        (packages / "pip" / name).write_text(text)
    base = Path(getattr(sys, "_base_executable", sys.executable))
    (made / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    (made / "mine").write_text("")
    (made / "bin").mkdir()
    (made / "bin" / "python").symlink_to(base)
    (folder / "out" / "empty").mkdir(parents=True)
    (folder / "out" / "kept").write_text("precious")
    return made / "bin" / "python"


def outside(folder: Path) -> dict[str, tuple[int, float, bytes]]:
    """What is beside the environment."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if folder / "env" not in (path, *path.parents):
            state = path.lstat()
            found[str(path)] = (state.st_mode, state.st_mtime, path.read_bytes() if path.is_file() else b"")
    return found


@pytest.mark.parametrize("action", ELSEWHERE)
def test_nothing_is_written_or_removed_outside_the_environment(tmp_path: Path, action: str) -> None:
    python = environment(tmp_path, action)
    before = outside(tmp_path)
    with pytest.raises(SourceError, match=r"a package has pip write to .*outside the environment|Permission denied") as caught:
        install_wheels(python, [])
    assert "--python" in (caught.value.fix or "")
    assert outside(tmp_path) == before


def test_the_environment_and_a_folder_of_its_own_are_pip_s(tmp_path: Path) -> None:
    python = environment(tmp_path, INSIDE)
    install_wheels(python, [])
    assert (tmp_path / "env" / "made-copy" / "c").read_text() == "text"


@pytest.mark.parametrize("action", PROGRAMS)
def test_no_program_is_started(tmp_path: Path, action: str) -> None:
    with pytest.raises(SourceError, match=r"pip may start no program here|out of pty devices"):
        install_wheels(environment(tmp_path, action), [])
