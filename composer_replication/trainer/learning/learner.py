"""One optimizer step: micro-batches through `compose_loss`, clipped gradient, AdamW or Muon.

Several processes that are given the same batches (data parallelism by DDP) share its micro-batches: they take the step that one
alone would take, and know the metrics of the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from composer_replication.config import OptimizerConfig, RunConfig
from composer_replication.distillation import SelfTeacher, TAIDScheduler, make_self_teacher
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import Batch, collate, split
from composer_replication.loss.forward import (
    LogprobCache,
    enable_checkpointing,
    evaluating,
    fallbacks,
    in_lockstep,
    sequence_logprobs,
    update_mode,
)
from composer_replication.policy_gradient import kl_k1_penalty
from composer_replication.trainer.learning.optimizers import make_muon
from composer_replication.trainer.learning.reference import PolicyScorer
from composer_replication.trainer.learning.sharding import load_whole_optimizer, load_whole_weights, on_first_rank, shard, whole
from composer_replication.types import Trajectory
from composer_replication.types.errors import ModelError


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one optimizer step."""

    metrics: Mapping[str, float]
    off: Mapping[str, str]
    """Channels that had nothing to say in this batch, and why."""


class _MicroBatch(NamedTuple):
    """Figures of a micro-batch after its backward pass."""

    metrics: Mapping[str, float]
    off: Mapping[str, str]
    total: float


