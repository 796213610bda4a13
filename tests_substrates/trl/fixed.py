"""The fixed case of all substrates, through a real GRPOTrainer: its rollouts are given, its optimizer step is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import one_gradient
import torch
from datasets import Dataset
from one_gradient import Case
from torch import Tensor
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig

from composer_replication.config import LossConfig, RlvrConfig
from composer_replication.loss import LossComponents, compose_loss
from composer_replication.loss.batch import collate
from composer_replication.recipes.trl.composer_trainer import ComposerReplicationTrainer
from composer_replication.recipes.trl.step_signals import StepSignals


def rollouts(case: Case, *, logprobs: bool = True) -> Callable[..., dict[str, Any]]:
    def roll(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        rank = trainer.accelerator.process_index
        found = case.trajectories[rank * len(prompts) : (rank + 1) * len(prompts)]
        rows = [[(i, own, lp) for t in one.turns for i, own, lp in _tokens(t)] for one in found]
        return {
            "prompt_ids": [list(one.prompt_ids) for one in found],
            "completion_ids": [[i for i, _, _ in row] for row in rows],
            "env_mask": [[own for _, own, _ in row] for row in rows],
            "logprobs": [[lp for _, _, lp in row] for row in rows] if logprobs else None,
        }

    return roll


def _tokens(turn: Any) -> list[tuple[int, int, float]]:
    own = [(i, 1, lp) for i, lp in zip(turn.action_ids, turn.logprobs, strict=True)]
    return own + [(i, 0, 0.0) for i in turn.observation_ids]


def signals(case: Case) -> Callable[..., StepSignals]:
    def teach(trainer: Any, inputs: list[Any], out: Mapping[str, Tensor]) -> StepSignals:
        start = trainer.accelerator.process_index * len(inputs)
        mine = slice(start, start + len(inputs))
        here = case.trajectories[mine]
        names = {t.trajectory_id for t in here}
        hinted = [h for h in case.hinted if h.trajectory_id in names]
        batch = collate(here, None, hinted, pad_id=0) if hinted else {}
        advantages = torch.tensor([float("nan") if a is None else a for a in case.advantages[mine]])
        return StepSignals(batch=batch, advantages=advantages)

    return teach


class Gradient(TrainerCallback):
    def __init__(self) -> None:
        self.trainer: Any = None
        self.found: dict[str, Tensor] = {}
        self.logs: dict[str, float] = {}

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.found = one_gradient.gradient_of(self.trainer.model)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        if "loss" in logs:
            self.logs = {name: value for name, value in logs.items() if value is not None}


def make_trainer(
    case: Case, folder: Any, *, ga: int = 1, channels: LossConfig = one_gradient.LOSS, **given: Any
) -> tuple[ComposerReplicationTrainer, Gradient]:
    """A trainer for one step over the case's four trajectories; `config` overrides GRPOConfig's fields."""
    config = {
        "output_dir": str(folder / "out"),
        "max_steps": 1,
        "per_device_train_batch_size": 4 // ga,
        "gradient_accumulation_steps": ga,
        "num_generations": 2,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "max_grad_norm": 0,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "disable_dropout": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
    } | given.pop("config", {})
    look = Gradient()
    trainer = ComposerReplicationTrainer(
        **{
            "model": AutoModelForCausalLM.from_pretrained(case.save(folder / "policy")),
            "args": GRPOConfig(**config),
            "reward_funcs": [lambda completions, **_: [float(i % 2) for i in range(len(completions))]],
            "train_dataset": Dataset.from_list([{"prompt": "seat"}] * 4),
            "processing_class": case.tokenizer,
            "rollout_func": rollouts(case),
            "channels": channels,
            "signals": signals(case),
            "pairs": case.pairs if channels and channels.replay.weight > 0 else (),
            "callbacks": [look],
            **given,
        }
    )
    look.trainer = trainer
    return trainer, look


def own_gradient(case: Case, batch: Mapping[str, Tensor], **rlvr: Any) -> dict[str, Tensor]:
    """`compose_loss`'s on any batch of the case, under `LOSS` with these fields of its `rlvr`."""
    from composer_replication.distillation import make_self_teacher

    case.model.zero_grad()
    options = one_gradient.LOSS.model_copy(update={"rlvr": RlvrConfig(**{**one_gradient.LOSS.rlvr.model_dump(), **rlvr})})
    found: LossComponents = compose_loss(case.model, batch, options, self_teacher=make_self_teacher("frozen", case.model))
    found.total.backward()
    gradient = one_gradient.gradient_of(case.model)
    case.model.zero_grad()
    return gradient
