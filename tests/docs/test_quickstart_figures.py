"""README.md says what docs/figures/quickstart.json holds."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
README = " ".join((ROOT / "README.md").read_text("utf-8").split())
FOUND = json.loads((ROOT / "docs" / "figures" / "quickstart.json").read_text("utf-8"))


def short(share):
    return f"{share:.3f}".replace("0.", ".", 1) if abs(share) < 1 else f"{share:.3f}"


def test_the_readme_says_what_one_quickstart_reached():
    start, grpo, three = (short(row["pass_at_1"]) for row in FOUND["rows"])
    assert f"went from {start} to {grpo} with GRPO alone and to {three} with three channels" in README
    (low, high), (lowest, highest) = ([short(end) for end in one["interval_95"]] for one in FOUND["gains"].values())
    assert f"95 % intervals of the gain {low} to {high} and {lowest} to {highest}" in README
