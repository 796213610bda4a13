"""docs/channels.md has the tables of docs/figures/channels.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from channel_page import DATA, PAGE, rewritten


def test_the_tables_are_those_of_the_data():
    page = PAGE.read_text("utf-8")
    found = json.loads(DATA.read_text("utf-8"))
    assert rewritten(page, found) == page
    assert (found["harms"] == []) == ("No channel lowers pass@1 beyond the interval" in page)
