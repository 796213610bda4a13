"""What a sandbox shows of the machine's software: what tests and agents need, and nothing that some other program installed."""

from __future__ import annotations

import os
import shutil
import sys
from itertools import islice
from pathlib import Path

import pytest

from composer_replication.sandbox.backends import system
from composer_replication.sandbox.interpreter import installation_of

TOOLS = {
    "git": "git --version",
    "perl": "perl -MList::Util=sum -MPOSIX -e 'print sum(1, 2)'",
    "gcc": "echo 'int main(void) { return 0; }' > a.c && gcc -o a.out a.c && test -s a.out",
    "sed": "echo a | sed s/a/b/ | grep b",
    "locale": "LC_ALL=C.UTF-8 locale charmap | grep UTF-8",
    "file": "file script.sh | grep -i text",
}
RUN = """
import json, os, subprocess, sys
done = subprocess.run(["/bin/sh", "-c", sys.argv[1]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
os.write(3, json.dumps([done.returncode, done.stdout]).encode())
"""
READ = """
import json, os, sys
read = []
for path in sys.argv[1:]:
    try:
        open(path, "rb").read(1)
        read.append(path)
    except OSError:
        pass
os.write(3, json.dumps(read).encode())
"""


def files_below(top: str, *, without: tuple[str, ...]):
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if f"{folder}/{name}" not in without]
        yield from (path for name in files if os.path.isfile(path := f"{folder}/{name}") and not os.path.islink(path))


@pytest.mark.parametrize("tool", TOOLS)
def test_the_shell_tools_run(box, base, answer, tool):
    if shutil.which(tool, path="/usr/bin:/bin") is None:
        pytest.skip(f"{tool} is not installed")
    status, said = answer(box, base, RUN, TOOLS[tool])
    assert status == 0, said


def test_time_zones_are_there(box, base, answer):
    if not os.path.isdir("/usr/share/zoneinfo"):
        pytest.skip("no time zones on this machine")
    code = 'import json, os, zoneinfo; os.write(3, json.dumps(str(zoneinfo.ZoneInfo("Europe/Berlin"))).encode())'
    assert answer(box, base, code) == "Europe/Berlin"


def test_other_software_is_not_there(box, base, answer):
    shown = (*system.system_view().paths, *installation_of(Path(sys.executable)).binds)
    hidden = list(islice(files_below("/usr", without=shown), 200))
    if not hidden:
        pytest.skip("this machine has nothing else in /usr")
    assert answer(box, base, READ, *hidden) == []
    assert answer(box, base, READ, "/usr/bin/env") == ["/usr/bin/env"]


def machine(root: Path, *entries: str) -> system.SystemView:
    """The view of a machine that has these files; `PATH -> TARGET` is a symbolic link."""
    for entry in entries:
        path, _, target = entry.partition(" -> ")
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target) if target else place.write_text("")
    return system.view_of(str(root))


def test_a_merged_usr(tmp_path):
    view = machine(
        tmp_path,
        *("bin -> usr/bin", "lib -> usr/lib", "lib64 -> usr/lib64", "usr/bin/sh", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        *("usr/lib64/ld-linux-x86-64.so.2 -> /lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "usr/lib/sdk/till/pricing.py"),
        *("usr/lib/python3/dist-packages/till.py", "usr/local/lib/till.py", "usr/src/till.py", "usr/share/doc/till.py"),
        *("usr/lib/locale/C.utf8/LC_CTYPE", "usr/share/zoneinfo/UTC", "etc/shadow", "etc/ld.so.cache"),
    )
    assert view.paths == (
        *("/usr/bin", "/usr/lib/locale", "/usr/lib/x86_64-linux-gnu", "/usr/share/zoneinfo", "/etc/ld.so.cache"),
    )
    assert [path for path, _ in view.links] == ["/bin", "/lib", "/lib64", "/usr/lib64/ld-linux-x86-64.so.2"]
    assert view.folders == ("/etc", "/usr", "/usr/lib", "/usr/lib64", "/usr/share")


def test_a_folder_of_all_libraries_is_shown_whole(tmp_path):
    libraries = [f"usr/lib64/lib{number}.so.1" for number in range(20)]
    view = machine(tmp_path, "lib64 -> usr/lib64", "usr/lib/gcc/cc1", "usr/lib/python3.12/json.py", *libraries)
    assert view.paths == ("/usr/lib/gcc", "/usr/lib64")


def test_a_jdk_is_shown_with_its_settings(tmp_path):
    files = ("usr/lib/jvm/java-17/bin/javac", "etc/java-17-openjdk/jvm.cfg", "etc/java/security", "etc/javac.conf", "etc/shadow")
    view = machine(tmp_path, *files)
    assert view.paths == ("/etc/java", "/etc/java-17-openjdk", "/usr/lib/jvm")


def test_top_folders_that_are_no_links(tmp_path):
    view = machine(tmp_path, "bin/sh", "lib/libc.so", "usr/bin/env", "usr/lib/libssl.so", "usr/lib/sdk/till.py")
    assert view.paths == ("/bin", "/lib", "/usr/bin", "/usr/lib/libssl.so")


@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="no Python of the system's own")
def test_of_the_systems_own_python_only_its_packages_are_shown():
    binds = installation_of(Path("/usr/bin/python3")).binds
    assert "/usr" not in binds
    assert all(os.path.basename(path).startswith("python3") or "-packages" in path for path in binds), binds
