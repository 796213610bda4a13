"""`composer hints explain` on runs, files of trajectories and imported traces."""

from __future__ import annotations

import json

import pytest
from in_process import invoke
from labelled.read import labelled
from trajectories import bad, call, ok, trajectory

from composer_replication.cli import app
from composer_replication.cli.hints_cmd import UNUSED
from composer_replication.observe import RunDir
from composer_replication.traces import write_traces
from composer_replication.types import Hint, to_json
from composer_replication.types.errors import ConfigError, StorageError

READ, EDIT, SUBMIT = call("read_file", path="a.py"), call("edit_file", path="a.py", old="x", new="y"), call("submit")
FAILING = trajectory((READ, bad("path_not_found")), (EDIT, ok()), (SUBMIT, ok()), reward=0.0)


def explain(*arguments):
    result = invoke(app, "hints", "explain", *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def write(path, transcripts):
    path.write_text("".join(json.dumps(to_json(one)) + "\n" for one in transcripts))
    return path


def test_trajectories_are_explained_turn_by_turn(tmp_path):
    said = explain(write(tmp_path / "t.jsonl", [FAILING]))
    assert "turn 0: path_not_found" in said
    assert "said, by template: Hint: there is no a.py. List the files first." in said
    assert "turn 1: tests_failed" in said
    assert "not said: nothing to say about tests_failed" in said
    assert "not said: its detector is not in loss.hint.detectors [template: Hint: nothing was run after" in said
    assert "1 transcripts, 3 turns; nothing was found in 0 transcripts" in said


def test_json_holds_every_finding_and_counts(tmp_path):
    told = json.loads(explain(write(tmp_path / "t.jsonl", [FAILING]), "--json", "--per-trajectory", 2))
    (one,) = told["traces"]
    assert [(f["turn"], f["kind"], f["dropped"]) for f in one["findings"]] == [
        (0, "path_not_found", None),
        (1, "tests_failed", "nothing to say about tests_failed"),
        (2, "premature_submit", "its detector is not in loss.hint.detectors"),
    ]
    assert told["counts"]["path_not_found"] == {"found": 1, "told": 1}


def test_traces_of_other_agents(tmp_path):
    pairs = labelled()[:40:8]
    write_traces(tmp_path / "traces.jsonl", [one for one, _ in pairs])
    told = json.loads(explain(tmp_path, "--json"))
    assert told == json.loads(explain(tmp_path / "traces.jsonl", "--json"))
    assert [{(f["kind"], f["turn"]) for f in one["findings"]} for one in told["traces"]] == [planted for _, planted in pairs]


def test_a_run_shows_what_was_told_then(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    run = RunDir(tmp_path)
    run.write_trajectories("full", 3, [FAILING])
    text = "Hint: as it was told."
    about = {"trajectory_id": FAILING.trajectory_id, "kind": "tests_failed", "source": "documentation"}
    run.write_hints("full", 3, [Hint(turn=1, text=text, **about)])
    said = explain(tmp_path)
    assert "full, step 3: 0/t0/0" in said
    assert f"said, by documentation: {text}" in said


def test_the_detectors_are_those_of_the_run(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    run = RunDir(tmp_path)
    run.write_trajectories("main", 1, [FAILING])
    run.config_path.write_text('[loss.hint]\ndetectors = ["premature_submit"]\n')
    (one,) = json.loads(explain(tmp_path, "--json", "--per-trajectory", 3))["traces"]
    assert {f["kind"]: f["dropped"] for f in one["findings"]} == {
        "path_not_found": UNUSED,
        "tests_failed": "nothing to say about tests_failed",
        "premature_submit": None,
    }
    run.config_path.write_text("[loss\n")
    with pytest.raises(StorageError, match=r"config\.toml is damaged"):
        explain(tmp_path)


def test_each_arm_is_read_by_its_own_detectors_generators_and_number_of_hints(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    run = RunDir(tmp_path)
    failing = trajectory((READ, bad("path_not_found", "no a.py")), (EDIT, bad("path_not_found", "no a.py")), reward=0.0)
    for arm in ("plain", "whole"):
        run.write_trajectories(arm, 1, [failing])
    run.config_path.write_text(
        '[loss.hint]\ngenerators = ["template"]\n[arms.plain]\n'
        '[arms.whole]\n"loss.hint.generators" = ["policy", "feedback"]\n"loss.hint.per_trajectory" = 2\n'
    )
    plain, whole = json.loads(explain(tmp_path, "--json"))["traces"]
    told = [[(f["source"], f["dropped"]) for f in one["findings"] if f["kind"] == "path_not_found"] for one in (plain, whole)]
    assert told == [[("template", None), ("template", "after an earlier error")], [("feedback", None)] * 2]
    run.config_path.write_text('[arms.plain]\n"loss.hint.per_trajectory" = 0\n')
    with pytest.raises(StorageError, match=r"config\.toml is damaged"):
        explain(tmp_path)


def test_rules_of_ones_own(tmp_path):
    rules = tmp_path / "style.toml"
    rules.write_text(
        '[[rule]]\nname = "no-y"\npattern = "y"\nwhere = "code"\nmessage = "No y."\n'
        '[[rule]]\nname = "j"\njudge = "Is it rude?"\nmessage = "Be kind."\n'
    )
    said = explain(write(tmp_path / "t.jsonl", [FAILING]), "--rules", rules)
    assert "turn 1: style" in said
    assert "Hint: No y." in said
    assert "1 rules of" in said


@pytest.mark.parametrize("content", ["nonsense\n", "[]\n", '{"format": "x"}\n', "{}\n", '{"a": ' * 5_000])
def test_a_line_that_is_none_is_named(tmp_path, content):
    (tmp_path / "t.jsonl").write_text(f"{json.dumps(to_json(FAILING))}\n{content}")
    with pytest.raises(ConfigError, match="line 2: neither a trajectory nor a trace"):
        explain(tmp_path / "t.jsonl")


def test_nothing_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        explain(tmp_path / "gone.jsonl")
    with pytest.raises(ConfigError, match="not a run"):
        explain(tmp_path)
