"""Classes of the package `zzcomposer`, which a sandbox is given as they are."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
"""Where the texts of programs are."""
RUNNERS = ("Runner.java", "JUnit4.java", "Jupiter.java")
"""Classes that run tests."""
RECORDERS = ("Json.java", "Texts.java", "Values.java", "Recorder.java")
"""Classes that instrumented code needs."""
ASKERS = (*RECORDERS, "Made.java", "Asker.java")
"""Classes that make held-out calls."""


@cache
def support_files() -> dict[str, str]:
    """Return the classes by the names of their files."""
    return {path.name: path.read_text("utf-8") for path in sorted((FOLDER / "programs").glob("*.java"))}
