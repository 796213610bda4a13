"""Sources: folders, archives from an index, git. Only the project's own files arrive, and none of its code runs."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import re
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.indexes import archives
from composer_replication.tasks.sources import fetch
from composer_replication.tasks.sources.source import archive_entries, digest_of, fetch_source
from composer_replication.types.errors import SourceError

WriteProject = Callable[[Mapping[str, str]], Path]

OWN = ["pyproject.toml", "run.sh", "shop/__init__.py", "tests/data/build/x.txt", "tests/test_a.py"]
LITTER = [
    ".coverage", ".coverage.host.1", ".git/config", ".hypothesis/x", ".mypy_cache/3.11/shop.data.json",
    ".pytest_cache/v", ".tox/a", "build/lib/shop/__init__.py", "dist/shop.tar", "env/pyvenv.cfg",
    "env/lib/shop.py", "shop.egg-info/PKG-INFO", "shop/_c.so", "shop/__pycache__/a.cpython-311.pyc",
    "shop/old.pyc", "shop-1.dist-info/METADATA", "venv/bin/python", "wheels/shop.whl",
]  # fmt: skip


def test_a_folder_gives_its_own_files_only(write_project: WriteProject, tmp_path: Path) -> None:
    root = write_project({**dict.fromkeys(LITTER, "x"), **{path: path for path in OWN}})
    (root / "run.sh").chmod(0o755)
    (root / "link.py").symlink_to("/etc/passwd")
    (root / "linked").symlink_to("/etc")
    os.mkfifo(root / "pipe")
    (root / "bad\nname.py").write_text("")
    source = fetch_source(str(root), tmp_path / "tree")
    assert tree_files(source.tree) == OWN
    assert (source.name, source.label) == ("shop", "folder:shop")
    assert os.access(source.tree / "run.sh", os.X_OK)
    assert not os.access(source.tree / "pyproject.toml", os.X_OK)


def test_a_package_named_build_at_the_root_is_kept(write_project: WriteProject, tmp_path: Path) -> None:
    root = write_project({"build/__init__.py": "", "build/env.py": ""})
    assert tree_files(fetch_source(str(root), tmp_path / "tree").tree) == ["build/__init__.py", "build/env.py"]


def test_the_digest_sees_paths_and_contents(write_project: WriteProject) -> None:
    trees = [{"a": "xy"}, {"a": "xz"}, {"b": "xy"}, {"a": "x", "b": "y"}, {"a": "", "b": "xy"}, {"a/b": "xy"}]
    digests = [digest_of(write_project(tree)) for tree in trees]
    assert len(set(digests)) == len(trees)
    assert digests[0] == digest_of(write_project({"a": "xy"}))


@pytest.mark.parametrize("source", ["nowhere", "pypi:shop", "pypi:sh op==1", "-o/x.git", "https://127.0.0.1:1/x.git"])
def test_a_source_that_cannot_be_fetched_is_one_clear_error(source: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        fetch_source(source, tmp_path / "tree")
    assert caught.value.fix


def test_an_empty_folder_is_refused(write_project: WriteProject, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no file"):
        fetch_source(str(write_project({".git/config": ""})), tmp_path / "tree")


# --- an index --------------------------------------------------------------------------------------------------------


def tar_archive(files: Mapping[str, str]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("shop-1.0/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return stream.getvalue()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, bytes, str], None]]:
    """A package index on the loopback interface that pip's settings point to; add archives by name, content and digest."""
    files: dict[str, bytes] = {}
    links: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            page = "<!DOCTYPE html><html><body>" + "".join(links) + "</body></html>"
            content = page.encode() if self.path == "/simple/shop/" else files.get(name)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *args: Any) -> None:
            return

    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nindex-url = http://127.0.0.1:{server.server_port}/simple\nretries = 0\nno-cache-dir = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("NO_PROXY", "*")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def add(name: str, content: bytes, digest: str) -> None:
        files[name] = content
        links.append(f'<a href="/files/{name}#sha256={digest}">{name}</a>')

    yield add
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_source_archive_is_fetched_with_pips_settings_and_not_run(index: Any, tmp_path: Path) -> None:
    trap = tmp_path / "executed"
    setup = f"open({str(trap)!r}, 'w')\nraise SystemExit('setup.py was run')\n"
    files = {
        "shop-1.0/setup.py": setup,
        "shop-1.0/pyproject.toml": "[build-system]\nrequires = ['absent-backend']\n",
        "shop-1.0/shop/__init__.py": "X = 1\n",
        "shop-1.0/shop.egg-info/PKG-INFO": "",
        "shop-1.0/../../evil.py": "",
        "/abs/evil.py": "",
    }
    content = tar_archive(files)
    index("shop-1.0.tar.gz", content, hashlib.sha256(content).hexdigest())
    index("shop-1.0-py3-none-any.whl", b"", "0" * 64)
    source = fetch_source("pypi:shop==1.0", tmp_path / "tree")
    assert tree_files(source.tree) == ["pyproject.toml", "setup.py", "shop/__init__.py"]
    assert (source.name, source.label) == ("shop", "pypi:shop==1.0")
    assert not trap.exists()
    assert not list(tmp_path.rglob("evil.py"))


