"""pip, git and what else handles strangers' files on this machine touch what they need and nothing more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_replication.sandbox.backends import landlock
from composer_replication.sandbox.confined import (
    Reach,
    interpreter_reach,
    named_in,
    not_confined,
    proxy_ports,
    run_confined,
)
from composer_replication.sandbox.interpreter import clean_environment
from composer_replication.tasks.sources.fetch import clone, left_open
from composer_replication.tasks.sources.run_git import git_for
from composer_replication.tasks.sources.run_pip import network_reach
from composer_replication.types.errors import SourceError

PYTHON = Path(sys.executable)
LANDLOCK = pytest.mark.skipif(landlock.abi_version() == 0, reason="this kernel has no Landlock")
PORTS = pytest.mark.skipif(landlock.abi_version() < landlock.ABI_WITH_PORTS, reason="this kernel's Landlock has no ports")
ATTEMPTS = """
import json, os, socket, subprocess, sys
place = json.loads(sys.argv[1])
got = []
def attempt(what, action):
    try:
        action()
        got.append(what)
    except OSError:
        pass
attempt("read a key", lambda: open(place["home"] + "/.aws").read())
attempt("list a home", lambda: os.listdir(place["home"]))
attempt("write beside", lambda: open(place["home"] + "/new", "w"))
attempt("write to /tmp", lambda: open("/tmp/composer-test-" + place["token"], "w"))
attempt("remove", lambda: os.remove(place["home"] + "/.aws"))
attempt("see the environment of another", lambda: open("/proc/%d/environ" % os.getppid()).read())
attempt("ask the container's engine", lambda: socket.socket(socket.AF_UNIX))
attempt("ask another port", lambda: socket.create_connection(("127.0.0.1", place["other"])))
attempt("ask the index", lambda: socket.create_connection(("127.0.0.1", place["index"])))
attempt("own folder", lambda: open(place["own"] + "/new", "w"))
attempt("temporary files", lambda: open(os.environ["TMPDIR"] + "/new", "w"))
attempt("read what is named", lambda: open(place["named"]).read())
attempt("start a program", lambda: subprocess.run(["true"], check=True))
print(json.dumps(got))
"""
FILES = ["own folder", "temporary files", "read what is named", "start a program"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a key, which is in the environment too."""
    made = tmp_path / "home"
    made.mkdir()
    (made / ".aws").write_text("sk-of-the-home")
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    return made


