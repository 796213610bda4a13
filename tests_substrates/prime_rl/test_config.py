"""What we write is what PRIME-RL's own loader reads."""

from __future__ import annotations

import tomllib

import pytest
import tomli_w
from prime_rl.configs.rl import RLConfig
from prime_rl.configs.trainer import CustomLossConfig, TrainerConfig
from prime_rl.trainer.rl.loss import setup_rl_loss_fn
from prime_rl.utils.config import cli

from composer_replication.config import load_config
from composer_replication.recipes.prime_rl.config import LOSS_FN, validate, write_configs
from composer_replication.recipes.prime_rl.settings import RUN_FILE
from composer_replication.types.errors import ConfigError


def test_the_written_file_says_what_the_run_says(run_file, tmp_path):
    config = run_file(tmp_path / "given.toml", **{"optimizer.learning_rate": "3e-5", "rollout.max_turns": "7"})
    (toml,) = write_configs(config, tmp_path / "out")
    read = cli(RLConfig, args=["@", str(toml)])
    assert read.trainer.loss.import_path == LOSS_FN
    assert read.trainer.loss.kwargs == {"objective": "dapo"}, "without one the loss is PRIME-RL's own"
    assert (read.trainer.optim.lr, read.max_steps, read.trainer.model.seq_len) == (3e-5, 3, 1000)
    assert read.trainer.scheduler.warmup_steps == config.optimizer.warmup_steps
    orchestrator = read.orchestrator
    assert (orchestrator.batch_size, orchestrator.seq_len) == (2 * 2 + 3, 1000)
    coding, replay = orchestrator.train.source
    assert (coding.group_size, coding.ratio, coding.env.agent.max_turns) == (2, 2.0, 7)
    assert (coding.algo.type, coding.env.taskset.tasks) == ("grpo", config.tasks.train)
    assert (coding.env.taskset.id, coding.env.agent.harness.id) == ("composer_tasks", "composer_agent")
    assert (replay.group_size, replay.ratio, replay.sampling.temperature) == (1, 3.0, 1.0)
    assert replay.env.taskset.id == "composer_replay"
    assert orchestrator.env_vars[RUN_FILE] == str(toml.parent / "run.toml")
    assert load_config(toml.parent / "run.toml").loss == config.loss


def test_every_option_of_the_loss_is_read_by_the_real_loader(run_file, tmp_path):
    overrides = {
        "loss.rlvr.objective": "cispo",
        "loss.rlvr.epsilon_high": "3.0",
        "loss.rlvr.importance": "icepop",
        "optimizer.schedule": "linear",
        "rollout.refills": "2",
    }
    (toml,) = write_configs(run_file(tmp_path / "given.toml", **overrides), tmp_path / "out")
    trainer = tmp_path / "trainer.toml"
    trainer.write_text(tomli_w.dumps(tomllib.loads(toml.read_text())["trainer"]))
    read = cli(TrainerConfig, args=["@", str(trainer)])
    assert isinstance(read.loss, CustomLossConfig)
    assert read.loss.kwargs["importance"] == "icepop"
    assert read.loss.kwargs["epsilon_high"] == 3.0
    assert callable(setup_rl_loss_fn(read.loss))
    assert (read.scheduler.warmup_steps, read.scheduler.decay_steps) == (2, 1)
    assert cli(RLConfig, args=["@", str(toml)]).orchestrator.pre_batch_filters[0].enforce


def test_held_out_tasks_are_an_evaluation(run_file, tasks, tmp_path):
    (toml,) = write_configs(run_file(tmp_path / "given.toml", **{"tasks.held_out": tasks, "eval.samples": "2"}), tmp_path / "out")
    held_out = cli(RLConfig, args=["@", str(toml)]).orchestrator.eval
    assert (held_out.source[0].resolved_name, held_out.source[0].group_size) == ("held_out", 2)


def test_options_of_the_framework_are_its_own(run_file, tmp_path):
    given = run_file(tmp_path / "given.toml")
    substrate = given.substrate.model_copy(update={"options": {"orchestrator.max_off_policy_steps": 1}})
    (toml,) = write_configs(given.model_copy(update={"substrate": substrate}), tmp_path / "out")
    assert cli(RLConfig, args=["@", str(toml)]).orchestrator.max_off_policy_steps == 1


def test_what_the_loader_refuses_is_one_error(tmp_path):
    toml = tmp_path / "rl.toml"
    toml.write_text("max_stepz = 3\n[trainer]\n[orchestrator]\n")
    with pytest.raises(ConfigError, match=r"PRIME-RL refuses it: .*max-stepz"):
        validate(toml)