class Learner:
    """Everything that the optimizer touches: policy, optimizer, warm-up, self-teacher, TAID clock and the policy version.

    Args:
        sharded: several processes share the weights out among themselves (FSDP2); otherwise each has all of them (DDP). The
            self-teacher and the reference are whole in each. One process alone shards nothing.
    """

    def __init__(
        self, model: nn.Module, config: RunConfig, pair_logprobs: LogprobCache | None = None, *, sharded: bool = False
    ) -> None:
        self.config = config
        self.pair_logprobs = pair_logprobs or LogprobCache()
        """The reference's, of every answer of a preference pair."""
        if config.optimizer.gradient_checkpointing:
            enable_checkpointing(model)
        self.accelerator = Accelerator(cpu=next(model.parameters()).device.type == "cpu")
        model.to(self.accelerator.device)  # before copies of it are made: each process has its device
        self.sharded = sharded and self.accelerator.num_processes > 1
        hint = config.loss.hint
        self.self_teacher = make_self_teacher(hint.self_teacher, model, rate=hint.rate) if hint.weight > 0 else None
        self.reference: SelfTeacher | None = None
        if config.loss.rlvr.kl_beta > 0 or config.reward.kl_weight > 0:
            frozen = self.self_teacher if hint.self_teacher == "frozen" else None  # the same weights: one copy, saved once
            self.reference = frozen or make_self_teacher("frozen", model)
        self.step_logprobs = LogprobCache(most=1024)
        """The reference's, of the present step's trajectories: the KL in the reward and the one in the loss read the same."""
        if self.sharded:
            shard(model)  # after the copies of it, which are whole, and before the optimizer, which looks after shards
        optimizer, self.schedule = make_optimizer(model, config)
        if self.sharded:
            self.model, self.optimizer = model, self.accelerator.prepare(optimizer)
        else:
            self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.taid = TAIDScheduler(config.steps) if hint.form == "taid" else None
        self.version = 0
        """Optimizer steps taken."""

    @property
    def policy(self) -> Any:
        """The model without wrappers."""
        return self.accelerator.unwrap_model(self.model)

    @property
    def fallbacks(self) -> Mapping[str, str]:
        """The slow paths that this policy has to take in an update, and why."""
        update_mode(self.policy)
        return fallbacks(self.policy)

    def update(self, batch: Batch) -> StepResult:
        """Take one optimizer step on a whole batch; its micro-batches add up to the gradient of the batch at once."""
        update_mode(self.model)
        self.optimizer.zero_grad()
        size, rank, ranks = self.config.optimizer.micro_batch_size, self.accelerator.process_index, self.accelerator.num_processes
        try:
            mine = [self._backward(part) for part in split(batch, size, rank=rank, ranks=ranks)]
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"the device ran out of memory in step {self.version + 1}: {error}",
                fix="lower optimizer.micro_batch_size, then rollout.trajectory_tokens",
            ) from error
        norm = whole(self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.optimizer.max_grad_norm))
        if not torch.isfinite(norm):
            raise ModelError(
                f"the gradient of step {self.version + 1} is not finite; the policy is as it was before the step",
                fix="lower optimizer.learning_rate in a new run, or look at the losses in metrics.jsonl",
            )
        rate = float(self.schedule.get_last_lr()[0])
        self.optimizer.step()
        self.schedule.step()
        self.version += 1
        results: list[_MicroBatch] = gather_object(mine)
        metrics = merge_metrics([part.metrics for part in results])
        if self.self_teacher is not None:
            self.self_teacher.update(self.policy)
        if self.taid is not None:
            metrics["hint/taid_t"] = self.taid.t
            self.taid.update_t(metrics.get("hint/loss", 0.0), global_step=self.version)
        metrics |= {"loss/total": sum(part.total for part in results), "optimizer/grad_norm": float(norm)}
        metrics["optimizer/learning_rate"] = rate
        off = {channel: why for channel, why in results[0].off.items() if all(channel in part.off for part in results)}
        return StepResult(metrics, off)

    @property
    def scorer(self) -> PolicyScorer:
        """Readings of pairs and trajectories by the present policy; no other process waits for its passes."""
        return PolicyScorer(self.policy, self.pair_logprobs)

    def weights(self) -> dict[str, Tensor]:
        """Return whole copies of the policy's weights on the CPU. Every rank has to call this at the same time."""
        return {name: whole(tensor.detach()).cpu().clone() for name, tensor in self.policy.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the policy's weights.

        With sharded weights every rank has to call this at the same time, and the first gets what one process would have.
        """
        apart = None if self.reference is self.self_teacher else self.reference
        optimizer = self.optimizer.state_dict()
        return {
            "optimizer": on_first_rank(optimizer) if self.sharded else optimizer,
            "schedule": self.schedule.state_dict(),
            "version": self.version,
            "taid": None if self.taid is None else self.taid.state_dict(),
            "self_teacher": None if self.self_teacher is None else self.self_teacher.state_dict(),
            "reference": None if apart is None else apart.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned, sharded or not; `weights` are the policy's, whole on every rank."""
        if self.sharded:
            load_whole_weights(self.policy, weights)
            load_whole_optimizer(self.optimizer, state["optimizer"])
        else:
            self.policy.load_state_dict(weights)
            self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.version = state["version"]
        self.step_logprobs.clear()  # the reference may be another now
        for owner, saved in (
            (self.taid, state["taid"]),
            (self.self_teacher, state["self_teacher"]),
            (self.reference, state["reference"]),
        ):
            if owner is not None and saved is not None:
                owner.load_state_dict(saved)

    def skip_to(self, version: int) -> None:
        """Count from a later step, whose weights are loaded: the rate is what the schedule has there."""
        self.version = version
        share = rate_share(self.config.optimizer, self.config.steps, version)
        rates = [base * share for base in self.schedule.base_lrs]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self.schedule.load_state_dict(
            {**self.schedule.state_dict(), "last_epoch": version, "_step_count": version + 1, "_last_lr": rates}
        )

    def _backward(self, part: Batch) -> _MicroBatch:
        parts = compose_loss(
            self.model,
            self._inputs({key: value.to(self.accelerator.device) for key, value in part.items()}),
            self.config.loss,
            taid_t=None if self.taid is None else self.taid.t,
            temperature=self.config.rollout.temperature,
            self_teacher=self.self_teacher,
        )
        self.accelerator.backward(parts.total * self.accelerator.num_processes)  # DDP takes the mean of the processes' gradients
        return _MicroBatch(parts.metrics, parts.off, float(parts.total.detach()))

    def _inputs(self, batch: Batch) -> Batch:
        """Add the log-probs that the options of the policy gradient need to a batch."""
        rlvr = self.config.loss.rlvr
        if rlvr.importance != "none" and "old_logprobs" in batch:
            batch = batch | {"sampler_logprobs": batch["old_logprobs"]}
            del batch["old_logprobs"]  # one update a batch: the policy that scores is the present one
        if rlvr.kl_beta > 0 and "input_ids" in batch:
            batch = batch | {"ref_logprobs": self._reference_logprobs(batch)}
        return batch

    def kl_to_reference(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """Return the k1 estimate, in nats, of each trajectory's KL(policy that sampled it || reference).

        Tokens without a recorded log-prob are left out.
        """
        found: list[float] = []
        for start in range(0, len(trajectories), self.config.optimizer.micro_batch_size):
            some = trajectories[start : start + self.config.optimizer.micro_batch_size]
            batch = collate(some, [0.0] * len(some), pad_id=0, device=self.accelerator.device)
            reference = self._reference_logprobs(batch)
            found += kl_k1_penalty(batch["old_logprobs"], reference, batch["rlvr_weights"]).tolist()
        return found

    def _reference_logprobs(self, batch: Batch) -> Tensor:
        """Return log-probs [B, T] of the sampled tokens under the reference."""
        assert self.reference is not None
        (part,) = self.reference.parts(self.policy)
        temperature = self.config.rollout.temperature

        def score(ids: Tensor, mask: Tensor, wanted: Tensor) -> Tensor:
            with evaluating(part.model), part.context():
                return sequence_logprobs(part.model, ids, mask, wanted, temperature)

        rows = batch["input_ids"], batch["attention_mask"], batch["response_mask"]
        if in_lockstep(part.model):  # what is known must not decide how many passes a rank makes
            return score(*rows)
        return self.step_logprobs.logprobs(score, "the reference", *rows, temperature)


def make_optimizer(model: nn.Module, config: RunConfig) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    """Return the optimizer that `config.optimizer` names, over a model's parameters, and the schedule of its rate."""
    options = config.optimizer
    lr, betas, decay = options.learning_rate, options.betas, options.weight_decay
    optimizer: torch.optim.Optimizer
    if options.type == "muon":
        optimizer = make_muon(model, lr=lr, betas=betas, weight_decay=decay)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=betas, weight_decay=decay)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate_share, options, config.steps))


def rate_share(config: OptimizerConfig, steps: int, taken: int) -> float:
    """Return the share of the learning rate for the step after `taken` of `steps`."""
    warm = min(1.0, (taken + 1) / (config.warmup_steps + 1))
    return warm if config.schedule == "constant" else warm * max(0.0, 1.0 - taken / steps)


def merge_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge metrics of micro-batches as `LossComponents.metrics` describes: sums, maxima, means weighted by counts."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        found = [(part[name], _count(name, part)) for part in parts if name in part]
        if name.endswith("/max"):
            merged[name] = max(value for value, _ in found)
        elif name.endswith(("/loss", "/tokens", "/pairs")):
            merged[name] = sum(value for value, _ in found)
        else:
            merged[name] = sum(value * count for value, count in found) / max(1.0, sum(count for _, count in found))
    return merged


def _count(name: str, part: Mapping[str, float]) -> float:
    """Return the number of tokens or pairs that a mean of this micro-batch is over."""
    channel = name.partition("/")[0]
    return part.get(f"{channel}/tokens", part.get(f"{channel}/pairs", 1.0))
