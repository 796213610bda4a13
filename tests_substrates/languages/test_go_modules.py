"""Modules that a Go project requires: downloaded from a proxy by the go command, checked, and used without a network."""

from __future__ import annotations

import io
import json
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from go_project import PYTHON, write

from composer_replication.languages.go.environment import warm
from composer_replication.languages.go.runner import GoRunner
from composer_replication.languages.go.settings import CACHE
from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.protocol import Limits, Tree
from composer_replication.types.errors import SourceError

DEP = {
    "go.mod": "module example.org/dep\n\ngo 1.21\n",
    "dep.go": 'package dep\n\nimport "net/url"\n\nfunc Twice(text string) string { return url.QueryEscape(text) + text }\n',
}
USER = {
    "go.mod": "module example.org/user\n\ngo 1.21\n\nrequire example.org/dep v1.2.0\n",
    "user.go": 'package user\n\nimport "example.org/dep"\n\nfunc Four(text string) string {\n\ttext = dep.Twice(text)\n'
    "\treturn text + text\n}\n",
    "user_test.go": 'package user\n\nimport "testing"\n\nfunc TestFour(t *testing.T) {\n'
    '\tif Four("a") != "aaaa" {\n\t\tt.Fail()\n\t}\n}\n',
}


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve one module by the protocol of https://go.dev/ref/mod#goproxy-protocol."""
    root = tmp_path / "proxy"
    folder = root / "example.org" / "dep" / "@v"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in DEP.items():
            archive.writestr(f"example.org/dep@v1.2.0/{name}", text)
    folder.mkdir(parents=True)
    (folder / "list").write_text("v1.2.0\n")
    (folder / "v1.2.0.info").write_text(json.dumps({"Version": "v1.2.0", "Time": "2026-01-01T00:00:00Z"}))
    (folder / "v1.2.0.mod").write_text(DEP["go.mod"])
    (folder / "v1.2.0.zip").write_bytes(packed.getvalue())
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GOPROXY", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("GOSUMDB", "off")
    yield root
    server.shutdown()
    server.server_close()


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An environment of its own with the tool chain of this one, as hard links."""
    prefix = tmp_path / "environment"
    packages = Path("lib") / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (prefix / "bin").mkdir(parents=True)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", prefix)
    (prefix / "bin" / "python").symlink_to(PYTHON.resolve())
    shutil.copytree(
        Path(sys.prefix) / packages / "go", prefix / packages / "go", copy_function=lambda a, b: Path(b).hardlink_to(a)
    )
    return prefix / "bin" / "python"


def test_a_required_module_is_downloaded_once_and_used_without_network(
    proxy: Path, python: Path, sandbox: Sandbox, tmp_path: Path
) -> None:
    tree = write(tmp_path / "user", USER)
    before = {path: (tree / path).read_text() for path in USER}
    warm(python, tree, fetch=True)
    assert {path.name: path.read_text() for path in tree.iterdir()} == before
    shutil.rmtree(proxy)
    warm(python, tree, fetch=True)
    runner = GoRunner(sandbox=sandbox, python=python, limits=Limits(wall_s=300, cpu_s=300))
    run = runner.run(Tree(base=tree), ())
    assert run.passed, run
    cached = list((python.parents[1] / CACHE).rglob("*-d"))
    assert any(b"example.org/dep" in file.read_bytes() for file in cached)
    assert not any(b"example.org/user" in file.read_bytes() for file in cached)


def test_a_module_that_cannot_be_had_is_said(proxy: Path, python: Path, tmp_path: Path) -> None:
    tree = write(tmp_path / "user", {**USER, "go.mod": USER["go.mod"].replace("v1.2.0", "v9.9.9")})
    with pytest.raises(SourceError, match=r"modules that go.mod requires cannot be downloaded: .*v9.9.9") as error:
        warm(python, tree, fetch=True)
    assert "GOPROXY" in error.value.fix
    assert not (python.parents[1] / CACHE).exists()


def test_a_module_that_is_not_the_one_of_go_sum_is_refused(proxy: Path, python: Path, tmp_path: Path) -> None:
    line = "example.org/dep v1.2.0 h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
    tree = write(tmp_path / "user", {**USER, "go.sum": line})
    with pytest.raises(SourceError, match="cannot be downloaded"):
        warm(python, tree, fetch=True)
