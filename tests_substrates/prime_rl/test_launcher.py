"""Our launcher in front of PRIME-RL's own entry points, as far as they go without a GPU."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from prime_rl.configs.orchestrator import OrchestratorConfig
from prime_rl.configs.trainer import TrainerConfig
from prime_rl.utils.config import cli

from composer_replication.observe import RunDir, Terminal
from composer_replication.recipes.prime_rl.config import LOSS_FN, write_configs
from composer_replication.recipes.prime_rl.launcher import orchestrator_command
from composer_replication.recipes.prime_rl.settings import RUN_FILE
from composer_replication.recipes.prime_rl.substrate import train
from composer_replication.types.errors import BackendError

CHECKOUT = Path(os.environ["COMPOSER_PRIME_RL_SRC"]).absolute()


def launch(*words, **environment):
    sources = (CHECKOUT / "src", CHECKOUT / "packages" / "prime-rl-configs" / "src")
    path = os.pathsep.join([*map(str, sources), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        words, env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True, text=True, check=False
    )


def test_rl_takes_our_file_apart_for_its_processes(run_file, tmp_path):
    (toml,) = write_configs(run_file(tmp_path / "given.toml"), tmp_path / "out")
    module = "composer_replication.recipes.prime_rl.launcher"
    done = launch(sys.executable, "-m", module, "rl", "@", str(toml), "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    configs = tmp_path / "out" / "outputs" / "configs"
    orchestrator = cli(OrchestratorConfig, args=["@", str(configs / "orchestrator.toml")])
    assert orchestrator.env_vars[RUN_FILE] == str(tmp_path / "out" / "run.toml")
    assert [source.env.taskset.id for source in orchestrator.train.source] == ["composer_tasks", "composer_replay"]
    assert cli(TrainerConfig, args=["@", str(configs / "trainer.toml")]).loss.import_path == LOSS_FN
    assert sorted(path.stem for path in (configs / "envs" / "train").iterdir()) == ["replay", "tasks"]


def test_the_name_orchestrator_leads_to_the_stock_command(tmp_path):
    """Ours registers the algorithm, and goes on as theirs: it knows their options."""
    orchestrator_command(tmp_path)
    done = launch("orchestrator", "--help", PATH=os.pathsep.join((str(tmp_path), os.environ["PATH"])))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "max-off-policy-steps" in done.stdout + done.stderr


def test_its_last_words_are_in_the_error(run_file, tmp_path, monkeypatch):
    """Its own `rl`, on a machine that only says that it has GPUs: it misses what its trainer needs."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    config, run_dir = run_file(tmp_path / "given.toml"), RunDir.create(tmp_path / "run")
    with pytest.raises(BackendError, match=r"(?s)PRIME-RL ended with status 1:.*torchtitan") as ended:
        asyncio.run(train(config, run_dir, Terminal()))
    assert "launcher.log" in ended.value.fix
