"""Sources on the npm registry: archives are fetched from a server that answers as the registry does, and checked."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from composer_replication.tasks.files import tree_files
from composer_replication.tasks.indexes.archives import indexed_version, repositories_of
from composer_replication.tasks.sources.source import fetch_source
from composer_replication.types.errors import SourceError

FILES = {
    "package.json": '{"name": "@own/words", "version": "1.2.0"}',
    "src/words.ts": "export const loud = (text: string) => text.toUpperCase()\n",
    "dist/words.js": "exports.loud = (text) => text.toUpperCase()\n",
    "test/words.test.ts": 'import test from "node:test"\n',
}


def packed(files: dict[str, str]) -> bytes:
    room = io.BytesIO()
    with tarfile.open(fileobj=room, mode="w:gz") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(f"package/{path}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return room.getvalue()


class Registry(ThreadingHTTPServer):
    """Answers about one package."""

    answers: dict[str, tuple[int, bytes]]
    asked: list[tuple[str, str | None]]


class Answer(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        status, body = self.server.answers.get(self.path, (404, b"{}"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    server = Registry(("127.0.0.1", 0), Answer)
    server.answers, server.asked = {}, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    archive = packed(FILES)
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    metadata = {"dist": {"tarball": f"{url}/words-1.2.0.tgz", "integrity": integrity}}
    server.answers["/@own%2Fwords/1.2.0"] = (200, json.dumps(metadata).encode())
    server.answers["/words-1.2.0.tgz"] = (200, archive)
    monkeypatch.setenv("npm_config_registry", url + "/")
    monkeypatch.setenv("npm_config_userconfig", str(tmp_path / "npmrc"))
    monkeypatch.setenv("no_proxy", "*")
    yield server
    server.shutdown()
    server.server_close()


def test_a_version_is_a_source_without_what_its_build_wrote(registry: Registry, tmp_path: Path) -> None:
    fetched = fetch_source("npm:@own/words@1.2.0", tmp_path / "tree")
    assert fetched.label == "npm:@own/words@1.2.0"
    assert fetched.name == "@own/words"
    assert tree_files(fetched.tree) == ["package.json", "src/words.ts", "test/words.test.ts"]
    assert registry.asked[0] == ("/@own%2Fwords/1.2.0", None)


def test_the_users_token_goes_to_its_registry_alone(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "npmrc").write_text(f"//127.0.0.1:{registry.server_port}/:_authToken=secret\n//other.example/:_authToken=none\n")
    fetch_source("npm:@own/words@1.2.0", tmp_path / "tree")
    assert {token for _, token in registry.asked} == {"Bearer secret"}


def test_another_archive_than_the_registry_describes_is_refused(registry: Registry, tmp_path: Path) -> None:
    registry.answers["/words-1.2.0.tgz"] = (200, packed({**FILES, "src/evil.ts": ""}))
    with pytest.raises(SourceError, match="does not have the sha512 digest"):
        fetch_source("npm:@own/words@1.2.0", tmp_path / "tree")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, b"{}"), "does not have @own/words@1.2.0"),
        ((403, b"{}"), r"refuses @own/words@1.2.0 \(403\)"),
        ((200, b"[]"), "answer cannot be read"),
        ((200, b'{"dist": {"tarball": "x"}}'), "answer cannot be read"),
        ((200, b'{"dist": {"tarball": "file:///etc/passwd", "shasum": "00"}}'), "gives no address"),
        ((200, b'{"dist": {"tarball": "http://[", "shasum": "00"}}'), "answer cannot be read"),
        ((200, b'{"dist": {"tarball": "/gone.tgz", "shasum": "00"}}'), "does not have @own/words@1.2.0"),
    ],
)
def test_other_answers_are_clear_errors(registry: Registry, tmp_path: Path, answer: tuple[int, bytes], said: str) -> None:
    registry.answers["/@own%2Fwords/1.2.0"] = answer
    with pytest.raises(SourceError, match=said) as error:
        fetch_source("npm:@own/words@1.2.0", tmp_path / "tree")
    assert error.value.fix


def test_a_registry_that_is_not_there_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(SourceError, match="cannot be fetched"):
        fetch_source("npm:words@1.2.0", tmp_path / "tree")


@pytest.mark.parametrize(
    ("repository", "found"),
    [
        ('"own/words"', ["https://github.com/own/words"]),
        ('"gitlab:own/words"', ["https://gitlab.com/own/words"]),
        ('{"url": "git+https://github.com/own/words.git"}', ["https://github.com/own/words"]),
        ('{"url": "git+ssh://git@github.com/own/words.git"}', ["https://github.com/own/words"]),
        ('{"url": "git@github.com:own/words.git"}', ["https://github.com/own/words"]),
        ('{"url": "git://github.com/own/words.git"}', ["https://github.com/own/words"]),
        ('{"url": "https://forge.example/own/words"}', []),
        ("3", []),
    ],
)
def test_repositories_that_a_manifest_names(repository: str, found: list[str]) -> None:
    version = indexed_version("npm:words@1.0.0")
    assert version is not None
    repositories, folder = repositories_of(version, {"package.json": f'{{"repository": {repository}}}'.encode()})
    assert list(repositories) == found
    assert folder == ""


def test_a_project_may_lie_in_a_folder_of_its_repository() -> None:
    version = indexed_version("npm:@own/words@1.0.0-rc.1")
    assert version is not None
    manifest = b'{"repository": {"url": "https://github.com/own/all", "directory": "./packages/words"}}'
    assert repositories_of(version, {"package.json": manifest})[1] == "packages/words"
    outside = b'{"repository": {"url": "https://github.com/own/all", "directory": "../../etc"}}'
    assert repositories_of(version, {"package.json": outside})[1] == ""
    assert indexed_version("npm:words") is None
    assert indexed_version("npm:../words@1.0") is None
