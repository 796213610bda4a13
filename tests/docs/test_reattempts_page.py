"""docs/hints.md says what docs/figures/reattempts.json holds."""

from __future__ import annotations

import json
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = " ".join((DOCS / "hints.md").read_text("utf-8").split())
FOUND = json.loads((DOCS / "figures" / "reattempts.json").read_text("utf-8"))


def short(share):
    return f"{share:.3f}".replace("0.", ".", 1)


def test_the_page_says_what_reattempts_reached():
    hints, siblings, again = FOUND["rows"]
    for row in (hints, siblings, again):
        assert f"{short(row['pass_at_1'])} with" in PAGE
        assert f"({row['rollouts']:,.0f} rollouts" in PAGE
    assert f"{again['passed']:.0f} of {again['tried']:.0f} passed" in PAGE
    (low, high), (lowest, highest) = ([short(end) for end in ends] for ends in FOUND["gain_over"].values())
    assert f"{low} to {high} and {lowest} to {highest}" in PAGE
    assert (FOUND["gain_over"]["hints"][0] < 0) == ("include zero" in PAGE)
