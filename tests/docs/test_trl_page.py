"""docs/trl.md says what docs/figures/trl_own_tests.json holds of TRL's own tests."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "trl.md").read_text("utf-8")
FOUND = json.loads((ROOT / "docs" / "figures" / "trl_own_tests.json").read_text("utf-8"))


def count(what: str) -> int:
    """Return the number in the row of the table that says how many tests did `what`."""
    (found,) = re.findall(rf"^\| {re.escape(what)} \| (\d+) \|$", PAGE, flags=re.M)
    return int(found)


def test_the_table_is_what_was_found() -> None:
    assert FOUND["passed"] is True
    assert count("pass with both") == FOUND["both"]
    assert count("pass with TRL's and not with ours") == len(FOUND["lost"])
    assert count("pass with ours alone") == len(FOUND["gained"])
    assert count("pass with neither") == sum(FOUND["neither"].values())


def test_the_reasons_are_those_that_were_found() -> None:
    """Skipped tests by what they need; models that are not made here; what the checkout asks for and the installed TRL lacks."""
    found = FOUND["neither"]
    skipped = {why.rpartition(" ")[2]: tests for why, tests in found.items() if why.startswith("skipped")}
    (unread,) = (tests for why, tests in found.items() if why.startswith("failed: OSError"))
    rest = sum(found.values()) - sum(skipped.values()) - unread
    assert skipped == {"liger-kernel": 17, "vllm": 10, "accelerator": 2, "bitsandbytes": 2}
    assert f"{sum(skipped.values())} are skipped: they need liger-kernel (17), vLLM (10), a GPU (2) or bitsandbytes (2)" in PAGE
    assert (unread, rest) == (10, 9)


def test_the_versions_are_those_that_ran() -> None:
    assert f"trl {FOUND['trl']} and the tests of a checkout of {FOUND['checkout']}" in PAGE
