"""Fine-tuning on demonstrations that pass their tests, before RL."""

from __future__ import annotations

import hashlib
import marshal
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.loss.forward import LogprobCache
from composer_replication.observe import Phase
from composer_replication.observe.summary import SummaryRow
from composer_replication.rollouts.protocol import Budgets
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.open_run import decisive
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
        given = context.reward if config.reward.function is None else None
        made_of |= {**trainer.fingerprint, **({} if given is None else {"scored by": identity_of(given)})}
        folder = folder_of(context.run_dir.path / "demonstrations", arm, made_of)
        await learn_from_demonstrations(trainer).gather(sources, folder)
        row = await train_arm(trainer, shown, callbacks)
    trainer.learner.dismiss()
    return row


def identity_of(reward: Any) -> str:
    """Return what tells a reward function from others, in another process too: its name, code, defaults and what it closes over.
    Of an object that is called nothing does, and each is one of its own."""
    if isinstance(reward, partial):
        return f"{identity_of(reward.func)}{reward.args}{reward.keywords}"
    if isinstance(reward, BuiltinFunctionType):
        return f"{reward.__module__}.{reward.__qualname__}"
    if not isinstance(reward, FunctionType):
        return uuid.uuid4().hex
    code, closed = reward.__code__, [cell.cell_contents for cell in reward.__closure__ or ()]
    body = hashlib.sha256(marshal.dumps(code)).hexdigest()
    return f"{reward.__module__}.{reward.__qualname__} {body} {reward.__defaults__} {closed}"
