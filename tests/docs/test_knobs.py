"""docs/knobs.md shows every knob of the loss with its default, and the pictures that the library draws."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from composer_replication import compose_loss
from composer_replication.config import LossConfig, RewardConfig, field_lines
from composer_replication.policy_gradient import THRESHOLDS

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "knobs.md").read_text("utf-8")
FIGURES = ROOT / "docs" / "figures"
SHOWN = re.findall(r"^\*\*`((?:loss|reward)\.[^`]+)`\*\*", PAGE, flags=re.M)
"""Every knob as a line of a run file; without a default, its key alone."""
NUMBER = re.compile(r"-?\d+\.\d")


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def test_every_knob_of_a_run_file_is_shown_with_its_default():
    defaults = flat({"loss": LossConfig().model_dump(mode="json"), "reward": RewardConfig().model_dump(mode="json")})
    keys = [line.key for section, of in ((LossConfig, "loss."), (RewardConfig, "reward.")) for line in field_lines(section, of)]
    assert sorted(line.partition(" = ")[0] for line in SHOWN) == sorted(keys)
    written = flat(tomllib.loads("\n".join(line for line in SHOWN if " = " in line)))
    assert written == {key: value for key, value in defaults.items() if value is not None}


def test_every_argument_of_compose_loss_is_named():
    named = set(re.findall(r"`(?:[\w.]+\.)?(\w+)(?: = [^`]*)?`", PAGE))
    assert set(inspect.signature(compose_loss).parameters) - {"model", "batch", "options", "student"} - named == set()


def test_the_thresholds_are_those_of_the_surrogates():
    for side, name in enumerate(("epsilon_low", "epsilon_high")):
        (listed,) = re.findall(rf"^\*\*`loss.rlvr.{name}`\*\* \(`{name}`; by default ([^)]+)\)", PAGE, flags=re.M)
        usual, *others = listed.split(", with ")
        named = {kind.strip("`"): float(value) for kind, value in (other.split() for other in others)}
        assert {kind: named.get(kind, float(usual)) for kind in THRESHOLDS} == {
            kind: pair[side] for kind, pair in THRESHOLDS.items()
        }


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    subprocess.run([sys.executable, ROOT / "scripts" / "figures.py", folder], check=True, capture_output=True, cwd=ROOT)
    return {path.name: path.read_text("utf-8") for path in folder.iterdir()}


@pytest.mark.slow
def test_the_committed_pictures_are_those_the_library_draws(drawn):
    """To the rounding of a coordinate's last digit, a tenth of a pixel, in which processors may differ."""
    committed = {path.name: path.read_text("utf-8") for path in FIGURES.glob("*.svg")}
    assert committed.keys() == drawn.keys()
    for name, text in drawn.items():
        assert NUMBER.split(text) == NUMBER.split(committed[name]), f"{name} is out of date: make figures"
        pairs = zip(NUMBER.findall(text), NUMBER.findall(committed[name]), strict=True)
        assert all(abs(float(new) - float(old)) < 0.11 for new, old in pairs), f"{name} is out of date: make figures"


@pytest.mark.slow
def test_every_picture_is_shown(drawn):
    pages = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    shown = re.findall(r"^!\[[^\]]+\]\(figures/([\w.]+)\)$", pages, flags=re.M)
    assert sorted(shown) == sorted(drawn)
