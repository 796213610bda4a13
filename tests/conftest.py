"""What holds for all tests: the tools are importable; hypothesis sets no clock on an example, as machines are busy.

With CI set in the environment hypothesis draws the same examples every time, so that a change is judged by what it changed.
What the commands print is wide enough for any folder of tests: a wrapped line would hide the words that a test looks for.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "tools"))
os.environ["TERMINAL_WIDTH"] = "400"  # read by typer when it is imported: https://github.com/fastapi/typer, rich_utils.py

settings.register_profile("untimed", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
