"""docs/gate.md says what docs/figures/gate.json holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "gate.md").read_text("utf-8")
FOUND = json.loads((ROOT / "docs" / "figures" / "gate.json").read_text("utf-8"))
ASSUMED = FOUND["worlds"]["as assumed"]


def row(name):
    (line,) = re.findall(rf"^\| {name} \|(.*)\|$", PAGE, flags=re.M)
    return [cell.strip() for cell in line.split("|")]


def percent(share):
    return "-" if share is None else f"{share:.0%}".replace("%", " %")


@pytest.mark.parametrize("policy", ASSUMED)
def test_the_table_of_savings_is_what_was_found(policy):
    saved, kept = ASSUMED[policy]["saved"]["cached"], ASSUMED[policy]["kept"]
    shares = [saved["0.8"], saved["0.9"], saved["0.95"], kept["cached"]["0.6"], kept["uncached"]["0.6"], kept["cached"]["0.8"]]
    assert row(policy) == [percent(share) for share in shares]


def test_the_audits_and_the_cache_are_what_was_found():
    for audit in FOUND["audits"]:
        assert row(f"{audit['estimate']:.0f}") == [f"{audit['low']} to {audit['high']}", str(audit["truth"]), str(audit["all"])]
    assert f"saves {percent(FOUND['cache_alone_saves'])} of the uncached cost" in PAGE
    variations = [w["cascade"]["saved"]["cached"]["0.9"] for name, w in FOUND["worlds"].items() if name != "as assumed"]
    assert f"Over {len(variations)} variations" in PAGE
    least, most = (percent(f(v for v in variations if v is not None)) for f in (min, max))
    assert re.search(rf"between {least} .* and {most} ", PAGE)
