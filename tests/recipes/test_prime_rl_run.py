"""A run on PRIME-RL whose processes are replaced by what they would have written: table, report and weights of every arm."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from composer_replication.config import load_config
from composer_replication.observe import RunDir, Terminal
from composer_replication.recipes.prime_rl import substrate
from composer_replication.types.errors import BackendError


def record(name, *, group, reward, policy_version=0, **more):
    """A rollout of one turn as the orchestrator keeps it."""
    nodes = [
        {
            "parent": None,
            "message": {"role": "user", "content": "Do it."},
            "sampled": False,
            "token_ids": [5, 6],
            "mask": [False, False],
        },
        {
            "parent": 0,
            "message": {"role": "assistant", "content": "Done.", "tool_calls": None},
            "sampled": True,
            "token_ids": [7, 8, 9],
            "mask": [False, True, True],
        },
    ]
    nodes = [{**node, "logprobs": [-0.5] * sum(node["mask"])} for node in nodes]
    info = {"group_id": group, "env_name": "tasks", "policy_version": policy_version, **more.pop("info", {})}
    return {
        "id": name,
        "task": {"data": {"task_id": "carts"}},
        "tools": [],
        "nodes": nodes,
        "rewards": {"tests_pass": {"score": reward, "weight": 1.0}},
        "metrics": {"hint/turns": 1.0, "hint/tokens": 2.0},
        "info": info,
        "stop_condition": None,
        "errors": [],
        **more,
    }


def write(outputs: Path, step: int, kind: str, records: list) -> None:
    for subset in ("all", "effective"):
        path = outputs / "run_default" / "rollouts" / f"step_{step}" / kind / subset / "traces.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(one) + "\n" for one in records))


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """`trained()` runs two arms; the second one learns."""
    path = tmp_path / "run.toml"
    path.write_text(
        f'steps = 2\n[model]\npath = "policy"\n[tasks]\ntrain = "{tmp_path}"\n[substrate]\ntype = "prime_rl"\n'
        '[loss.hint]\nform = "sampled_token"\nself_teacher = "live"\nreduction = "token"\n[loss.replay]\nweight = 0.0\n'
        "[arms.one]\nloss.hint.weight = 0.0\n[arms.other]\n"
    )

    async def run(toml, search):
        assert search == ["somewhere"]
        outputs = toml.parent / "outputs"
        learns = toml.parent.name == "other"
        for step in (1, 2):
            rewards = (0.0, float(learns and step == 2))
            write(outputs, step, "train", [record(f"{step}-{i}", group="g", reward=r) for i, r in enumerate(rewards)])
            (outputs / "weights" / f"step_{step}").mkdir(parents=True)
        write(outputs, 2, "eval", [record("e", group="e", reward=float(learns))])
        first = {"step": 1, "optim/grad_norm": 0.5}  # its hinted rollouts overflowed its batch, into the second
        measured = {"step": 2, "optim/grad_norm": 0.25, **({"ref_kl/mean": 0.1} if reaches else {})}
        (outputs / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (first, measured)))

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(substrate, "_search_path", lambda: ["somewhere"])
    monkeypatch.setattr(substrate, "_run", run)
    said, reaches = io.StringIO(), True

    def go(replay=0.0, reaching=True):
        nonlocal reaches
        reaches = reaching
        path.write_text(path.read_text().replace("[loss.replay]\nweight = 0.0", f"[loss.replay]\nweight = {replay}"))
        run_dir = RunDir.create(tmp_path / "run")
        terminal = Terminal(Console(file=said, width=300), on_event=run_dir.log_event)
        return asyncio.run(substrate.train(load_config(path), run_dir, terminal)), run_dir, said

    return go


def test_every_arm_has_its_curves_and_its_row(trained):
    rows, run_dir, said = trained()
    assert [(row.arm, row.pass_at_1, row.rollouts, row.tokens) for row in rows] == [("one", 0.0, 5, 10), ("other", 1.0, 5, 10)]
    lines = {(line.arm, line.step): line.values for line in run_dir.read_metrics()}
    assert [lines["other", step]["reward/mean"] for step in (1, 2)] == [0.0, 0.5]
    assert "hint/turns" not in lines["one", 1]
    assert lines["other", 1]["hint/turns"] == 2.0
    assert lines["other", 2]["optimizer/grad_norm"] == 0.25
    assert run_dir.read_trajectories("other", 2)[0].task_id == "carts"
    report = run_dir.report_path.read_text()
    assert "carts" in report
    assert "Privileged information" in report
    assert "weights of other:" in said.getvalue()
    assert str(Path("other", "outputs", "weights", "step_2")) in said.getvalue().replace("\n", "")
    off = [(e["arm"], e["off"]) for e in run_dir.read_events() if e.get("off")]
    assert ("one", "loss.hint.weight is 0") in [(arm, why["hint"]) for arm, why in off if "hint" in why]


def test_hints_that_do_not_reach_the_trainer_are_an_error_when_all_is_recorded(trained, tmp_path):
    with pytest.raises(
        BackendError, match=r"other: PRIME-RL's trainer has not measured what it was given: hint/turns of step 1, 2"
    ):
        trained(reaching=False)
    recorded = {(line.arm, line.step) for line in RunDir(tmp_path / "run").read_metrics()}
    assert {("one", 1), ("one", 2), ("other", 1), ("other", 2)} <= recorded


def test_a_replay_channel_without_pairs_says_that_it_is_off(trained):
    _, run_dir, said = trained(replay=1.0)
    why = "no pairs: the run has no teachers, loss.replay.pairs or loss.replay.reattempts"
    assert f"other: replay is off, {why}" in said.getvalue()
    assert {e["off"]["replay"] for e in run_dir.read_events() if e.get("off")} == {why}


def test_a_trace_of_another_release_is_said(trained, tmp_path):
    _, run_dir, _ = trained()
    outputs = tmp_path / "run" / "prime_rl" / "other" / "outputs"
    (path,) = outputs.rglob("step_1/train/all/traces.jsonl")
    path.write_text('{"id": "x", "info": {}}\n')
    config = load_config(tmp_path / "run.toml")
    with pytest.raises(BackendError, match=r"traces\.jsonl, line 1: no rollout as PRIME-RL 0\.8 keeps it: KeyError"):
        substrate.PrimeRLMetrics(config, "other", run_dir, Terminal(Console(quiet=True)), outputs).record()
