"""SkyPilot's client with a home of its own, and functions for replicas to run."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FUNCTIONS = HERE.parents[1] / "tests" / "diloco" / "serverless"
sys.path[:0] = [str(HERE.parent / "shared"), str(FUNCTIONS)]
LISTENER = socket.create_server(("127.0.0.1", 0))
_HOME = tempfile.TemporaryDirectory(prefix="sky-home-")
os.environ |= {  # before sky is imported: it keeps files in the home folder, reports its use, and looks for its server once
    "HOME": _HOME.name,
    "SKYPILOT_API_SERVER_ENDPOINT": f"http://127.0.0.1:{LISTENER.getsockname()[1]}",
    "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    "PYTHONPATH": str(FUNCTIONS),
    "OMP_NUM_THREADS": "1",
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")


def pytest_unconfigure() -> None:
    _HOME.cleanup()


@pytest.fixture(scope="session")
def listener() -> socket.socket:
    """The socket of the server that the client looks for."""
    return LISTENER
