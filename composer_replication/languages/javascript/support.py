"""Files of this package that a sandbox is given as they are."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
"""Where the texts of programs are."""
_SUPPORT = (
    *("values.cjs", "recorder.cjs", "asker.cjs"),
    *("node_reporter.mjs", "vitest_reporter.mjs", "jest_reporter.cjs", "mocha_reporter.cjs"),
    *("ava_reporter.mjs", "tap_reporter.mjs"),
)


@cache
def support_files() -> dict[str, str]:
    """Return the files of the package `zz-composer` by name."""
    return {name: (FOLDER / name).read_text("utf-8") for name in _SUPPORT}
