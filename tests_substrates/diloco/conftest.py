"""A real moto server on loopback; other libraries may warn about themselves."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "trainer"))

from s3_server import environment


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")


@pytest.fixture(scope="session")
def moto(tmp_path_factory) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("moto") / "server.log"
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("ab") as file, subprocess.Popen(argv, stdout=file, stderr=file) as process:
        try:
            while True:
                assert process.poll() is None, log.read_text()
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                except ConnectionRefusedError:
                    continue
                break
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.fixture
def bucket(moto, monkeypatch, request) -> str:
    """An empty bucket of the test's own; the environment points to its server."""
    for name, value in environment(moto).items():
        monkeypatch.setenv(name, value)
    name = f"b{abs(hash(request.node.name))}"
    urllib.request.urlopen(urllib.request.Request(f"{moto}/{name}", method="PUT")).close()
    return f"s3://{name}"
