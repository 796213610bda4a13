"""What PRIME-RL's own code writes of a step becomes our metrics, trajectories and report."""

from __future__ import annotations

import io
import json

import pytest
import verifiers.v1 as vf
from prime_rl.orchestrator.metrics import TrainRollouts
from prime_rl.orchestrator.utils import save_rollouts
from prime_rl.utils.pathing import get_trace_path
from rich.console import Console
from rollouts import finalized, group, pairs_as_rollouts, rollout

from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.report import rebuild_report
from composer_replication.recipes.prime_rl.import_metrics import PrimeRLMetrics

SCORES = {"replay/loss", "replay/margin", "replay/accuracy"}


def kept(outputs, step, kind, rollouts):
    """As the orchestrator keeps them."""
    for number, one in enumerate(rollouts):
        run = (vf.EvalRunInfo if kind == "eval" else vf.TrainRunInfo)(id="run", step=step)
        name = one.env_name if kind == "train" else f"{one.id}-{number}"
        one.record_run(run, env_name=one.env_name, group_id=name, episode_id=None, policy_version=max(0, step - 1))
    records = [one.to_record() for one in rollouts]
    for subset, some in (("all", records), ("effective", [r for r in records if not r["errors"]])):
        save_rollouts(some, get_trace_path(outputs / "run_default", step, kind, subset))


def log(folder, numbers):
    """A row as its file monitor writes it, which cannot be imported without its platform's client."""
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 1, "time": 5.0, **numbers}) + "\n")


@pytest.fixture
def outputs(algorithm, policy, tmp_path):
    """Of one step, with an evaluation before and after it."""
    built, _ = algorithm()
    siblings, pairs = group(policy), pairs_as_rollouts(tmp_path / "out" / "rl.toml")
    finalized(built, siblings)
    finalized(built, pairs)
    outputs = tmp_path / "outputs"
    kept(outputs, 0, "eval", [rollout(policy, call="read_file", answer="x", reward=r, name=f"{r}") for r in (0.0, 1.0)])
    kept(outputs, 1, "train", [*siblings, *pairs])
    kept(outputs, 1, "eval", group(policy)[:1])
    log(outputs / "run_default", TrainRollouts(siblings).metrics.to_wandb(prefix="train/tasks", subset="effective"))
    log(outputs, {"optim/lr": 1e-5, "optim/grad_norm": 0.5})
    log(outputs, {"rlvr/loss/mean": -0.2, "rlvr/clip_frac/mean": 0.1, "ref_kl/mean": 0.3, "nll/mean": 2.0})
    return outputs, siblings, pairs


def test_a_step(outputs, run_file, tmp_path):
    where, siblings, pairs = outputs
    config = run_file(tmp_path / "read.toml")
    run_dir, said = RunDir.create(tmp_path / "run"), io.StringIO()
    terminal = Terminal(Console(file=said, width=200), on_event=run_dir.log_event)
    readback = PrimeRLMetrics(config, "main", run_dir, terminal, where)
    readback.record()
    start, step = run_dir.read_metrics()
    assert (start.step, step.step) == (0, 1)
    assert (start.values["eval/pass_at_1"], step.values["eval/pass_at_1"]) == (0.5, 1.0)
    bad, found = siblings[1], step.values
    assert found["reward/mean"] == 0.5
    assert found["rlvr/frac_zero_std"] == 0.0
    assert (found["hint/turns"], found["hint/tokens"]) == (1.0, bad.metrics["hint/tokens"])
    assert found["replay/pairs"] == len(pairs)
    for name in SCORES:
        assert found[name] == pytest.approx(sum(p.metrics[name] for p in pairs) / len(pairs))
    assert found["replay/loss"] > 0
    assert found["rlvr/loss"] == -0.2
    assert (found["hint/kl/mean"], found["optimizer/grad_norm"], found["optimizer/learning_rate"]) == (0.3, 0.5, 1e-5)
    sampled = [sum(sum(node.mask) for node in one.nodes) for one in siblings]
    assert found["rlvr/tokens"] == sum(sampled)
    assert found["rollout/total"] == readback.meter.rollouts == 2 + 2 + 1
    assert not any(name.startswith("train/") for name in found)
    told = run_dir.read_trajectories("main", 1)
    assert [t.reward for t in told] == [1.0, 0.0]
    assert [t.num_sampled_tokens() for t in told] == sampled
    assert [list(t.context_ids(2)) for t in told] == [[i for node in one.nodes for i in node.token_ids] for one in siblings]
    assert {t.policy_version for t in told} == {0}
    assert "open_file" in rebuild_report(run_dir).read_text()


def test_a_rollout_that_broke_is_in_no_mean(outputs, policy, run_file, tmp_path):
    where, siblings, _ = outputs
    broken = rollout(policy, call="read_file", answer="x", reward=0.0, name="broken")
    broken.errors = [vf.Error(type="SandboxError", message="the box broke")]
    kept(where, 2, "train", [siblings[0], broken])
    run_dir = RunDir.create(tmp_path / "run")
    PrimeRLMetrics(run_file(tmp_path / "read.toml"), "main", run_dir, Terminal(Console(quiet=True)), where).record()
    found = run_dir.read_metrics()[-1].values
    assert (found["reward/mean"], found["reward/unscored"], found["rollout/total"]) == (1.0, 1.0, 7.0)
    assert len(run_dir.read_trajectories("main", 2)) == 1
