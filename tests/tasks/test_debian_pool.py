"""Sources of Debian: archives come from a server with a mirror's folders, and are checked."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from composer_replication.tasks.files import tree_files
from composer_replication.tasks.sources.source import fetch_source
from composer_replication.types.errors import SourceError


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "mirror" / "pool" / "main" / "n" / "node-words"
    folder.mkdir(parents=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "mirror")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("DEBIAN_MIRROR", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("no_proxy", "*")
    yield folder
    server.shutdown()
    server.server_close()


def archive(text: str = "1") -> bytes:
    room = io.BytesIO()
    with tarfile.open(fileobj=room, mode="w:xz") as tar:
        for path in ("package.json", "src/words.js", "test/words.js"):
            info = tarfile.TarInfo(f"words-1.2/{path}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return room.getvalue()


def described(*files: tuple[str, bytes]) -> str:
    rows = "".join(f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n" for name, content in files)
    head, tail = "-----BEGIN PGP SIGNED MESSAGE-----\n\nSource: node-words\n", "Files:\n x 1 node-words_1.2.orig.tar.gz\n"
    return f"{head}Checksums-Sha256:\n{rows}{tail}"


def test_upstreams_archive_is_a_source(pool: Path, tmp_path: Path) -> None:
    name, content = "node-words_1.2+~3.orig.tar.xz", archive()
    more = ("node-words_1.2+~3.orig-types.tar.xz", b"x"), ("node-words_1.2+~3-4.debian.tar.xz", b"y")
    (pool / name).write_bytes(content)
    (pool / "node-words_1.2+~3-4.dsc").write_text(described((name, content), *more))
    fetched = fetch_source("debian:node-words==1:1.2+~3-4", tmp_path / "tree")
    assert fetched.name == "node-words"
    assert fetched.label == "debian:node-words==1:1.2+~3-4"
    assert tree_files(fetched.tree) == ["package.json", "src/words.js", "test/words.js"]
    (pool / name).write_bytes(archive("2"))
    with pytest.raises(SourceError, match="does not have the SHA-256"):
        fetch_source("debian:node-words==1.2+~3-4", tmp_path / "other")


def test_what_there_is_not_is_a_clear_error(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="the mirror of Debian does not have node-words==9-1") as error:
        fetch_source("debian:node-words==9-1", tmp_path / "tree")
    assert "tracker.debian.org" in (error.value.fix or "")
    (pool / "node-words_2-1.dsc").write_text("Source: node-words\n")
    with pytest.raises(SourceError, match="has no upstream archive"):
        fetch_source("debian:node-words==2-1", tmp_path / "tree")
    monkeypatch.setenv("DEBIAN_MIRROR", "ftp://x")
    with pytest.raises(SourceError, match="no address of HTTP"):
        fetch_source("debian:node-words==2-1", tmp_path / "tree")
