"""An image made of this machine's own libraries, so that nothing is pulled; the daemon is the one `docker` is set up for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_replication.sandbox import Sandbox, open_sandbox

IMAGE = "composer-sandbox-test"
PROGRAMS = ("/bin/sh", "/bin/cat")


def libraries(binaries: list[str]) -> set[str]:
    said = subprocess.run(["ldd", *binaries], capture_output=True, text=True).stdout
    return set(re.findall(r"(/\S+) \(0x", said))


def write_image(path: Path) -> None:
    """A root with a shell and the shared libraries of this interpreter."""
    extensions = Path(sys.base_prefix, "lib", f"python3.{sys.version_info.minor}", "lib-dynload").glob("*.so")
    files = {*PROGRAMS, *libraries([os.path.realpath(sys.executable), *PROGRAMS, *map(str, extensions)])}
    with tarfile.open(path, "w") as archive:
        for name in ("usr", "usr/bin", "usr/lib", "usr/lib64", "proc", "dev", "sys", "etc", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        for name in ("bin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(link)
        for name in sorted(files):
            archive.add(os.path.realpath(name), name if name.startswith("/usr/") else f"/usr{name}")


@pytest.fixture(scope="session")
def image(tmp_path_factory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("image") / "root.tar"
    write_image(path)
    subprocess.run(["docker", "import", str(path), IMAGE], check=True, capture_output=True)
    yield IMAGE
    subprocess.run(["docker", "image", "rm", "--force", IMAGE], check=True, capture_output=True)


@pytest.fixture(scope="session")
def box(image) -> Sandbox:
    return open_sandbox(f"docker:{image}")


@pytest.fixture
def base(tmp_path) -> Path:
    folder = tmp_path / "base"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "old.py").write_text("old")
    (folder / "keep.txt").write_text("keep")
    (folder / "same.txt").hardlink_to(folder / "keep.txt")
    (folder / "script.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "script.sh").chmod(0o755)
    (folder / "link").symlink_to("keep.txt")
    return folder
