"""Real processes, killed with SIGKILL, on a server that speaks S3 (`make faults-diloco` has all cases, on moto)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "faults_diloco.py"


@pytest.mark.slow
@pytest.mark.long
def test_every_fault_ends_as_it_should():
    done = subprocess.run([sys.executable, TOOL], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["well"] == found["cases"] > 20
    assert found["hung"] == 0