@pytest.fixture
def servers() -> Iterator[tuple[int, int]]:
    """Two ports of this machine that answer."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        yield first.getsockname()[1], second.getsockname()[1]


def attempted(tmp_path: Path, home: Path, servers: tuple[int, int], **reach: object) -> list[str]:
    """What a program gets that reaches for more than a folder, a file and, where it has a network, the first port."""
    own, named = tmp_path / "own", tmp_path / "named"
    own.mkdir()
    named.write_text("")
    where = {"home": home, "own": own, "named": named, "token": tmp_path.name}
    place = {**{name: str(path) for name, path in where.items()}, "index": servers[0], "other": servers[1]}
    done = run_confined(
        [sys.executable, "-I", "-c", ATTEMPTS, json.dumps(place)],
        Reach(writable=frozenset({str(own)}), readable=interpreter_reach(PYTHON) | {str(named)}, **reach),  # type: ignore[arg-type]
        environment=clean_environment(),
        most_s=60,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@LANDLOCK
def test_a_program_without_a_network_has_its_folder_and_no_socket(tmp_path: Path, home: Path, servers: tuple[int, int]) -> None:
    assert attempted(tmp_path, home, servers) == FILES
    assert (home / ".aws").exists()


@PORTS
def test_a_program_with_a_network_has_its_ports_and_no_unix_socket(tmp_path: Path, home: Path, servers: tuple[int, int]) -> None:
    assert attempted(tmp_path, home, servers, ports=frozenset({servers[0]}), sockets="internet") == ["ask the index", *FILES]


@LANDLOCK
def test_ssh_has_every_port(tmp_path: Path, home: Path, servers: tuple[int, int]) -> None:
    got = attempted(tmp_path, home, servers, ports=None, sockets="all")
    assert got == ["ask the container's engine", "ask another port", "ask the index", *FILES]


def test_without_landlock_programs_run_as_they_are_and_the_build_says_so(
    tmp_path: Path, home: Path, servers: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "abi_version", lambda: 0)
    assert "read a key" in attempted(tmp_path, home, servers)
    (Path("/tmp") / f"composer-test-{tmp_path.name}").unlink()
    assert "in nothing: this kernel has no Landlock" in left_open("pypi:shop==1.0", installs=False)
    assert left_open(str(tmp_path), installs=False) == ""
    assert left_open(str(tmp_path), installs=True) == not_confined()


@pytest.mark.parametrize(
    ("abi", "said", "unsaid"),
    [(3, "TCP ports", "in nothing"), (4, "signals", "TCP"), (7, "which hosts", "signals")],
)
def test_what_an_older_kernel_leaves_open_is_named(monkeypatch: pytest.MonkeyPatch, abi: int, said: str, unsaid: str) -> None:
    monkeypatch.setattr(landlock, "abi_version", lambda: abi)
    assert said in not_confined()
    assert unsaid not in not_confined()


# --- git -------------------------------------------------------------------------------------------------------------


def fake_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program in git's place that knows no settings, and does something else than git."""
    folder = tmp_path / "programs" / "bin"
    folder.mkdir(parents=True)
    (folder / "git").write_text(f'#!/bin/sh\ncase "$*" in *get-url*|*config*) exit;; esac\n{script}\n')
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize("url", ["https://localhost/shop.git", "git@localhost:shop.git", "file:///nowhere/shop.git"])
def test_git_gets_no_variable_that_it_does_not_take(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    fake_git(tmp_path, monkeypatch, "env")
    for name in ("GITHUB_TOKEN", "GIT_DIR", "GIT_SSL_CAINFO", "SSH_AUTH_SOCK", "https_proxy"):
        monkeypatch.setenv(name, f"/value/of/{name}")
    monkeypatch.setenv("PYTHONPATH", "/value")
    seen = dict(line.split("=", 1) for line in git_for(url, url, tmp_path / "clone").run("fetch", network=True).splitlines())
    assert {"PATH", "HOME", "GIT_SSL_CAINFO", "GIT_TERMINAL_PROMPT", "https_proxy"} <= seen.keys()
    assert not {"OPENAI_API_KEY", "GITHUB_TOKEN", "GIT_DIR", "PYTHONPATH"} & seen.keys()
    assert ("SSH_AUTH_SOCK" in seen) == url.startswith("git@")


@LANDLOCK
def test_git_reads_no_file_that_it_does_not_take(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id").write_text("of ssh")
    fake_git(tmp_path, monkeypatch, f"cat {home}/.aws; cat {home}/.ssh/id; echo > {tmp_path}/beside; pwd; echo > ./here; true")
    for url, said in {"https://localhost/shop.git": "", "ssh://localhost/shop.git": "of ssh"}.items():
        git = git_for(url, url, tmp_path / "clone")
        assert git.run("fetch", network=True).startswith(f"{said}/")
        assert git.run("checkout").startswith("/")
    assert not (tmp_path / "beside").exists()


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@LANDLOCK
def test_a_repository_that_borrows_from_another_one_does_not_get_it(tmp_path: Path, home: Path) -> None:
    """Its `alternates` names a private one, whose files git would hand out as its own."""
    private, offered = home / "private", tmp_path / "shop.git"
    for folder in (private, offered):
        folder.mkdir()
        git(folder, "init", "-q")
    (private / "key.txt").write_text("secret")
    git(private, "add", ".")
    git(private, "commit", "-q", "-m", "one")
    (offered / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")
    git(offered, "update-ref", "HEAD", git(private, "rev-parse", "HEAD"))
    with pytest.raises(SourceError, match="cannot be fetched"):
        clone(f"file://{offered}", tmp_path / "clone")
    assert not (tmp_path / "clone" / "key.txt").exists()


def test_git_s_settings_say_which_ports_and_files_there_are(tmp_path: Path, home: Path) -> None:
    (home / "more.gitconfig").write_text(
        "[http]\n  proxy = proxy.example:3128\n  sslCAInfo = ~/ca.pem\n[safe]\n  directory = /private\n"
    )
    (home / ".gitconfig").write_text('[include]\n  path = ~/more.gitconfig\n[url "https://host:8443/"]\n  insteadOf = short:\n')
    reach = git_for("", "short:shop.git", tmp_path / "clone").online
    assert reach.ports is not None
    assert {443, 3128, 8443} <= reach.ports
    assert {str(home / name) for name in (".gitconfig", "more.gitconfig", "ca.pem", ".netrc")} <= reach.readable
    assert not {str(home), "/private", str(home / ".ssh")} & reach.readable
    assert git_for("", "git@host:shop.git", tmp_path / "clone").online.ports is None
    assert git_for("", "file:///shop.git", tmp_path / "clone").online.ports == frozenset()


# --- pip -------------------------------------------------------------------------------------------------------------


def test_pip_s_settings_say_which_ports_and_files_there_are(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    (home / ".config" / "pip").mkdir(parents=True)
    (home / ".config" / "pip" / "pip.conf").write_text(
        "[global]\nindex-url = https://user:word@index.example:8443/simple\nextra-index-url = file:///mirror/simple http://other:81/simple\n"
        "[download]\nconstraint = ~/constraints.txt\n"
    )
    monkeypatch.setenv("PIP_PROXY", "proxy.example:3128")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    reach = network_reach(PYTHON, tmp_path / "into")
    assert reach.ports is not None
    assert {80, 443, 8443, 81, 3128} <= reach.ports
    assert {"/mirror", "/wheels", str(home / "constraints.txt"), str(home / ".netrc")} <= reach.readable
    assert str(home) not in reach.readable
    assert reach.writable == {str(tmp_path / "into"), str(home / ".cache/pip")}
    assert (home / ".cache/pip").is_dir()


def test_words_of_settings() -> None:
    paths, ports = named_in(["/a 'b' file:///c%20d relative", "-i https://x:99/y", "ssh://h http://[broken", "~nobody-here/x"])
    assert paths == {"/a", "/c d"}
    assert ports == {99, 22}
    assert proxy_ports({"HTTPS_PROXY": "host:1", "all_proxy": "socks5://host", "no_proxy": "host:2"}, ["http://host:3"]) == {
        1,
        1080,
        3,
    }
