"""TRL offline and quiet; its libraries may warn about themselves."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "shared"), str(HERE.parents[1] / "tests" / "trainer")]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")
    torch.set_num_threads(1)
