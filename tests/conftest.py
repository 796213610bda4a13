"""What holds for all tests: the tools are importable; hypothesis sets no clock on an example, as machines are busy.

With CI set in the environment hypothesis draws the same examples every time, so that a change is judged by what it changed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "tools"))

settings.register_profile("untimed", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
