"""A real `swerex-remote` on loopback; and other libraries may warn about themselves."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from composer_replication.sandbox import Sandbox, open_sandbox

KEY = "a-key-of-the-tests"
SERVER = Path(sys.executable).with_name("swerex-remote")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen, str]]:
    """The server's process and its address; what it says goes to `folder/server.log`."""
    if port == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    argv = [str(SERVER), "--host", "127.0.0.1", "--port", str(port), "--auth-token", KEY]
    with (folder / "server.log").open("ab") as log, subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder) as process:
        try:
            while True:
                assert process.poll() is None, (folder / "server.log").read_text()
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                except ConnectionRefusedError:
                    continue
                break
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.fixture(scope="session", autouse=True)
def _environment() -> None:
    os.environ["COMPOSER_REMOTE_KEY"] = KEY
    os.environ["COMPOSER_REMOTE_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def address(tmp_path_factory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server")) as (_, url):
        yield url


@pytest.fixture(scope="session")
def box(address) -> Sandbox:
    return open_sandbox(f"remote:{address}")


@pytest.fixture
def serve(tmp_path):
    """`serve(port=0)` is a server of the test's own, as a context: its process and its address."""

    def start(port: int = 0):
        return serving(tmp_path, port)

    return start


@pytest.fixture
def base(tmp_path) -> Path:
    folder = tmp_path / "base"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "old.py").write_text("old")
    (folder / "keep.txt").write_text("keep")
    (folder / "script.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "script.sh").chmod(0o755)
    (folder / "link").symlink_to("keep.txt")
    return folder
