"""The table of tested versions says what the smoke tests found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_that_of_the_smoke_tests():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "versions.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
