"""Model cards: data, settings, results and alarms of the arm whose checkpoint they lie in."""

from __future__ import annotations

import tomllib
from pathlib import Path

from composer_replication.config import load_config
from composer_replication.loss.forward.model_checkpoint import CARD, read_checkpoint, save_checkpoint
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import RunDir, Terminal
from composer_replication.trainer.checkpoints.card import write_card
from composer_replication.trainer.journal import ArmJournal, RolloutMeter
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.stages.pretrain import PRETRAIN


def test_a_checkpoint_has_the_card_of_its_arm(run_file: Path, tmp_path: Path) -> None:
    config = load_config(run_file)
    run_dir = RunDir.create(tmp_path / "run")
    write_card(run_dir, config)
    for arm, passed in (("main", 0.25), ("other", 0.75)):
        for step in range(31):
            values = {"eval/pass_at_1": passed + step / 1000, "eval/pass_at_1_se": 0.125, "eval/unscored": 0.0}
            run_dir.log_metrics(arm, step, values | {"eval/alarms": float(step == 30 and arm == "other")})
    write_card(run_dir, config, "other")
    policy, tokenizer = load_policy(config.model)
    learner = Learner(policy, config)
    cards = {}
    for arm in ("main", "other"):
        saved = save_checkpoint(run_dir.ckpt_path / arm, 1, learner, tokenizer, {})
        read_checkpoint(saved)
        cards[arm] = (saved / CARD).read_text()
    assert "## Results" not in cards["main"], "an arm without a card of its own has that of the run"
    card = cards["other"]
    assert "| 0 | 0.75 | 0.125 |" in card
    assert "| 30 | 0.78 | 0.125 |" in card
    assert "0.25" not in card.partition("## Settings")[0]
    assert len([line for line in card.splitlines() if line.startswith("| ")]) == 20 + 1
    assert "CHEAT ALARM: 1 rollouts of other" in card
    settings = tomllib.loads(card.partition("```toml\n")[2].partition("```")[0])
    assert settings["optimizer"]["learning_rate"] == config.optimizer.learning_rate
    assert f"Measured on the tasks of `{config.tasks.held_out}`" in card


def test_a_measurement_renews_the_card(run_file: Path, tmp_path: Path) -> None:
    config = load_config(run_file)
    run_dir = RunDir.create(tmp_path / "run")
    written = []
    journal = ArmJournal(run_dir, None, "main", 4, RolloutMeter(), card=lambda: written.append(len(run_dir.read_metrics())))  # type: ignore[arg-type]
    journal.log(1, {"loss/total": 1.0})
    assert written == []
    journal.log(2, {"eval/pass_at_1": 0.5})
    journal.log(3, {"pretrain/nll": 2.0})
    assert written == [2, 3], "after its line is there"
    write_card(run_dir, config, "main")
    assert "| 2 | 0.5 |" in (run_dir.ckpt_path / "main" / CARD).read_text()


def test_a_card_tells_what_was_read_and_what_nobody_wanted(run_file: Path, tmp_path: Path) -> None:
    config = load_config(run_file)
    run_dir = RunDir.create(tmp_path / "run")
    journal = ArmJournal(run_dir, Terminal(), "main", 4, RolloutMeter())
    journal.learns_from("12 demonstrations (12 oracle)")
    journal.learns_from("12 demonstrations (12 oracle)")  # of a resumed run
    metrics = {"rlvr/pull": 0.1, "hint/pull": 9.0, "replay/chosen/distance/mean": -2.0}
    metrics |= {"replay/known/pairs": 16.0, "replay/chosen/tokens/mean": 10.0}
    for step in (1, 2):
        journal.record_step(step, [], [], metrics, {})
    write_card(run_dir, config, "main")
    card = (run_dir.ckpt_path / "main" / CARD).read_text()
    assert card.count("- 12 demonstrations (12 oracle)") == 1
    assert "- Step 1: the hint channel pulls 90 times as hard on the policy as rlvr" in card
    assert "- Step 2: the chosen answers of pairs are 2.0 nats less likely than at the start" in card


def test_a_policy_that_read_text_says_so(run_file: Path, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    config = load_config(run_file, ["--pretrain.enabled", "true", "--pretrain.sources", f'["{tmp_path / "code"}"]'])
    stage = PRETRAIN.run_of(config)
    run_dir = RunDir.create(tmp_path / "run")
    write_card(run_dir, stage, "main")
    card = (run_dir.ckpt_path / "main" / CARD).read_text()
    assert f"on text of `{tmp_path / 'code'}`" in card
    assert "on the tasks of" not in card.partition("## Settings")[0]
