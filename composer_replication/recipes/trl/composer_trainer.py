"""The hint and replay channels in addition to the loss of TRL's GRPOTrainer, through two of its methods.

`compute_loss` adds the channels to TRL's loss, which is what it was, of any `loss_type`. `_generate_and_score_completions` adds
to TRL's rollouts what they teach, as tensors with one row per sample, so that it goes through TRL's shuffling and splitting.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.trainer_utils import get_last_checkpoint

from composer_replication.config import HintConfig, LossConfig, ReplayConfig
from composer_replication.distillation import SelfTeacher, TAIDScheduler, make_self_teacher
from composer_replication.loss import LossComponents, compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward import (
    Forward,
    LogprobCache,
    compute_dtype,
    evaluating,
    in_lockstep,
    overheard,
    sequence_logprobs,
    unwrapped,
)
from composer_replication.policy_gradient import importance_weights
from composer_replication.recipes.trl.per_sample import gathered, spread, unpadded, with_students
from composer_replication.recipes.trl.step_signals import SignalSource, StepSignals
from composer_replication.recipes.trl.trainer_callback import TeacherCallback, state_path
from composer_replication.trainer.learning.reference import PolicyScorer
from composer_replication.trainer.pairs.held import pairs_of_step
from composer_replication.types import Pair
from composer_replication.types.errors import ConfigError, MissingExtraError

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # what is used of it is held to its contract by our tests
try:
    from trl import GRPOTrainer
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "ComposerReplicationTrainer needs trl, which is not installed", fix="pip install 'composer-replication[trl]'"
    ) from error

if TYPE_CHECKING:
    from composer_replication.recipes.trl.tool_loop import ToolLoopHints

__all__ = ["ComposerReplicationTrainer", "SignalSource", "StepSignals"]

_PER_SEQUENCE = ("grpo", "sapo", "dr_grpo", "luspo")
"""Loss types whose denominator is the number of rows."""
_SUMS = ("hint/loss", "hint/tokens", "replay/loss", "replay/pairs", "replay/held")
"""Metrics of micro-batches that add up to the step's."""
_ROWS = "composer_rows"
"""Rows of the generation batch for each that is trained on."""


