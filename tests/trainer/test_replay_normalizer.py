"""`[loss.replay.normalize]`: a pair that is not worth training on is trained on without it, and dropped with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from teacher_server import Reply, TeacherServer
from world import finish, name_teachers

from composer_replication.config import load_config, resolve_arm
from composer_replication.observe import RunDir
from composer_replication.trainer.preflight import check_run
from composer_replication.types.errors import ConfigError

MARKS = "}}]); " * 20
RECIPE = "process:\n  - special_characters_filter: {text_key: chosen, max_ratio: 0.5}\n"
ON = ("--loss.replay.normalize.enabled", "true", "--loss.replay.normalize.recipe", "agents.yaml")


def trained_on(run_file: Path, name: str, spoiled: list[str], *words: str) -> tuple[list[str], list[str], str]:
    """The chosen actions of the pairs, the ids of those that steps read, and the output.

    Answers about the state in `spoiled` are bad; an empty list gets the state that is asked about first.
    """

    def say(body: dict[str, Any], _number: int) -> Reply:
        state = json.dumps(body["messages"])
        spoiled[:] = spoiled or [state]
        return Reply(calls=[("search", {"pattern": MARKS if state == spoiled[0] else "cargo"})])

    with TeacherServer(say) as server:
        name_teachers(run_file, server.base_url)
        output = finish("train", str(run_file), "--steps", "1", "--name", name, *words, cwd=run_file.parent)
    run = RunDir(run_file.parent / "runs" / name)
    stored = (run.ckpt_path / "main" / "pairs.jsonl").read_text().splitlines()
    names = [pair["pair_id"] for pair in map(json.loads, stored) if pair["rejected_ids"]]
    assert run.read_metrics()[-1].values["replay/pairs"] == min(8, len(names))
    return [p["chosen"] for p in run.read_pairs("main")], names, output


@pytest.mark.slow
def test_a_bad_pair_is_dropped_that_is_trained_on_otherwise(run_file: Path) -> None:
    (run_file.parent / "agents.yaml").write_text(RECIPE)
    spoiled: list[str] = []
    before, ids, plain = trained_on(run_file, "plain", spoiled)
    after, kept, output = trained_on(run_file, "normalized", spoiled, *ON)
    bad = [place for place, action in enumerate(before) if MARKS in action]
    assert len(bad) == 1
    assert after == [action for action in before if MARKS not in action] != []
    assert kept == [name for place, name in enumerate(ids) if place not in bad]
    assert f"the normaliser kept {len(after)} of {len(before)} pairs: 1 dropped by special_characters_filter/chosen" in output
    assert "normaliser" not in plain


def refused(run_file: Path, *words: str) -> str:
    name_teachers(run_file, "http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError) as error:
        check_run(load_config(run_file, words))
    return error.value.message


def test_a_recipe_that_cannot_be_run_is_refused_before_anything_starts(run_file: Path) -> None:
    assert "normalize.recipe: no such file" in refused(run_file, *ON)
    recipe = run_file.parent / "agents.yaml"
    recipe.write_text("process:\n  - alphanumeric_filter: {text_key: chosen}\n")
    assert "the builtin backend has no operator alphanumeric_filter" in refused(run_file, *ON)
    recipe.write_text(RECIPE)
    assert "enabled = false" in refused(run_file, *ON[2:])
    assert "backend = builtin" in refused(run_file, *ON, "--loss.replay.normalize.ray_address", "auto")


def test_the_recipe_of_an_arm_is_relative_to_the_run_file_too(run_file: Path) -> None:
    recipe = run_file.parent / "agents.yaml"
    recipe.write_text(RECIPE)
    words = ("--loss.replay.normalize.enabled", "true", "--arms.main.loss.replay.normalize.recipe", "agents.yaml")
    assert resolve_arm(load_config(run_file, words), "main").loss.replay.normalize.recipe == recipe.resolve()