def test_zip_archives_are_read_too(index: Any, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as zipped:
        zipped.writestr("shop-1.0/shop.py", "X = 1\n")
        zipped.writestr("shop-1.0/../../evil.py", "")
    index("shop-1.0.zip", stream.getvalue(), hashlib.sha256(stream.getvalue()).hexdigest())
    assert tree_files(fetch_source("pypi:shop==1.0", tmp_path / "tree").tree) == ["shop.py"]


def test_an_archive_with_another_digest_is_refused(index: Any, tmp_path: Path) -> None:
    index("shop-1.0.tar.gz", tar_archive({"shop-1.0/shop.py": ""}), "0" * 64)
    with pytest.raises(SourceError, match="does not have the sha256 digest"):
        fetch_source("pypi:shop==1.0", tmp_path / "tree")


def test_a_missing_version_names_those_there_are(index: Any, tmp_path: Path) -> None:
    content = tar_archive({"shop-1.0/shop.py": ""})
    index("shop-1.0.tar.gz", content, hashlib.sha256(content).hexdigest())
    with pytest.raises(SourceError, match=r"no source archive of version 2\.0 \(it has 1\.0\)"):
        fetch_source("pypi:shop==2.0", tmp_path / "tree")
    with pytest.raises(SourceError, match="no source archive of version 1"):
        fetch_source("pypi:absent==1", tmp_path / "tree")


def test_an_archive_that_is_none(index: Any, tmp_path: Path) -> None:
    index("shop-1.0.tar.gz", b"nothing", hashlib.sha256(b"nothing").hexdigest())
    with pytest.raises(SourceError, match="not a readable source archive"):
        fetch_source("pypi:shop==1.0", tmp_path / "tree")


@pytest.mark.parametrize("kind", ["gzip", "xz", "bzip2", "zip"])
def test_an_archive_that_is_damaged_inside(kind: str, index: Any, tmp_path: Path) -> None:
    """Every byte of a small archive, changed one at a time, gives a tree or an error with a fix."""
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr("shop-1.0/shop.py", "X = 1\n" * 50)
    else:
        with tarfile.open(fileobj=stream, mode={"gzip": "w:gz", "xz": "w:xz", "bzip2": "w:bz2"}[kind]) as tar:
            info = tarfile.TarInfo("shop-1.0/shop.py")
            info.size = 300
            tar.addfile(info, io.BytesIO(b"X = 1\n" * 50))
    whole, refused = stream.getvalue(), 0
    archive = tmp_path / "shop.archive"
    for at in range(len(whole)):
        archive.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            list(archive_entries(archive))
        except SourceError:
            refused += 1
    assert refused > len(whole) / 3


def test_a_download_is_limited_in_size(index: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tar_archive({"shop-1.0/shop.py": "X = 1\n"})
    index("shop-1.0.tar.gz", content, hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(fetch, "_MOST_BYTES", len(content))
    fetch_source("pypi:shop==1.0", tmp_path / "tree")
    monkeypatch.setattr(fetch, "_MOST_BYTES", len(content) - 1)
    with pytest.raises(SourceError, match=r"shop-1\.0\.tar\.gz is larger than"):
        fetch_source("pypi:shop==1.0", tmp_path / "other")


# --- git -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> tuple[str, str]:
    """A git repository with two commits and a tag on the first; (URL, first commit)."""
    root = tmp_path / "remote" / "shop.git"
    root.mkdir(parents=True)

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    for text in ("one", "two"):
        (root / "shop.py").write_text(f"X = {text!r}\n")
        git("add", ".")
        git("commit", "-q", "-m", text)
        if text == "one":
            git("tag", "v1")
    return f"file://{root}", git("rev-parse", "v1")


def test_git_without_and_with_a_revision(repository: tuple[str, str], tmp_path: Path) -> None:
    url, first = repository
    newest = fetch_source(url, tmp_path / "newest")
    assert (newest.tree / "shop.py").read_text() == "X = 'two'\n"
    assert newest.name == "shop"
    assert newest.label.startswith(f"{url}@")
    for number, revision in enumerate(["v1", first, first[:9]]):
        source = fetch_source(f"git+{url}@{revision}", tmp_path / str(number))
        assert source.label == f"{url}@{first}"
        assert tree_files(source.tree) == ["shop.py"]
        assert (source.tree / "shop.py").read_text() == "X = 'one'\n"


def test_an_unknown_revision_is_named(repository: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="v9 cannot be fetched"):
        fetch_source(f"{repository[0]}@v9", tmp_path / "tree")


# --- tests from the repository of a source archive ---------------------------------------------------------------------


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A repository of shop with tests at two tags, on what stands for a public forge; its URL."""
    root = tmp_path / "forge" / "shop"
    (root / "tests").mkdir(parents=True)

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)

    git("init", "-q")
    for tag in ("other-1.2", "v1.2", "shop-1.3.0"):
        (root / "shop.py").write_bytes(f"TAG = {tag!r}\r\n".encode())
        (root / "tests" / "test_shop.py").write_text(f"# tests of {tag}\n")
        (root / "setup.cfg").write_text("[repository]\n")
        git("add", ".")
        git("commit", "-q", "-m", tag)
        git("tag", tag)
    monkeypatch.setattr(archives, "_FORGE", re.compile(r"file://[\w./-]+"))
    return f"file://{root}"


def packed(url: str, tag: str, *, label: str = "Source Code") -> bytes:
    metadata = "Metadata-Version: 2.1\nName: shop\nHome-page: https://example.org\nProject-URL: Docs, https://x.org\n"
    files = {"PKG-INFO": f"{metadata}Project-URL: {label}, {url}\n", "shop.py": f"TAG = {tag!r}\n", "setup.cfg": "[archive]\n"}
    return tar_archive({f"shop-1/{path}": text for path, text in files.items()})


@pytest.mark.parametrize(("version", "tag"), [("1.2", "v1.2"), ("1.3", "shop-1.3.0")])
def test_an_archive_without_tests_gets_those_of_its_repository(
    index: Any, tmp_path: Path, forge: str, version: str, tag: str
) -> None:
    index(f"shop-{version}.tar.gz", packed(forge, tag), "")
    source = fetch_source(f"pypi:shop=={version}", tmp_path / "tree")
    assert (source.tree / "tests" / "test_shop.py").read_text() == f"# tests of {tag}\n"
    assert (source.tree / "setup.cfg").read_text() == "[archive]\n", "the archive's own files stay"
    assert f"has no tests: they are from {forge}@" in source.note
    assert source.label == f"pypi:shop=={version}"


def test_without_a_repository_that_fits_the_reason_is_kept(index: Any, tmp_path: Path, forge: str) -> None:
    reasons = {
        packed("https://example.org/a/shop", "v1.2"): "its metadata names no repository of a public forge",
        packed(forge, "another project"): "holds 0 of its 1 modules unchanged",
        packed(f"{forge}-gone", "v1.2"): "cannot be fetched",
    }
    for number, (archive, reason) in enumerate(reasons.items()):
        index("shop-1.2.tar.gz", archive, "")
        source = fetch_source("pypi:shop==1.2", tmp_path / str(number))
        assert reason in source.note
        assert source.note.startswith("shop 1.2 has no tests in its source archive")
        with pytest.raises(SourceError, match=r"shop 1\.2 has no tests in its source archive") as refused:
            build_tasks("pypi:shop==1.2", tmp_path / f"out-{number}")
        assert "URL@TAG" in (refused.value.fix or "")
    index("shop-9.tar.gz", packed(forge, "v9"), "")
    assert "it has no tag for 9" in fetch_source("pypi:shop==9", tmp_path / "nine").note


def test_strangers_metadata_name_public_forges_only() -> None:
    """Neither files of this machine, nor hosts of its network, nor options of git."""
    message = Message()
    for url in ("file:///etc/x/y", "http://github.com/a/b", "https://intranet/a/b", "https://github.com/-x", "ssh://github.com/a/b",
                "https://github.com.evil.org/a/b", "https://github.com/a/b.git/tree/main", "https://gitlab.com/c/d"):  # fmt: skip
        message["Project-URL"] = f"Source, {url}"
    version = archives.indexed_version("pypi:shop==1.2")
    assert version is not None
    found, _ = archives.repositories_of(version, {"PKG-INFO": bytes(message)})
    assert list(found) == ["https://github.com/a/b", "https://gitlab.com/c/d"]
