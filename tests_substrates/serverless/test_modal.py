"""What is Modal's own: images, what a sandbox is asked for, and a service that refuses or is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import modal
import pytest
from modal_server import TOKEN, ModalServer

from composer_replication.diloco.serverless import ModalExecutor
from composer_replication.diloco.serverless.launch import plan
from composer_replication.types.errors import ConfigError

PROGRAM = """
from composer_replication.diloco.serverless import ModalExecutor
from composer_replication.types.errors import ComposerError
try:
    ModalExecutor(image="python:3.11").launch_replicas(1, "m:f", {"rendezvous_uri": "s3://bucket/run"})
except ComposerError as error:
    print(type(error).__name__, error)
"""


def launch_elsewhere(**environment: str) -> str:
    """What a launch in a process of its own is told: the client keeps its first connection."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MODAL_")}
    argv = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(argv, env={**kept, "HOME": "/nonexistent", **environment}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def server() -> Iterator[ModalServer]:
    made = ModalServer()
    yield made
    made.close()


def test_a_token_that_is_refused_is_told(server) -> None:
    told = launch_elsewhere(MODAL_SERVER_URL=server.url, MODAL_TOKEN_ID="ak-other", MODAL_TOKEN_SECRET="as-other")
    assert told.startswith("ConfigError Modal refuses the credentials: Token ID not found")
    assert "modal token set" in told
    assert server.sandboxes == {}


def test_no_token_is_told(server) -> None:
    assert launch_elsewhere(MODAL_SERVER_URL=server.url).startswith("ConfigError Modal refuses the credentials")


def test_a_service_that_fails_is_told(server) -> None:
    server.out_of_order = True
    told = launch_elsewhere(MODAL_SERVER_URL=server.url, MODAL_TOKEN_ID=TOKEN[0], MODAL_TOKEN_SECRET=TOKEN[1])
    assert "the data center is on fire" in told
    assert told.startswith(("BackendError Modal", "ConfigError Modal"))


def test_a_service_that_is_not_there_is_told(server) -> None:
    url = server.url
    server.close()
    server.close = lambda: None
    told = launch_elsewhere(MODAL_SERVER_URL=url, MODAL_TOKEN_ID=TOKEN[0], MODAL_TOKEN_SECRET=TOKEN[1])
    assert told.startswith("BackendError Modal does not answer")


def test_images_are_registrys_or_modals_own() -> None:
    ModalExecutor(image="python:3.11")
    ModalExecutor(image=modal.Image.debian_slim(python_version="3.11").pip_install("torch"))
    with pytest.raises(ConfigError, match=r"there is no image 'modal:python3\.11'"):
        ModalExecutor(image="modal:python3.11", gpu="A100")
    with pytest.raises(ConfigError, match="image is 3"):
        ModalExecutor(image=3)


def test_a_day_is_the_longest() -> None:
    with pytest.raises(ConfigError, match="Modal ends a sandbox after a day"):
        ModalExecutor().launch_replicas(1, "m:f", {"rendezvous_uri": "s3://bucket/run"}, timeout=86400)


def test_without_an_image_of_its_own_a_replica_installs_this_version() -> None:
    command = ModalExecutor()._command(plan(1, "m:f", {"rendezvous_uri": "s3://bucket/run"}, 60))
    assert command[:3] == ["sh", "-c", 'python -m pip install --quiet composer-replication==0.1.0 && exec "$@"']
