"""docs/grading.md and docs/sandbox.md say what the committed measurements of rewards and boxes hold."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
GRADING, SANDBOX = (" ".join((ROOT / "docs" / name).read_text("utf-8").split()) for name in ("grading.md", "sandbox.md"))


def figures(name: str) -> Any:
    return json.loads((ROOT / "docs" / "figures" / f"{name}.json").read_text("utf-8"))


TRUST = figures("trust")


def total(key: str) -> int:
    found = [one[key] for one in TRUST.values()]
    return sum(len(one) if isinstance(one, list) else one for one in found)


def test_the_packages_were_measured_on_one_state_of_the_code() -> None:
    assert len(TRUST) == 10
    assert len({one["code"] for one in TRUST.values()}) == 1


def test_the_strength_of_tasks_is_what_was_found() -> None:
    assert f"Of {total('tasks'):,} candidates of the ten packages {total('strong'):,} are strong" in GRADING
    median = statistics.median(one["share"] for one in TRUST.values())
    least, most = (pick(TRUST.items(), key=lambda pair: pair[1]["share"]) for pick in (min, max))
    shares = (
        f"from {least[1]['share']:.0%} ({least[0].partition('==')[0]}) to {most[1]['share']:.0%} ({most[0].partition('==')[0]})"
    )
    assert f"{median:.0%} of a package's in the median, {shares}".replace("%", " %") in GRADING
    assert f"Of {total('tasks_of_several')} tasks of two or three functions {total('strong_of_several')} are strong" in GRADING


def test_what_a_task_costs_is_what_was_found() -> None:
    ratios = {package.partition("==")[0]: one["cpu_ratio"] for package, one in TRUST.items()}
    least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    assert f"{statistics.median(ratios.values()):.1f} times the CPU-seconds in the median" in GRADING
    assert f"from {ratios[least]:.1f} times ({least}) to {ratios[most]:.1f} ({most}" in GRADING


def test_what_became_of_forgeries_is_what_was_found() -> None:
    strong = total("strong") + total("strong_of_several")
    assert f"Of {total('forgeries'):,} forgeries on the {strong} strong tasks" in GRADING
    assert f"passed the visible tests and anti-tests of {total('tasks_past_tests')}" in GRADING
    assert f"Of {total('by_heart_tried'):,} tables and constants learnt by heart" in GRADING
    assert f"The gold code of the {total('honest_gold')} tasks and {total('honest_variants')} rewrites of it" in GRADING


def test_what_became_of_attacks_is_what_was_found() -> None:
    found = figures("attack")
    assert found["passed"]
    assert f"Of {found['attacks']} attacks {found['alarms']} raise an alarm" in GRADING
    fuzzed = figures("fuzz_grader")
    assert fuzzed["passed"]
    assert f"puts {fuzzed['fuzz']:,} hostile cases" in GRADING


@pytest.mark.parametrize(
    ("kind", "said"), [("namespaces", "namespaces"), ("cold", "the cold bubblewrap"), ("bubblewrap", "our bubblewrap")]
)
def test_starts_of_boxes_are_what_was_found(kind: str, said: str) -> None:
    found = figures("sandbox")["start"][kind]
    wall = [f"{found[name]:.1f}" for name in ("wall_ms_p50", "wall_ms_p95")]
    assert f"{said} {' and '.join(wall)}" in SANDBOX


def test_what_the_filter_costs_is_what_was_found() -> None:
    more = {kind: f"{one['cpu_ms_more']:.2f}" for kind, one in figures("sandbox_filter")["kinds"].items()}
    said = "{namespaces} ms with namespaces, {bubblewrap} with our bubblewrap and {landlock} with landlock"
    assert said.format(**more) in SANDBOX
