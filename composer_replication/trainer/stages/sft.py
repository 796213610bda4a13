"""Fine-tuning on demonstrations that pass their tests, before RL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.loss.forward import LogprobCache
from composer_replication.observe import Phase
from composer_replication.observe.summary import SummaryRow
from composer_replication.rollouts.protocol import Budgets
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.open_run import decisive
from composer_replication.trainer.rewards import RewardFunction
from composer_replication.trainer.run_context import RunContext
from composer_replication.trainer.sampling.kept_rollouts import folder_of
from composer_replication.trainer.stages.before import EarlierStage
from composer_replication.trainer.stages.demonstrations import DemonstrationSources
from composer_replication.trainer.stages.imitation import learn_from_demonstrations
from composer_replication.trainer.train import StepCallback, train_arm


def _with_one_server(data: dict[str, Any]) -> None:
    """Let the stage sample from the first server where a mesh has several."""
    address = data["rollout"].get("server_url")
    if isinstance(address, list):
        data["rollout"]["server_url"] = address[0]


SFT = EarlierStage(
    name="sft", what="fine-tuning before RL", decides=("tasks.", "env.", "reward.", "loss.hint."), reshape=_with_one_server
)


async def train_imitation(
    context: RunContext, config: RunConfig, arm: str, shown: Phase, *, callbacks: Sequence[StepCallback] = ()
) -> SummaryRow:
    """Fine-tune the arm of the stage (`trainer.report.TrainArm`).

    Raises:
        ConfigError: there is nothing to learn from (`DemonstrationSources`). Nothing is recorded then, so that the run can be
            started again with other settings.
        ComposerError: as `ArmTrainer.create`.
    """
    tasks = [task for task in context.train if not task.spec.impossible]
    made_of = decisive(config, "sft.", "model.", "tasks.", "env.", "reward.", "rollout.", "sandbox.", "loss.hint.", "seed")
    with closing(LogprobCache()) as unused, closing(ArmTrainer.create(context, config, arm, unused)) as trainer:
        renderer, window = trainer.renderer, trainer.collector.context_window
        budgets = replace(Budgets.of(config.rollout), context_tokens=min(config.rollout.context_tokens, window))
        sources = DemonstrationSources(config.sft, renderer, tasks, context.held_out, budgets)
        sources.check()
        made_of |= {"scored by": _name_of(context.reward), **trainer.fingerprint}
        folder = folder_of(context.run_dir.path / "demonstrations", arm, made_of)
        await learn_from_demonstrations(trainer).gather(sources, folder)
        row = await train_arm(trainer, shown, callbacks)
    trainer.learner.dismiss()
    return row


def _name_of(reward: RewardFunction | None) -> str | None:
    """Return the name of a reward function, or of the class of an object that is called."""
    if reward is None:
        return None
    named = reward if hasattr(reward, "__qualname__") else type(reward)
    return f"{named.__module__}.{named.__qualname__}"
