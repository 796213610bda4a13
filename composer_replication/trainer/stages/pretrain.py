"""Continued pre-training on text, before fine-tuning and RL."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.loss.forward import LogprobCache
from composer_replication.observe import Phase
from composer_replication.observe.summary import SummaryRow
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.corpus.passages import Corpus
from composer_replication.trainer.run_context import RunContext
from composer_replication.trainer.stages.before import EarlierStage
from composer_replication.trainer.stages.reading import learn_from_text
from composer_replication.trainer.train import train_arm

_OF_ROLLOUTS = ("turn_tokens", "trajectory_tokens", "context_tokens", "max_turns")


def _without_rollouts(data: dict[str, Any]) -> None:
    """Let the stage need no server: it samples nothing."""
    data["rollout"] = {"groups": 1, **{name: data["rollout"][name] for name in _OF_ROLLOUTS}}


PRETRAIN = EarlierStage(name="pretrain", what="pre-training", decides=("tasks.",), reshape=_without_rollouts)


async def train_on_text(context: RunContext, config: RunConfig, arm: str, shown: Phase) -> SummaryRow:
    """Train the arm of the stage on its corpus (`trainer.report.TrainArm`).

    Raises:
        ConfigError: there is nothing to learn from (`choose_documents`). Nothing is recorded then, so that the run can be started
            again with other settings.
        ComposerError: as `ArmTrainer.create`.
    """
    tasks = [*context.train, *context.held_out]
    with closing(LogprobCache()) as unused, closing(ArmTrainer.create(context, config, arm, unused)) as trainer:
        corpus = Corpus.read(config.pretrain, tasks, trainer.renderer.tokenizer, config.seed)
        trainer.fingerprint = {**trainer.fingerprint, "corpus": corpus.digest}
        learn_from_text(trainer, corpus)
        row = await train_arm(trainer, shown)
    trainer.learner.dismiss()
    return row
