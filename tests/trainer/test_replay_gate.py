"""`[loss.replay.gate]`: what teachers are asked and paid in a run, and that what is left is still trained on."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from teacher_server import Reply, TeacherServer
from test_step_rewards import write_prm
from world import finish, name_teachers

from composer_replication.config import load_config
from composer_replication.observe import RunDir
from composer_replication.quickstart.policy import tiny_tokenizer
from composer_replication.teachers import Gate
from composer_replication.teachers.gate_steps import steps_of, with_evidence
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.preflight import check_run
from composer_replication.trainer.step_rewards import load_step_scorer
from composer_replication.types.errors import ConfigError

GATE = ("--loss.replay.gate.rule", "cascade", "--loss.replay.gate.findings", "false", "--loss.replay.gate.audit", "0")
HALF = (*GATE, "--loss.replay.gate.uncertain", "0.5")


def say(body: dict[str, Any], _number: int) -> Reply:
    """Both teachers agree, at a cent the cheap one's answer and ten the other's."""
    return Reply(calls=[("list_files", {})], cost=0.01 if body["model"] == "one" else 0.1)


def train(run_file: Path, url: str, name: str, *words: str) -> tuple[RunDir, str]:
    name_teachers(run_file, url, usd_per_million_output=20.0, max_total_usd=50.0)
    output = finish("train", str(run_file), "--steps", "1", "--name", name, *words, cwd=run_file.parent)
    return RunDir(run_file.parent / "runs" / name), output


def cents(requests: list[dict[str, Any]]) -> float:
    return sum(0.01 if body["model"] == "one" else 0.1 for body in requests)


@pytest.mark.slow
@pytest.mark.long
def test_a_gate_asks_and_pays_for_less_and_its_pairs_are_trained_on(run_file: Path) -> None:
    with TeacherServer(say) as server:
        whole, _ = train(run_file, server.base_url, "whole")
        everything = list(server.requests)
    with TeacherServer(say) as server:
        gated, output = train(run_file, server.base_url, "gated", *HALF)
        asked = list(server.requests)
        shutil.rmtree(gated.ckpt_path / "main" / "step_00001")
        shutil.rmtree(gated.ckpt_path / "main" / "step_00000")
        train(run_file, server.base_url, "gated", *HALF, "--resume")
        assert server.requests == asked
    states = len(everything) // 2
    cheap = sum(body["model"] == "one" for body in asked)
    assert cheap == round(0.5 * states)
    assert 0 < len(asked) - cheap <= cheap
    values = {run: run.read_metrics()[-1].values for run in (whole, gated)}
    assert (values[whole]["replay/states_asked"], values[whole]["replay/states_skipped"]) == (states, 0)
    assert (values[gated]["replay/states_asked"], values[gated]["replay/states_skipped"]) == (cheap, states - cheap)
    assert values[whole]["cost/usd"] == pytest.approx(cents(everything))
    assert values[gated]["cost/usd"] == pytest.approx(cents(asked))
    assert f"teachers were asked about {cheap} of {states} states" in output
    assert f"asked first: {cheap} high entropy; then: {len(asked) - cheap} the cheap teacher does not agree" in output
    assert 0 < len(gated.read_pairs("main")) <= len(asked) - cheap
    assert values[gated]["replay/pairs"] > 0
    assert values[gated]["replay/loss"] > 0


@pytest.mark.slow
def test_a_gate_that_asks_nothing_leaves_the_channel_without_pairs(run_file: Path) -> None:
    with TeacherServer(say) as server:
        run, output = train(run_file, server.base_url, "none", *GATE, "--loss.replay.gate.uncertain", "0")
        assert server.requests == []
    assert "teachers were asked about 0 of" in output
    assert run.read_pairs("main") == []
    assert "no pairs" in output


@pytest.mark.slow
def test_a_process_reward_model_chooses_the_states(run_file: Path, tmp_path: Path) -> None:
    """Those that it scores lowest, as `composer prm score` does, and no others."""
    prm = write_prm(tmp_path / "prm")
    words = ("--loss.replay.gate.rule", "flat", "--loss.replay.gate.findings", "false", "--loss.replay.gate.audit", "0")
    words += ("--loss.replay.gate.uncertain", "0", "--loss.replay.gate.doubtful", "0.25", "--reward.prm.path", str(prm))
    with TeacherServer(say) as server:
        run, output = train(run_file, server.base_url, "doubtful", *words)
        asked = {json.dumps(body["messages"]) for body in server.requests}
    traces = run.read_traces("main")
    scorer = load_step_scorer(load_config(run_file, words), ChatRenderer(tiny_tokenizer()))
    rows = scorer(traces)
    scores = [score for row in rows for score in row if score is not None]
    lowest = round(0.25 * len(scores))
    assert f"asked first: {lowest} low score; then: " in output
    assert len(asked) <= lowest
    bound = sorted(scores)[lowest - 1]
    places = {f"{t.trajectory_id}#{k}": row[k] for t, row in zip(traces, rows, strict=True) for k in range(len(row))}
    pairs = run.read_pairs("main")
    assert pairs
    assert all(places[pair["state_id"]] <= bound for pair in pairs)


def test_a_low_score_is_a_ground() -> None:
    states = [
        {
            "state_id": f"t#{n}",
            "trajectory_id": "t",
            "turn": n,
            "messages": [{"role": "user", "content": "x"}],
            "student_action": "y",
        }
        for n in range(4)
    ]
    steps = steps_of(with_evidence(states, scores={"t": [0.9, 0.1, None, 0.4]}))
    decisions = Gate(rule="flat", uncertain=0.0, doubtful=0.7, audit=0.0).first(steps)
    assert [d.reasons for d in decisions] == [(), ("low score",), (), ("low score",)]
    assert not any(d.reasons for d in Gate(rule="flat", uncertain=0.0, audit=0.0).first(steps))


@pytest.mark.parametrize(
    ("options", "teachers", "message"),
    [
        (("--loss.replay.gate.rule", "cascade"), 1, "a replay in tiers needs a cheap teacher and another"),
        (("--loss.replay.gate.rule", "any", "--loss.replay.gate.cheap", "nobody"), 2, "the gate asks nobody first"),
        (("--loss.replay.gate.rule", "flat", "--loss.replay.gate.doubtful", "0.2"), 2, "reward.prm.path is missing"),
        (("--loss.replay.gate.cheap", "one"), 2, "cheap = one is not read with rule = off"),
        (("--loss.replay.gate.audit", "0.5"), 2, "audit = 0.5 is not read with rule = off"),
    ],
)
def test_a_gate_that_cannot_be_is_refused_before_anything_starts(
    run_file: Path, options: tuple[str, ...], teachers: int, message: str
) -> None:
    name_teachers(run_file, "http://127.0.0.1:9/v1")
    data = tomllib.loads(run_file.read_text())
    data["loss"]["replay"]["agreement_threshold"] = teachers
    run_file.write_text(tomli_w.dumps(data | {"teachers": data["teachers"][:teachers]}))
    with pytest.raises(ConfigError, match=message):
        check_run(load_config(run_file, options))
