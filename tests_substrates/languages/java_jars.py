"""A repository of Maven's layout on this machine's network, with JUnit from packages of Debian: a stand-in for Maven Central.

The packages come through apt-get, which needs no rights to download; its lists are fetched into a folder of the tests where the
machine has none.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

PACKAGES = ("junit4", "libhamcrest-java", "junit5", "libapiguardian-java", "libopentest4j-java", "libunivocity-parsers-java")


def unpacked(folder: Path, packages: tuple[str, ...] = PACKAGES) -> Path:
    """Download packages of Debian and unpack them below a folder; return their repository of Maven's layout.

    COMPOSER_TEST_MAVEN_REPOSITORY names one that is there already.
    """
    if ready := os.environ.get("COMPOSER_TEST_MAVEN_REPOSITORY"):
        return Path(ready)
    (folder / "lists" / "partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"]
    if _apt(folder, "download", *packages):
        _apt(folder, *own, "update")
        if said := _apt(folder, *own, "download", *packages):
            pytest.fail(f"JUnit's packages cannot be had from Debian's mirror, which the tests of Java need: {said}")
    for package in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True)
    return folder / "root" / "usr" / "share" / "maven-repo"


def _apt(folder: Path, *arguments: str) -> str:
    """Run apt-get in a folder; return what it complains of."""
    try:
        done = subprocess.run(["apt-get", "-q", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no apt-get; name a repository in COMPOSER_TEST_MAVEN_REPOSITORY"
    return (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""


class _Mirror(ThreadingHTTPServer):
    asked: list[str]


class _Quiet(SimpleHTTPRequestHandler):
    server: _Mirror

    def log_message(self, *arguments: object) -> None:
        self.server.asked.append(self.path)


@contextmanager
def served(repository: Path, home: Path) -> Iterator[list[str]]:
    """Serve a repository, and write settings of Maven into a home that name it as the mirror of Maven Central; give the paths
    that were asked for."""
    server = _Mirror(("127.0.0.1", 0), partial(_Quiet, directory=str(repository)))
    server.asked = []
    Thread(target=server.serve_forever, daemon=True).start()
    (home / ".m2").mkdir(parents=True, exist_ok=True)
    address = f"http://127.0.0.1:{server.server_port}"
    mirror = f"<mirror><id>local</id><mirrorOf>central</mirrorOf><url>{address}</url></mirror>"
    (home / ".m2" / "settings.xml").write_text(f"<settings><mirrors>{mirror}</mirrors></settings>")
    try:
        yield server.asked
    finally:
        server.shutdown()
        server.server_close()
