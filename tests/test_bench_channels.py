"""The tables of `make bench-channels` say what its runs hold, and its world has exact probabilities."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from channel_arms import RATES, SEEDS, grid
from channel_tables import behind, carried_down, fallen, harms, table
from channel_world import OPERATORS, outcomes, rules, standing

from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.tokens import ChatRenderer


def runs(changed: dict[str, float], *, chosen: float = 1.0) -> list[dict[str, Any]]:
    """A run of every arm and seed with a pass@1 of .2 at first and .4 at the end; by name, the end of an arm at 1e-3."""
    return [
        {
            "arm": {"name": arm.name, "rate": arm.rate, "hint": arm.hint, "replay": arm.replay, "rollouts": arm.rollouts},
            "seed": seed,
            "pass_at_1_before": 0.2,
            "pass_at_1": (changed.get(arm.name, 0.4) if arm.rate == RATES[0] else 0.4) + 0.001 * seed,
            "on_script": 1.0,
            "chosen": {"before": -2.0, "after": -2.0 + chosen},
            "rejected": {"before": -2.0, "after": -3.0},
            "rollouts": 768,
            "cpu_s": 9.0,
        }
        for arm in grid()
        for seed in range(SEEDS)
    ]


def test_an_arm_below_the_one_without_its_channels_does_harm() -> None:
    assert harms(runs({})) == []
    (found,) = harms(runs({"grpo + replay 1": 0.3}))
    assert found.startswith("grpo + replay 1 at 0.001: -0.100")
    (found,) = harms(runs({"replay alone: dpo": 0.1}))
    assert found.startswith("replay alone: dpo at 0.001")


def test_a_channel_that_takes_from_what_another_gives_does_harm() -> None:
    (found,) = harms(runs({"grpo + replay 10": 0.6, "grpo + hint 10 + replay 10": 0.5}))
    assert found == "grpo + hint 10 + replay 10 at 0.001: -0.100 ± 0.000 from grpo + replay 10"


def test_chosen_answers_that_fell_and_defaults_behind_are_named() -> None:
    assert fallen(runs({})) == []
    assert len(fallen(runs({}, chosen=-0.1))) == SEEDS * sum(arm.replay > 0 for arm in grid())
    assert behind(runs({})) == []
    assert any("grpo + hint 3" in line for line in behind(runs({"grpo + hint 3": 0.9})))
    assert behind(runs({"replay alone: kto, a quarter wrong": 0.9})) == [], "its pairs are not those of a default run"


def test_chosen_answers_that_the_policy_gradient_lowers_are_held_where_they_end_above_those_without_pairs() -> None:
    found = runs({}, chosen=-0.1)
    for run in found:
        if run["arm"]["rollouts"] == "grpo" and run["arm"]["replay"] == 0:
            run["chosen"]["after"] = -14.0
    beside = sum(arm.replay > 0 and arm.rollouts == "grpo" for arm in grid())
    alone = sum(arm.replay > 0 and arm.rollouts != "grpo" for arm in grid())
    assert len(carried_down(found)) == SEEDS * beside
    assert len(fallen(found)) == SEEDS * alone, "nothing else lowers them there"


def test_the_table_has_means_over_the_seeds() -> None:
    rows = table(runs({"grpo": 0.5}))
    (row,) = [row for row in rows if (row["arm"], row["rate"]) == ("grpo", RATES[0])]
    assert (row["seeds"], row["pass_at_1"]) == (SEEDS, pytest.approx(0.502))
    assert row["pass_at_1_half"] == pytest.approx(2.776 * 0.00158 / 5**0.5, abs=1e-3)


def test_every_task_has_a_transcript_for_each_operator_and_its_gold_one_passes() -> None:
    tokenizer = tiny_tokenizer()
    every = rules(ChatRenderer(tokenizer))
    assert len(every) == 48
    assert {rule.held_out for rule in every} == {True, False}
    for rule in every:
        assert [script.operator for script in rule.scripts] == list(OPERATORS)
        assert [script.passes for script in rule.scripts if script.operator == rule.gold] == [True]
    model = tiny_model(tokenizer, 0).eval()
    (mine,) = outcomes(model, every[:1])
    for one in mine:
        assert [len(found) for found in one.logprobs] == [len(action) for action, _ in one.script.turns]
    found = standing(model, every[:2])
    assert 0.0 <= found.pass_at_1 <= found.on_script <= 1.0
