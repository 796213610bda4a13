"""The quickstart's policy, tasks and teachers through `python -m verl.trainer.main_ppo`, on Ray and the CPU."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest

from composer_replication.config import ModelConfig, RunConfig
from composer_replication.loss.forward import weights_digest
from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import RunDir, Terminal
from composer_replication.quickstart.run import quickstart_config
from composer_replication.quickstart.teachers import TEACHERS, served
from composer_replication.recipes.substrates import train_on
from composer_replication.recipes.verl.plan import PLAN
from composer_replication.trainer.open_run import open_run

STEPS, ARM = 2, "three_channels"


@pytest.fixture(scope="module")
def trained(prepared, tmp_path_factory) -> RunDir:
    """A run of two steps."""
    out = tmp_path_factory.mktemp("runs") / "verl"
    before = {name: os.environ.pop(name) for name in (PLAN, "VERL_PLATFORM") if name in os.environ}
    try:
        with served({name: prepared / "teachers" / name for name in TEACHERS}) as teachers:
            made = quickstart_config(prepared, out, teachers, seed=0, steps=STEPS, sandbox="auto").model_dump()
            made["rollout"] |= {"group_size": 4}
            made |= {"arms": {ARM: {}}, "substrate": {"type": "verl"}, "eval": {"every": 2, "samples": 1}}
            config = RunConfig.model_validate(made)
            with open_run(config, resume=False) as run_dir:
                terminal = Terminal(on_event=run_dir.log_event)
                asyncio.run(train_on(config, run_dir, terminal))
    finally:
        os.environ |= before
    return run_dir


def values(run: RunDir, name: str) -> list[float]:
    return [line.values[name] for line in run.read_metrics() if name in line.values]


def test_every_channel_taught(trained):
    assert any(values(trained, "rlvr/loss")), "no group had rewards that differ"
    assert min(values(trained, "rlvr/tokens")) > 0
    assert any(values(trained, "hint/loss"))
    assert sum(values(trained, "hint/turns")) > 0
    assert all(values(trained, "replay/loss"))
    assert values(trained, "replay/pairs") == [12.0] * STEPS
    assert min(values(trained, "optimizer/grad_norm")) > 0


def test_the_server_samples_with_the_trainers_weights(trained):
    """What sampled is what scores, in the second step too: no ratio is off 1 by more than rounding."""
    ratios = values(trained, "rlvr/ratio/max")
    assert len(ratios) == STEPS
    assert max(ratios) == pytest.approx(1.0, abs=1e-3)


def test_the_run_directory_is_that_of_every_substrate(trained, prepared):
    assert [line.step for line in trained.read_metrics()] == list(range(STEPS + 1))
    assert len(values(trained, "eval/pass_at_1")) == 2
    assert trained.report_path.is_file()
    evaluated, traced = len(trained.read_evaluation(ARM, 0)), len(trained.read_traces(ARM))
    assert traced > 0
    assert values(trained, "rollout/total") == [
        evaluated,
        *(evaluated + traced + 16 * step + evaluated * (step == STEPS) for step in range(1, STEPS + 1)),
    ]
    trajectories = trained.read_trajectories(ARM, 1)
    assert len(trajectories) == 16
    assert trajectories[0].trajectory_id.startswith("1/")
    told = [hint for step in (1, 2) for hint in trained.read_hints(ARM, step) if hint.dropped is None]
    assert len(told) == sum(values(trained, "hint/turns"))
    start, _ = load_policy(ModelConfig(path=str(prepared / "policy"), device="cpu"))
    end, _ = load_policy(ModelConfig(path=str(latest_checkpoint(trained.ckpt_path / ARM)), device="cpu"))
    assert weights_digest(start) != weights_digest(end)


def test_nothing_is_left_running(trained):
    found = subprocess.run(["pgrep", "-f", str(trained.path)], capture_output=True, text=True, check=False)
    assert found.stdout == ""
