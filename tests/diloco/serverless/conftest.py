"""Functions that replicas run are importable by name, here and in their processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_replication.diloco.serverless import LocalProcessExecutor

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def executor() -> Iterator[LocalProcessExecutor]:
    """One whose replicas end with the test."""
    made = LocalProcessExecutor()
    launched = []

    def launch(*arguments, **options):
        handles = type(made).launch_replicas(made, *arguments, **options)
        launched.extend(handles)
        return handles

    made.launch_replicas = launch
    yield made
    made.cancel(launched)
