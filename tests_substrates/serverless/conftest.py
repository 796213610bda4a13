"""Servers that speak the vendors' protocols, an S3 server for the replicas to share, and functions for them to run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "diloco" / "serverless"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "trainer"))

from hub_server import TOKEN as HUB_TOKEN
from hub_server import HubServer
from modal_server import TOKEN as MODAL_TOKEN
from modal_server import ModalServer

FUNCTIONS = Path(__file__).resolve().parents[2] / "tests" / "diloco" / "serverless"
KEYS = {"AWS_ACCESS_KEY_ID": "key-of-the-tests", "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")


@pytest.fixture(scope="session", autouse=True)
def _machines() -> None:
    """What the servers' machines have in their image: these functions, and one thread."""
    os.environ |= {"PYTHONPATH": str(FUNCTIONS), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def bucket(tmp_path_factory) -> Iterator[str]:
    """The address of a bucket on an S3 server; its endpoint and keys are in the environment."""
    log = tmp_path_factory.mktemp("moto") / "log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as out, subprocess.Popen(argv, stdout=out, stderr=out) as server:
        try:
            endpoint = f"http://127.0.0.1:{port}"
            while not _answers(endpoint):
                assert server.poll() is None, log.read_text()
                time.sleep(0.1)
            urllib.request.urlopen(urllib.request.Request(f"{endpoint}/replicas", method="PUT")).close()
            old = dict(os.environ)
            os.environ |= {**KEYS, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}
            yield "s3://replicas"
            os.environ.clear()
            os.environ.update(old)
        finally:
            server.kill()


def _answers(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(endpoint).close()
    except urllib.error.URLError:
        return False
    return True


@pytest.fixture
def store_environment(bucket) -> dict[str, str]:
    """What replicas need in their environment beside the keys."""
    return {"AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"], "AWS_REGION": "us-east-1"}


@pytest.fixture
def rendezvous(bucket, request) -> str:
    """A prefix of the test's own."""
    return f"{bucket}/{request.node.name.replace('[', '-').replace(']', '')}"


@pytest.fixture(scope="session")
def secret_names() -> tuple[str, ...]:
    return tuple(KEYS)


@pytest.fixture(scope="module")
def modal_server() -> Iterator[ModalServer]:
    """The client remembers the first one's address."""
    with pytest.MonkeyPatch.context() as patch:
        server = ModalServer()
        for name, value in (("SERVER_URL", server.url), ("TOKEN_ID", MODAL_TOKEN[0]), ("TOKEN_SECRET", MODAL_TOKEN[1])):
            patch.setenv(f"MODAL_{name}", value)
        yield server
        server.close()


@pytest.fixture
def hub(monkeypatch) -> Iterator[HubServer]:
    server = HubServer()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setenv("HF_ENDPOINT", server.url)  # for processes that are started
    monkeypatch.setenv("HF_TOKEN", HUB_TOKEN)
    yield server
    server.close()
