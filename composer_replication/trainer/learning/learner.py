"""A step on a batch of rollouts: micro-batches through `compose_loss`, clipped gradient, AdamW or Muon, once or several times.

With several updates a batch, ratios are taken to the policy before the first of them, and an importance correction bridges from
there to the engine that sampled (decoupled PPO: Hilton et al., arXiv:2110.00641; AReaL, arXiv:2505.24298).

Several processes that are given the same batches (data parallelism by DDP) share its micro-batches: they take the step that one
alone would take, and know the metrics of the whole batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, gather_object
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from composer_replication.config import LossConfig, RunConfig
from composer_replication.distillation import SelfTeacher, make_self_teacher
from composer_replication.loss import compose_loss
from composer_replication.loss.batch_keys import OF_ALL_PAIRS, UNMATCHED_KEYS, Batch
from composer_replication.loss.forward import (
    LogprobCache,
    checkpointing_options,
    compute_dtype,
    enable_checkpointing,
    evaluating,
    fallbacks,
    in_lockstep,
    router_balance,
    sequence_logprobs,
    update_mode,
    whole_weights,
    why_no_tree,
)
from composer_replication.loss.forward.adapters import load_policy_weights
from composer_replication.loss.forward.model_checkpoint import Snapshot, load_checkpoint
from composer_replication.loss.forward.models import resolve_checkpointing
from composer_replication.loss.metrics import merge_updates
from composer_replication.loss.micro_batches import mini_batches, pairs_apart, split, tokens_of, without_idle_rows
from composer_replication.trainer.learning.channel_gradients import channel_gradients, channels_in
from composer_replication.trainer.learning.controls import Controls
from composer_replication.trainer.learning.followers import TIMEOUT, Followers, on_all_ranks, on_all_ranks_if_sharded
from composer_replication.trainer.learning.gradient import clip_gradient
from composer_replication.trainer.learning.memory import forget_peak, give_memory_back, peak_gib, saying_what_to_lower
from composer_replication.trainer.learning.reference import PolicyScorer, with_unmatched
from composer_replication.trainer.learning.results import MicroBatch, StepResult, merged
from composer_replication.trainer.learning.scheduled import ScheduledOptimizer
from composer_replication.trainer.learning.scores import (
    kl_to_reference,
    kto_divergence,
    proximal_logprobs,
    reference_logprobs,
    rejected_likelihoods,
    teacher_sums,
)
from composer_replication.trainer.learning.sharding import load_whole_weights, shard, whole
from composer_replication.trainer.learning.utilisation import utilisation
from composer_replication.types import Pair, Trajectory
from composer_replication.types.errors import ModelError


class Learner:
    """Everything that the optimizer touches: policy, optimizer, warm-up, self-teacher, TAID clock and the policy version.

    Args:
        sharded: the weights are sharded among several processes (FSDP2); otherwise each has all of them (DDP). The
            self-teacher and the reference are whole in each. One process alone shards nothing.
    """

    def __init__(
        self, model: nn.Module, config: RunConfig, pair_logprobs: LogprobCache | None = None, *, sharded: bool = False
    ) -> None:
        self.config = config
        self.pair_logprobs = pair_logprobs or LogprobCache()
        """The reference's, of every answer of a preference pair."""
        if resolve_checkpointing(config, model):
            enable_checkpointing(model, **checkpointing_options(model))
        self.accelerator = Accelerator(
            cpu=next(model.parameters()).device.type == "cpu",
            mixed_precision="no",  # the model knows how precisely it computes
            kwargs_handlers=[InitProcessGroupKwargs(timeout=TIMEOUT)],
        )
        model.to(self.accelerator.device)  # before copies of it are made: each process has its device
        self.sharded = sharded and self.accelerator.num_processes > 1
        hint = config.loss.hint
        copied: dict[str, Any] = {"rounded_to": compute_dtype(model), "on_cpu": config.model.frozen_copies == "cpu"}
        self.self_teacher = make_self_teacher(hint.self_teacher, model, rate=hint.rate, **copied) if hint.weight > 0 else None
        self.reference: SelfTeacher | None = None
        if config.loss.rlvr.kl_beta > 0 or config.reward.kl_weight > 0:
            frozen = self.self_teacher if hint.self_teacher == "frozen" else None  # the same weights: one copy, saved once
            self.reference = frozen or make_self_teacher("frozen", model, **copied)
        self.step_logprobs = LogprobCache(most=1024)
        """The reference's, of the present step's trajectories: the KL in the reward and the one in the loss read the same."""
        if self.sharded:
            shard(model)  # after the copies of it, which are whole, and before the optimizer, which looks after shards
        made = partial(ScheduledOptimizer, self.accelerator, model, steps=config.steps, sharded=self.sharded)
        self.scheduled, rate = made(config.optimizer), config.loss.replay.learning_rate
        self.of_pairs = None if rate is None else made(config.optimizer.model_copy(update={"learning_rate": rate}))
        """Takes the steps on pairs where they have a learning rate to themselves."""
        self.model = model if self.sharded else self.accelerator.prepare_model(model)
        self.controls = Controls.of(config)
        self.version = 0
        """Steps taken: batches of rollouts that were learned from."""
        self.followers: Followers | None = None
        """Other processes that do what this learner does."""

    def lead(self) -> None:
        """Open the channel to the other processes, if there are any, each of which calls `follow` at the same time."""
        if self.accelerator.num_processes > 1:
            self.followers = Followers()

    def follow(self) -> None:
        """Do what the first process's learner does, until it dismisses this one."""
        Followers().follow(self)

    def dismiss(self) -> None:
        """Tell the followers that the arm is done."""
        if self.followers is not None:
            self.followers.dismiss()

    @property
    def optimizer(self) -> Any:
        """The optimizer as accelerate wraps it."""
        return self.scheduled.optimizer

    @property
    def policy(self) -> Any:
        """The model without wrappers."""
        return self.accelerator.unwrap_model(self.model)

    @on_all_ranks_if_sharded
    def fallbacks(self) -> Mapping[str, str]:
        """Return the slow paths that this policy has to take in an update, and why."""
        update_mode(self.policy)
        return fallbacks(self.policy)

    @on_all_ranks
    def update(self, batch: Batch) -> StepResult:
        """Learn from a whole batch; micro-batches add up to the gradient of a batch at once."""
        began = time.monotonic()
        forget_peak(self.accelerator.device)
        loss = self.controls.options(self.config.loss)
        update_mode(self.model)
        taught = without_idle_rows(batch, loss.rlvr)
        taught |= {"router_share": torch.ones(())} if router_balance(self.model) > 0 else {}
        with saying_what_to_lower(f"learning in step {self.version + 1}", self.config):
            unmatched = {key: taught.pop(key) for key in UNMATCHED_KEYS if key in taught}
            if loss.replay.variant == "kto" and loss.replay.weight > 0 and "dpo_weights" in taught:
                budget = self.config.optimizer.micro_batch_tokens
                taught[OF_ALL_PAIRS] = kto_divergence(self.policy, unmatched, budget, self.accelerator.device)
            measured = time.monotonic()
            watched = self._watched(taught, loss)
            began += time.monotonic() - measured  # what is measured on the way is no part of the update
            parts = [(self._cut(mini), scheduled) for mini, scheduled in self._minis(taught)]
            updates = [self._optimizer_step(*some, loss) for _ in range(self.config.optimizer.epochs) for some in parts]
        self.optimizer.zero_grad()  # a server may need the memory until the next update
        learning_rate = self.scheduled.rate
        self.scheduled.schedule.step()
        self.version += 1
        if self.of_pairs is not None:
            self.of_pairs.skip_to(self.version)  # there may have been no pairs to step on
        kinds = [scheduled for _ in range(self.config.optimizer.epochs) for _, scheduled in parts]
        metrics = merge_updates([update.metrics for update in updates], kinds) | watched
        if "dropped_tokens" in batch:
            metrics["rlvr/dropped/tokens"] = float(batch["dropped_tokens"])
        if self.self_teacher is not None:
            self.self_teacher.update(self.policy)
        metrics |= self.controls.follow(metrics, self.version)
        counts: list[int] = gather_object([tokens_of([part for some, _ in parts for part in some])])
        tokens = self.config.optimizer.epochs * sum(counts)
        rate_of_tokens = tokens / (time.monotonic() - began)
        metrics |= {
            "optimizer/learning_rate": learning_rate,
            "optimizer/updates": float(len(updates)),
            "optimizer/tokens": float(tokens),
            "optimizer/positions_per_token": len(updates) * metrics.pop("optimizer/positions") / max(1, tokens),
            "time/optimizer_s": len(updates) * metrics["time/optimizer_s"],
            "memory/peak_gib": max(gather_object([peak_gib(self.accelerator.device)])),
            "time/update_tokens_per_s": rate_of_tokens,
            "time/update_utilisation": utilisation(self.policy, rate_of_tokens, int(self.accelerator.num_processes)),
        }
        off = {channel: why for channel, why in updates[0].off.items() if all(channel in one.off for one in updates)}
        return StepResult(metrics, off)

    def _minis(self, taught: Batch) -> list[tuple[Batch, ScheduledOptimizer]]:
        """Return the mini-batches of a step, each with the optimizer that steps on it: pairs that have a learning rate to
        themselves are the last one."""
        count = self.config.optimizer.mini_batches
        if self.of_pairs is None:
            return [(mini, self.scheduled) for mini in mini_batches(taught, count, seed=self.version)]
        rows, pairs = pairs_apart(taught)
        found = [(mini, self.scheduled) for mini in mini_batches(rows, count, seed=self.version)]
        return [*found, (pairs, self.of_pairs)] if pairs else found

    def _optimizer_step(self, parts: Sequence[Batch], scheduled: ScheduledOptimizer, loss: LossConfig) -> StepResult:
        """Take one optimizer step on this rank's micro-batches. Raises ModelError when the gradient is not finite.

        Where nothing is taught every gradient is 0 and none is missing: momentum and weight decay act as on several processes,
        whose made-up inputs reach every weight.
        """
        scheduled.optimizer.zero_grad()
        mine = self._passes(parts, loss)
        began = time.monotonic()
        if all(part.off.keys() == LossConfig.model_fields.keys() for part in mine):
            for parameter in self.model.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        norm = clip_gradient(self.accelerator, self.model, self.config.optimizer.max_grad_norm)
        if not torch.isfinite(norm):
            raise ModelError(
                f"the gradient of step {self.version + 1} is not finite; the policy is as it was before this update",
                fix="lower optimizer.learning_rate in a new run, or look at the losses in metrics.jsonl",
            )
        scheduled.optimizer.step()
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize(self.accelerator.device)  # the step that is timed is over
        optimizer_s = time.monotonic() - began
        result = merged(gather_object(mine), grad_norm=float(norm))
        return StepResult({**result.metrics, "time/optimizer_s": optimizer_s}, result.off)

    def _cut(self, batch: Batch) -> list[Batch]:
        """Return this rank's micro-batches."""
        parallel = {"rank": self.accelerator.process_index, "ranks": self.accelerator.num_processes}
        shares, tokens = why_no_tree(self.model) is None, self.config.optimizer.micro_batch_tokens
        return [self._inputs(part) for part in split(batch, tokens, shared_prefixes=shares, **parallel)]

    def _watched(self, batch: Batch, loss: LossConfig) -> dict[str, float]:
        """Measure what no update needs, in a step where it is due: rejected answers that the loss does not read, and the
        channels' gradients where there is more than one."""
        optimizer, channels = self.config.optimizer, channels_in(batch, loss)
        if optimizer.channel_gradients_every == 0 or self.version % optimizer.channel_gradients_every:
            return {}
        unread, budget = "replay" in channels and not loss.replay.compares, optimizer.micro_batch_tokens
        found = rejected_likelihoods(self.policy, batch, budget, self.accelerator.device) if unread else {}
        if len(channels) < 2:
            return found
        return found | channel_gradients(self.model, self._cut(batch), loss, channels, self._passes, sharded=self.sharded)

    def _passes(self, parts: Sequence[Batch], loss: LossConfig) -> list[MicroBatch]:
        """Add up the gradient of this rank's micro-batches. The last one adds up those of the processes too; shares of weights
        (FSDP2) are summed by each, as whole gradients would have to be kept otherwise."""
        found = []
        for number, part in enumerate(parts, start=1):
            later = number < len(parts)
            with self.model.no_sync() if later and isinstance(self.model, DistributedDataParallel) else nullcontext():
                found.append(self._backward(part, loss))
        return found

    @on_all_ranks_if_sharded
    def with_reference_logprobs(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Score as `PolicyScorer.with_reference_logprobs`."""
        given = with_unmatched(pairs) if self.config.loss.replay.variant == "kto" else pairs
        return PolicyScorer(self.policy, self.pair_logprobs).with_reference_logprobs(given)

    @on_all_ranks_if_sharded
    def action_entropies(self, trajectories: Sequence[Trajectory]) -> dict[str, list[float | None]]:
        """Read as `PolicyScorer.action_entropies`."""
        return PolicyScorer(self.policy, self.pair_logprobs).action_entropies(trajectories)

    @on_all_ranks_if_sharded
    def logprobs(self, ids: Tensor, wanted: Tensor) -> Tensor:
        """Return log-probs [B, T] of the `wanted` tokens of `ids` [B, T] under the present policy, at temperature 1."""
        device = self.accelerator.device
        with evaluating(self.policy), saying_what_to_lower("scoring answers", self.config):
            return sequence_logprobs(self.policy, ids.to(device), None, wanted.to(device))

    @on_all_ranks_if_sharded
    def teacher_logprobs(self, ids: Tensor, mask: Tensor, wanted: Tensor) -> Tensor:
        """Score as `scores.teacher_sums`, tensors of any device."""
        assert self.self_teacher is not None
        ids, mask, wanted = (tensor.to(self.accelerator.device) for tensor in (ids, mask, wanted))
        with saying_what_to_lower("scoring hints", self.config):
            return teacher_sums(self.self_teacher, self.policy, ids, mask, wanted)

    @on_all_ranks_if_sharded
    def kl_to_reference(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """Score as `scores.kl_to_reference`."""
        assert self.reference is not None
        options: dict[str, Any] = {"temperature": self.config.rollout.temperature, "known": self.step_logprobs}
        options["tokens"] = self.config.optimizer.micro_batch_tokens
        with saying_what_to_lower("reading the reference", self.config):
            return kl_to_reference(self.reference, self.policy, trajectories, **options)

    @on_all_ranks
    def give_memory_back(self) -> None:
        """Give memory that no tensor uses back to the GPU of every process (`memory.give_memory_back`)."""
        give_memory_back()

    @on_all_ranks
    def snapshot(self) -> Snapshot:
        """Return what a checkpoint holds."""
        return Snapshot(self.gathered_weights(), self.state_dict())

    @on_all_ranks_if_sharded
    def gathered_weights(self) -> Mapping[str, Tensor] | None:
        """Return the policy's whole weights on the first rank where it is sharded; None where each rank has all of them."""
        return whole_weights(self.policy) if self.sharded else None

    @on_all_ranks
    def restore(self, folder: Path) -> None:
        """Go back to the checkpoint in a folder that every process sees."""
        load_checkpoint(folder, self)

    def weights(self) -> dict[str, Tensor]:
        """Return whole copies of the policy's weights on the CPU. Every rank has to call this at the same time."""
        return {name: whole(tensor.detach()).cpu().clone() for name, tensor in self.policy.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the policy's weights.

        With sharded weights every rank has to call this at the same time, and the first gets what one process would have.
        """
        apart = None if self.reference is self.self_teacher else self.reference
        return {
            **self.scheduled.state_dict(),
            "of_pairs": None if self.of_pairs is None else self.of_pairs.state_dict(),
            "version": self.version,
            **self.controls.state_dict(),
            "self_teacher": None if self.self_teacher is None else self.self_teacher.state_dict(),
            "reference": None if apart is None else apart.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned, sharded or not; `weights` are the policy's, whole on every rank."""
        if self.sharded:
            load_whole_weights(self.policy, weights)
        else:
            load_policy_weights(self.policy, weights)
        self.scheduled.load_state_dict(state)
        if self.of_pairs is not None and state.get("of_pairs") is not None:
            self.of_pairs.load_state_dict(state["of_pairs"])
        self.version = state["version"]
        self.controls.load_state_dict(state)
        for owner, saved in (
            (self.self_teacher, state["self_teacher"]),
            (self.reference, state["reference"]),
        ):
            if owner is not None and saved is not None:
                owner.load_state_dict(saved)

    def skip_to(self, version: int) -> None:
        """Count from a later step, whose weights are loaded: the rate is what the schedule has there."""
        self.version = version
        for scheduled in (self.scheduled, self.of_pairs):
            if scheduled is not None:
                scheduled.skip_to(version)

    def _backward(self, part: Batch, loss: LossConfig) -> MicroBatch:
        ranks = self.accelerator.num_processes
        parts = compose_loss(
            self.model,
            part,
            loss,
            taid_t=self.controls.taid_t,
            temperature=self.config.rollout.temperature,
            self_teacher=self.self_teacher,
        )
        self.accelerator.backward(parts.total * ranks)  # DDP takes the mean of the processes' gradients
        pulls = {channel: pull.square / ranks**2 for channel, pull in parts.pulls.items()}
        return MicroBatch(parts.metrics, parts.off, float(parts.total.detach()), pulls, parts.positions)

    def _inputs(self, part: Batch) -> Batch:
        """Put a micro-batch on the device, but for its experts, with the log-probs that the policy gradient's options need."""
        rlvr, device = self.config.loss.rlvr, self.accelerator.device
        part = {key: value if key == "routed_experts" else value.to(device) for key, value in part.items()}
        if rlvr.importance != "none":
            if "old_logprobs" in part:
                part["sampler_logprobs"] = part.pop("old_logprobs")  # the policy that scores is the present one
            if self.config.optimizer.updates > 1:
                part |= self._scored("old_logprobs", part, self.policy, self._proximal_logprobs)
        if rlvr.kl_beta > 0:
            assert self.reference is not None
            (reference,) = self.reference.parts(self.policy)
            part |= self._scored("ref_logprobs", part, reference.model, self._reference_logprobs)
        return part

    def _proximal_logprobs(self, batch: Batch) -> Tensor:
        return proximal_logprobs(self.policy, batch, self.config.rollout.temperature)

    def _reference_logprobs(self, batch: Batch) -> Tensor:
        assert self.reference is not None
        return reference_logprobs(self.reference, self.policy, batch, self.config.rollout.temperature, self.step_logprobs)

    def _scored(self, key: str, part: Batch, model: nn.Module, score: Callable[[Batch], Tensor]) -> Batch:
        """Return the scores of a micro-batch's rows under `key`. A rank without rows makes the pass too where it is
        collective."""
        if "input_ids" in part:
            return {key: score(part)}
        if in_lockstep(model):
            made = torch.ones((1, 2), dtype=torch.int64, device=self.accelerator.device)
            score({"input_ids": made, "attention_mask": made, "response_mask": made.cumsum(-1) - 1})
        return {}