class ComposerReplicationTrainer(GRPOTrainer):
    """`trl.GRPOTrainer` with three channels. Everything that TRL offers for the first one stays as it is.

    Args:
        channels: the run file's `[loss]`. Of `rlvr` only `importance*` is read: the rest is GRPOConfig's. By default the hint
            channel is on where TRL's tool loop works in one of our environments, and the replay channel where pairs are given.
        signals: finds hints, and advantages if TRL's own are not wanted; by default `ToolLoopHints` where `environment_factory`
            is a `CodingEnvironmentFactory`.
        pairs: `channels.replay.pairs_per_step` of them go into every optimizer step, the list read round and round. Those
            without reference log-probs get the starting policy's.

    Log-probs that a `rollout_func` returns are not ignored, as TRL does without vLLM: they are those of the policy that sampled,
    so ratios are taken to them, or, with `channels.rlvr.importance`, tokens are weighted by how much the policy has changed.

    Raises:
        ConfigError: a channel has a weight and nothing feeds it, or an option of GRPOConfig would make it read something else.
    """

    beta: float  # TRL's weight of the KL

    def __init__(
        self,
        *args: Any,
        channels: LossConfig | None = None,
        signals: SignalSource | None = None,
        pairs: Sequence[Pair] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        signals = signals or _tool_loop_hints(kwargs.get("environment_factory"), self, channels)
        self.channels = channels or LossConfig(
            hint=HintConfig(weight=1.0 if signals else 0.0), replay=ReplayConfig(weight=1.0 if pairs else 0.0)
        )
        self.signals = signals
        self.parts: list[LossComponents] = []
        """Metrics of the present step's micro-batches on this process."""
        self.channel_metrics: dict[str, float] = {}
        """Metrics of the last step, merged from them."""
        self.resumed_from: str | None = None
        """The checkpoint that `train` resumes from; None for a new run."""
        self.off: dict[str, str] = {}
        """Channels that had no input in it, and why."""
        self._refuse(pairs)
        hint = self.channels.hint
        self.self_teacher: SelfTeacher | None = None
        if hint.weight > 0:
            with _original_forward(self.model):
                self.self_teacher = make_self_teacher(
                    hint.self_teacher, self.model, rate=hint.rate, rounded_to=compute_dtype(self.model)
                )
        self.taid = TAIDScheduler(self.args.max_steps) if hint.weight > 0 and hint.form == "taid" else None
        self.pairs = list(pairs)
        if self.channels.replay.has_reference and any(
            p.ref_chosen_logprob is None or p.ref_rejected_logprob is None for p in pairs
        ):
            self.pairs = PolicyScorer(self.model, LogprobCache()).with_reference_logprobs(self.pairs)
        self.add_callback(TeacherCallback(self))

    def train(self, resume_from_checkpoint: str | os.PathLike[str] | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as TRL does; a resumed run restores the self-teacher and TAID's clock.

        `True` resumes from the last checkpoint in `output_dir`. Raises CheckpointError when the checkpoint lacks their state.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True  # type: ignore[no-untyped-call]  # without one TRL says so
        self.resumed_from = os.fspath(resume_from_checkpoint) if isinstance(resume_from_checkpoint, str | os.PathLike) else None
        if self.resumed_from is not None and self.state_of_teachers():
            state_path(self.resumed_from)  # before TRL loads anything
        return super().train(self.resumed_from or resume_from_checkpoint, *args, **kwargs)

    # --- the two methods ----------------------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return out
        found = StepSignals() if self.signals is None else self.signals(self, inputs, out)
        for name, value in found.metrics.items():
            self._metrics["train"][name].append(value)
        self._leave_out(out, found.advantages)
        self._correct(out)
        rows = len(out["completion_ids"])
        batch = {key: value.to(self.accelerator.device) for key, value in {**self._step_pairs(), **found.batch}.items()}
        out.update(self._whole(spread(batch, rows)))
        return out

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        if not self.model.training:
            loss: Tensor = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return loss
        listening: AbstractContextManager[list[Forward]] = nullcontext([])
        if self.channels.hint.weight > 0:
            listening = overheard(model)
        with self._kl_of_trained_rows(inputs), listening as heard:
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        batch, student = with_students(gathered(inputs), inputs, heard, whole=in_lockstep(model))
        found = compose_loss(
            model,
            batch,
            self.channels,
            taid_t=None if self.taid is None else self.taid.t,
            self_teacher=self.self_teacher,
            student=student,
        )
        self._note(found, loss)
        return loss + found.total.to(loss.device) * self._share

    def state_of_teachers(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps, without teachers that a resumed run makes again from the starting weights."""
        kept: dict[str, Any] = {}
        if self.self_teacher is not None and self.channels.hint.self_teacher == "ema":
            kept["self_teacher"] = self.self_teacher.state_dict()
        if self.taid is not None:
            kept["taid"] = self.taid.state_dict()
        return kept

    # --- inside -------------------------------------------------------------------------------------------------------------

    @property
    def _share(self) -> float:
        """The factor of a sum over the generation batch's denominators.

        DDP takes the mean over processes, and a generation batch that lasts for several optimizer steps counts once in all of
        them together.
        """
        steps = self.args.steps_per_generation / self.current_gradient_accumulation_steps
        return float(self.accelerator.num_processes * steps)

    def _refuse(self, pairs: Sequence[Pair]) -> None:
        loss, off = self.channels, "set its weight to 0"
        if loss.hint.weight > 0 and self.signals is None:
            raise ConfigError(
                "the hint channel has a weight, and nothing finds hints",
                fix=f"pass signals=, or a CodingEnvironmentFactory as environment_factory=, or {off}",
            )
        if loss.replay.weight > 0 and not pairs:
            raise ConfigError("the replay channel has a weight, and there are no pairs", fix=f"pass pairs=, or {off}")
        if loss.hint.weight > 0 and self.mask_truncated_completions:
            raise ConfigError(
                "mask_truncated_completions hides whole completions from the model, and hints stand in them",
                fix="set it to False: a truncated turn is graded as it is",
            )
        if loss.hint.weight > 0 and loss.hint.form == "taid" and self.args.max_steps <= 0:
            raise ConfigError("loss.hint.form = taid follows the length of the run", fix="set GRPOConfig.max_steps")
        if loss.rlvr.importance != "none" and self.use_vllm:
            raise ConfigError(
                "TRL corrects the mismatch with vLLM itself", fix="set channels.rlvr.importance = 'none', or use_vllm=False"
            )

    def _step_pairs(self) -> Batch:
        """Return this process's part of the pairs for the optimizer steps that a generation batch lasts for."""
        if not self.pairs or self.channels.replay.weight == 0:
            return {}
        accumulated, many = self.args.gradient_accumulation_steps, self.accelerator.num_processes
        steps = max(1, self.args.steps_per_generation // accumulated)
        count = self.channels.replay.pairs_per_step
        taken = [p for i in range(steps) for p in pairs_of_step(self.pairs, self.state.global_step + 1 + i, count)]
        mine = taken[self.accelerator.process_index :: many]
        return collate((), None, (), mine, pad_id=int(self._tokenizer.pad_token_id)) if mine else {}

    def _whole(self, rows: Batch) -> Batch:
        """Return the rows with the denominators summed over all processes."""
        if self.accelerator.num_processes == 1:
            return rows
        names = ("composer_hint_denominator", "composer_replay_denominator")
        none = torch.zeros((), device=self.accelerator.device)
        summed = self.accelerator.reduce(torch.stack([rows.get(name, none) for name in names]), reduction="sum")
        return rows | dict(zip(names, summed, strict=True))

    def _leave_out(self, out: dict[str, Any], advantages: Tensor | None) -> None:
        """Take these advantages, and keep rows without one and tokens without a log-prob out of the policy gradient."""
        sampled = None if self.use_vllm else out.get("sampling_per_token_logps")
        if advantages is None and sampled is None:
            return
        mask = out.get("tool_mask", torch.ones_like(out["completion_mask"]))
        if sampled is not None:
            mask = mask * torch.isfinite(sampled)
            out["sampling_per_token_logps"] = torch.where(mask != 0, sampled, 0.0)
        if advantages is not None:
            advantages = advantages.to(out["advantages"])
            scored = torch.isfinite(advantages)
            mask = mask * scored.unsqueeze(-1)
            out["advantages"] = torch.where(scored, advantages, 0.0)
        if self.loss_type in _PER_SEQUENCE:
            trained = self.accelerator.gather((out["completion_mask"] * mask).any(-1))
            out[_ROWS] = len(trained) / trained.sum().clamp(min=1)
            out["advantages"] = out["advantages"] * out[_ROWS]
        out["tool_mask"] = mask
        out["num_items_in_batch"] = self.accelerator.gather((out["completion_mask"] * mask).sum()).sum()

    @contextmanager
    def _kl_of_trained_rows(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Scale the KL's weight as advantages are scaled: TRL's mean over rows counts rows that are left out."""
        beta = self.beta
        self.beta = beta * float(inputs.get(_ROWS, 1.0))
        try:
            yield
        finally:
            self.beta = beta

    def _correct(self, out: dict[str, Any]) -> None:
        """Correct for log-probs that another policy than the present one has given."""
        rlvr, sampled = self.channels.rlvr, None if self.use_vllm else out.get("sampling_per_token_logps")
        if rlvr.importance == "none":
            if sampled is not None:
                out["old_per_token_logps"] = sampled
            return
        if sampled is None:
            raise ConfigError(
                f"channels.rlvr.importance = {rlvr.importance} needs the log-probs of what was sampled",
                fix="return them as `logprobs` from rollout_func, or set it to 'none'",
            )
        scored = self._present_logprobs(out) if out.get("old_per_token_logps") is None else out["old_per_token_logps"]
        mask = out["completion_mask"] * out.get("tool_mask", 1)
        row, column = mask.nonzero(as_tuple=True)
        used = importance_weights(
            scored[row, column],
            sampled[row, column],
            rlvr.importance,
            low=rlvr.importance_low,
            high=rlvr.importance_high,
            sequence=row if rlvr.importance_level == "sequence" else None,
        )
        weights = torch.zeros_like(scored).index_put((row, column), used.to(scored))
        out["advantages"] = out["advantages"].unsqueeze(-1) * weights
        if used.numel():
            self._metrics["train"]["rlvr/importance/mean"].append(used.mean().item())
            self._metrics["train"]["rlvr/importance/max"].append(used.max().item())

    def _present_logprobs(self, out: Mapping[str, Tensor]) -> Tensor:
        """Return log-probs [B, C] of the completions under the present policy, 0 where nothing is trained on."""
        ids, attended, _ = unpadded(out)
        size, width = self.args.per_device_train_batch_size, out["completion_ids"].shape[1]
        columns = torch.arange(width, device=ids.device) + out["prompt_mask"].sum(-1, keepdim=True)
        trained = (out["completion_mask"] * out.get("tool_mask", 1)) != 0
        inside = columns.clamp(max=ids.shape[1] - 1)
        wanted = torch.zeros_like(ids).scatter_add(1, inside, trained.long())
        model = self.accelerator.unwrap_model(self.model)
        with evaluating(model):
            found = [
                sequence_logprobs(model, ids[some], attended[some], wanted[some], self.temperature)
                for some in (slice(i, i + size) for i in range(0, len(ids), size))
            ]
        return torch.where(trained, torch.cat(found).gather(1, inside), 0.0)

    def _note(self, found: LossComponents, loss: Tensor) -> None:
        """Add to TRL's metrics, which are means over the micro-batches of a step."""
        share = self._share / self.accelerator.num_processes
        pairs = min(1.0, share)  # generations share a step's pairs
        scale = {"hint/loss": share, "replay/loss": share, "replay/pairs": pairs, "replay/held": pairs}
        found = replace(found, metrics={name: value * scale.get(name, 1.0) for name, value in found.metrics.items()})
        self.parts.append(found)
        many = self.current_gradient_accumulation_steps
        own = {"rlvr/loss": loss.item(), **{name: found.metrics.get(name, 0.0) for name in _SUMS}}
        own = {name: value for name, value in own.items() if self._has(name)}
        if self.accelerator.num_processes > 1:
            own["rlvr/loss"] /= self.accelerator.num_processes
            values = torch.tensor(list(own.values()), device=self.accelerator.device)
            own = dict(zip(own, self.accelerator.reduce(values, reduction="sum").tolist(), strict=True))
        for name, value in own.items():
            self._metrics["train"][name].append(value * many)
        for name, value in found.metrics.items():
            if name not in _SUMS:
                self._metrics["train"][name].append(value)

    def _has(self, metric: str) -> bool:
        channel = metric.partition("/")[0]
        return channel == "rlvr" or getattr(self.channels, channel).weight > 0


@contextmanager
def _original_forward(model: nn.Module) -> Iterator[None]:
    """Restore the model's class `forward` while the body runs: a copy of TRL's patched one would read the original's weights."""
    inner = unwrapped(model)
    whole = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    patched = whole.__dict__.pop("forward", None)
    try:
        yield
    finally:
        if patched is not None:
            whole.__dict__["forward"] = patched


def _tool_loop_hints(factory: Any, trainer: ComposerReplicationTrainer, channels: LossConfig | None) -> ToolLoopHints | None:
    from composer_replication.integrations.trl import CodingEnvironmentFactory
    from composer_replication.recipes.trl.tool_loop import ToolLoopHints

    if not isinstance(factory, CodingEnvironmentFactory) or (channels is not None and channels.hint.weight == 0):
        return None
    return ToolLoopHints(factory, trainer.processing_class, None if channels is None else channels.hint)
