"""verl's FSDP engine with three channels in one optimizer step.

The first channel is verl's own path: its forward pass, its log-probs, the policy loss `composer`, and the KL to the reference
where there is one. The hint channel reads the same forward pass at the error turns and adds its loss to it; the preference pairs
follow in separate passes before the optimizer steps. Both are `loss.channels`' functions on tensors made of the micro-batch
(`columns`); every denominator is that of the whole batch on all ranks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from composer_replication.distillation import SelfTeacher, TAIDScheduler, make_self_teacher
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.channels.dummy_inputs import with_dummy_inputs
from composer_replication.loss.channels.hint import hint_channel
from composer_replication.loss.channels.replay import pair_rows, replay_channel
from composer_replication.loss.forward import Forward, in_lockstep, read_rows, update_mode
from composer_replication.loss.metrics import merge_metrics
from composer_replication.loss.micro_batches import split
from composer_replication.recipes.verl.columns import Row, hint_batch, rows_of
from composer_replication.recipes.verl.plan import ArmPlan
from composer_replication.recipes.verl.policy_loss import kl_loss
from composer_replication.trainer.learning.optimizers import rate_share
from composer_replication.types.errors import ModelError

_DENOMINATOR = "composer_hint_denominator"
"""In the micro-batches of a training step: the whole batch's. Passes that only score have none, and no hint channel."""
_PART = "composer"
"""Key of a micro-batch's metrics that holds those of our channels."""


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cuda", vendor="nvidia")
@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")
class ComposerEngine(FSDPEngineWithLMHead):
    """The policy's engine of a run of ours (`ArmPlan.required`); engines that only score are verl's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.plan = ArmPlan.required()
        self.loss = self.plan.config.loss
        self.self_teacher: SelfTeacher | None = None
        self.taid = TAIDScheduler(self.plan.config.steps) if self.loss.hint.form == "taid" else None

    # --- building

    def _build_fsdp_module(self, module: nn.Module) -> nn.Module:
        hint = self.loss.hint
        if self.engine_config.forward_only or hint.weight == 0:
            unchanged: nn.Module = super()._build_fsdp_module(module)
            return unchanged
        whole = module if hint.self_teacher == "live" else copy.deepcopy(module)  # before it is sharded
        sharded: nn.Module = super()._build_fsdp_module(module)
        if whole is not module:
            _from_first_rank(whole)
        self.self_teacher = make_self_teacher(hint.self_teacher, whole, rate=hint.rate)
        return sharded

    def _build_lr_scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        config = self.plan.config
        return torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate_share, config.optimizer, config.steps))

    def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        super().save_checkpoint(local_path, *args, **kwargs)
        state = {name: owner.state_dict() for name, owner in self._owners().items()}
        torch.save(state, _state_path(local_path))

    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        state = torch.load(_state_path(local_path), map_location="cpu", weights_only=True)
        for name, owner in self._owners().items():
            owner.load_state_dict(state[name])
        super().load_checkpoint(local_path, *args, **kwargs)

    def _owners(self) -> dict[str, Any]:
        """Return the objects whose state has to be saved: other self-teachers are made again from the starting policy."""
        moving = self.self_teacher if self.loss.hint.self_teacher == "ema" else None
        owners = {"self_teacher": moving, "taid": self.taid}
        return {name: owner for name, owner in owners.items() if owner is not None}

    # --- one step

    def train_batch(self, data: Any, loss_function: Callable[..., Any]) -> dict[str, Any]:
        """Take one optimizer step on this rank's share of a batch. Raises ModelError when the gradient is not finite."""
        update_mode(self.module)
        rows = rows_of(data)
        self._count(data, rows)
        self.optimizer_zero_grad()
        outputs: dict[str, Any] = self.forward_backward_batch(data, partial(_add_ours, loss_function))
        parts = outputs["metrics"].pop(_PART) + self._pairs(rows)
        norm = self.optimizer_step()
        if not math.isfinite(norm):
            raise ModelError("the gradient is not finite", fix="lower optimizer.learning_rate in a new run")
        metrics = merge_metrics([part for each in self._gathered(parts) for part in each])
        for name, held in (("hint/turns", False), ("hint/held", True)):
            metrics[name] = float(sum(self._gathered(sum(hint.held is held for row in rows for hint in row.hints))))
        self._follow(metrics)
        weights = {"rlvr": 1.0, "hint": self.loss.hint.weight, "replay": self.loss.replay.weight}
        total = sum(weight * metrics.get(f"{name}/loss", 0.0) for name, weight in weights.items())
        metrics |= {"loss/total": total, "optimizer/learning_rate": float(self.lr_scheduler.get_last_lr()[0])}
        outputs["metrics"] |= {name: [value] for name, value in metrics.items()}
        outputs["metrics"]["grad_norm"] = norm
        return outputs

    def _count(self, data: Any, rows: list[Row]) -> None:
        """Put the whole batch's denominators into `data`: that of hints, and verl's number of sequences without those that are
        not in the loss."""
        lengths = [len(hint.action_ids) for row in rows for hint in row.hints]
        mine = float(len(lengths) if self.loss.hint.reduction == "turn" else sum(lengths))
        scored = sum(bool(mask.any()) for mask in data["response_mask"].unbind())
        tu.assign_non_tensor(data, **{_DENOMINATOR: sum(self._gathered(mine))})
        tu.assign_non_tensor(data, global_batch_size=max(1, sum(self._gathered(scored))))

    def _gathered(self, value: Any) -> list[Any]:
        """Return the value of every data-parallel rank, in their order."""
        found: list[Any] = [None] * self.get_data_parallel_size()
        dist.all_gather_object(found, value, group=self.get_data_parallel_group())
        return found

    def _follow(self, metrics: dict[str, float]) -> None:
        """Let self-teacher and TAID's clock follow a step."""
        if self.self_teacher is not None:
            self.self_teacher.update(self.module)
        if self.taid is not None:
            metrics["hint/taid_t"] = self.taid.t
            self.taid.update_t(metrics.get("hint/loss", 0.0), global_step=self.lr_scheduler.last_epoch + 1)

    # --- hints

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, Any]:
        found: dict[str, Any] = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        if _DENOMINATOR in micro_batch:
            found[_PART] = self._hints(output.logits, micro_batch)
        return found

    def _hints(self, logits: Tensor, micro_batch: Any) -> tuple[Tensor | None, dict[str, float]]:
        """Return the hint channel's part of a micro-batch, times its weight and the number of ranks, and its metrics."""
        weight, ids = self.loss.hint.weight, micro_batch["input_ids"]
        denominator = float(micro_batch[_DENOMINATOR])
        if self.self_teacher is None or not denominator:
            return None, {}
        rows = rows_of(micro_batch)
        batch = hint_batch([one.long() for one in ids.unbind()], rows, 0, logits.device)
        hinted = any(row.hints for row in rows)
        if hinted:
            batch["hint_denominator"] = torch.tensor(denominator, device=logits.device)
        elif self._teacher_is_sharded():
            batch = with_dummy_inputs(batch, {"hint"}, {"hint": weight, "replay": 0.0}, logits.device)
        else:
            return None, {}
        packed = tu.get_non_tensor_data(micro_batch, "use_remove_padding", True)
        places = ids.offsets()[:-1, None] + torch.arange(int(ids.offsets().diff().max()), device=logits.device)
        student = Forward(logits, None, places if packed else None)
        taid_t = None if self.taid is None else self.taid.t
        found = hint_channel(self.module, student, None, batch, self.self_teacher, self.loss.hint, taid_t)
        return found.value * self.get_data_parallel_size(), found.metrics if hinted else {}

    def _teacher_is_sharded(self) -> bool:
        """Return whether a pass of the self-teacher waits for the other ranks' passes."""
        assert self.self_teacher is not None
        return any(part.model is self.module for part in self.self_teacher.parts(self.module)) and in_lockstep(self.module)

    # --- pairs

    def _pairs(self, rows: list[Row]) -> list[dict[str, float]]:
        """Run forward and backward passes over all ranks' pairs; return the metrics of this rank's."""
        replay = self.loss.replay
        pairs = {pair.pair_id: pair for mine in self._gathered([p for row in rows for p in row.pairs]) for pair in mine}
        if replay.weight == 0 or not pairs:
            return []
        batch = collate([], None, (), [pairs[name] for name in sorted(pairs)], pad_id=0)
        tokens = ArmPlan.required().config.optimizer.micro_batch_tokens
        shares = split(batch, tokens, rank=self.get_data_parallel_rank(), ranks=self.get_data_parallel_size())
        return [self._pair_part(part) for part in shares]

    def _pair_part(self, part: Batch) -> dict[str, float]:
        replay, device = self.loss.replay, next(self.module.parameters()).device
        part = {key: value.to(device) for key, value in part.items()}
        mine = "dpo_chosen_input_ids" in part
        if not mine:
            part = with_dummy_inputs(part, {"replay"}, {"hint": 0.0, "replay": replay.weight}, device)
        with self._autocast():
            found = replay_channel(read_rows(self.module, pair_rows(part, replay)), part, replay)
        (replay.weight * found.value * self.get_data_parallel_size()).backward()
        return found.metrics if mine else {}

    def _autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context in which verl runs its passes."""
        kind = self._autocast_dtype
        return nullcontext() if kind == torch.float32 else torch.autocast(get_device_name(), dtype=kind)


def _add_ours(loss_function: Callable[..., Any], *, model_output: dict[str, Any], data: Any, dp_group: Any) -> Any:
    """Return verl's loss of a micro-batch plus the KL's and the hint channel's, with the metrics of all."""
    hint, hint_metrics = model_output.pop(_PART)
    loss, metrics = loss_function(model_output=model_output, data=data, dp_group=dp_group)
    ours = {name: metrics.pop(name).aggregate() for name in list(metrics) if name.startswith("rlvr/")}
    kl, kl_metrics = kl_loss(model_output["log_probs"], data)
    kl_metrics["rlvr/loss"] = ours["rlvr/loss"] + kl_metrics.get("rlvr/loss", 0.0)
    metrics[_PART] = ours | kl_metrics | hint_metrics
    return sum((part for part in (kl, hint) if part is not None), loss), metrics


def _from_first_rank(module: nn.Module) -> None:
    """Give `module` the weights that rank 0 has: verl loads them there only."""
    device = torch.device(get_device_name())
    module.to(device) if dist.get_rank() == 0 else module.to_empty(device=device)
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.data, src=0)


def _state_path(folder: str) -> Path:
    return Path(folder) / f"composer_rank_{dist.get_rank()}.pt"
