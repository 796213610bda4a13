"""The trainer, which owns the policy, and the actor that asks teachers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from composer_replication.config import RunConfig
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward import LogprobCache
from composer_replication.loss.forward.adapters import policy_weights
from composer_replication.loss.forward.model_checkpoint import save_checkpoint
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.console import Console
from composer_replication.recipes.mesh.errors import in_time
from composer_replication.recipes.mesh.member import Member
from composer_replication.recipes.mesh.protocol import Handle, Port, WeightHandle
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.checkpoints.restore import restore, trained_on
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.pairs.held import pairs_of_step
from composer_replication.trainer.pairs.replay import collect_pairs, pairs_digest, stored_pairs, wants_replay
from composer_replication.trainer.run_context import RunContext
from composer_replication.types import Group, Hint, Pair, Trajectory


@dataclass(frozen=True, slots=True)
class Stepped:
    """The result of one step."""

    metrics: Mapping[str, float]
    off: Mapping[str, str]
    """Channels that had nothing to say, and why."""
    hints: Sequence[Hint]


class Trainer(Member):
    """The actor that owns the policy of an arm. It is built from the arm's newest checkpoint, if there is one.

    It may be several processes that torch.distributed knows as one group, each with the whole policy (DDP) and all of which are
    called at once. They share a step's micro-batches; the first alone makes the batch, scores pairs and writes.

    Raises:
        CheckpointError: that checkpoint is damaged, or was made of something else.
        ComposerError: as `RunContext.open` and `load_policy`.
    """

    role = "trainer"

    def __init__(self, port: Port, config: RunConfig, arm: str, run: Path) -> None:
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.port = port
        self.config = config
        self.context = _open_context(config, run, Terminal(Console(quiet=True)))
        self.arm = arm
        model, tokenizer = load_policy(config.model)
        self._made_of = self.context.fingerprint(config, model)
        self.learner = Learner(model, config, LogprobCache(self.context.run_dir.ckpt_path / "reference.sqlite"))
        window = TransformersEngine(self.learner.policy, tokenizer).context_window
        self.signals = self.context.signal_maker(config, ChatRenderer(tokenizer), window, self.learner)
        self._pairs: list[Pair] | None = None
        self._first = self.learner.accelerator.is_main_process
        self._resumed = restore(self._folder, self.learner, fingerprint=self._made_of, pairs=pairs_digest(self.context, arm))
        self._keep_weights()

    async def at(self) -> int:
        """Return the number of steps taken."""
        return self.learner.version

    async def resumed(self) -> dict[str, Any] | None:
        """Return the loop's state in the checkpoint that the trainer was built from; None when there was none."""
        return self._resumed

    async def fallbacks(self) -> dict[str, str]:
        """Return the slow paths that the policy has to take in an update, and why."""
        return dict(self.learner.fallbacks())

    async def tokenizer(self) -> tuple[PreTrainedTokenizerBase, int]:
        """Return the policy's tokenizer and its context window."""
        return self.signals.renderer.tokenizer, self.signals.context_window

    def step(self, step: int, groups: Sequence[Group]) -> Stepped:
        """Train on the groups of a step, the next one. Raises ValueError for any other."""
        if step != self.learner.version + 1:
            raise ValueError(f"step {step} does not follow {self.learner.version}")
        batch, made = broadcast_object_list([self._made(step, groups) if self._first else None])[0]
        result = self.learner.update(batch)
        self._keep_weights()
        return Stepped({**made.metrics, **result.metrics}, {**result.off, **made.off}, made.hints)

    async def publish(self) -> WeightHandle:
        """Make the weights of the last finished step available to the generators, also during another step."""
        version, weights = self._weights
        return await self.port.publish("trainer", version, weights)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint: everything that the next step depends on, and the driver's `state`. Raises StorageError."""
        if not self._first:
            return
        kept = {**state, **trained_on(self._made_of, pairs_digest(self.context, self.arm))}
        save_checkpoint(self._folder, self.learner.version, self.learner, self.signals.renderer.tokenizer, kept)

    def with_reference_logprobs(self, pairs: list[Pair]) -> list[Pair]:
        """Score as `PolicyScorer.with_reference_logprobs`."""
        return self.learner.with_reference_logprobs(pairs) if self._first else []

    def action_entropies(self, trajectories: Sequence[Trajectory]) -> dict[str, list[float | None]]:
        """Read as `PolicyScorer.action_entropies`."""
        return self.learner.action_entropies(trajectories) if self._first else {}

    def _made(self, step: int, groups: Sequence[Group]) -> tuple[Batch, Stepped]:
        """Make the batch of a step, and what its record says so far. It may ask teachers, so one rank makes it for all."""
        signals = self.signals.make(step, groups)
        if self._pairs is None:
            self._pairs = stored_pairs(self.context, self.arm) if wants_replay(self.config) else []
        taken = pairs_of_step(self._pairs, step, self.config.loss.replay.pairs_per_step)
        batch = self.signals.batch(groups, signals, taken)
        return batch, Stepped(signals.metrics, self.signals.why_off(self._pairs, signals), signals.hints)

    @property
    def _folder(self) -> Path:
        return self.context.run_dir.ckpt_path / self.arm

    def _keep_weights(self) -> None:
        state = policy_weights(self.learner.policy) if self._first else {}
        self._weights = self.learner.version, _copied(state)


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy weights to the CPU; tied weights stay one tensor, as a `Port` sends them."""
    copies: dict[tuple[Any, ...], Tensor] = {}
    copied = {}
    for name, tensor in state.items():
        same = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        if same not in copies or tensor.numel() == 0:
            copies[same] = tensor.detach().cpu().clone()
        copied[name] = copies[same]
    return copied


class TeacherActor(Member):
    """The actor that turns frozen traces into preference pairs: it asks the teachers, compares and verifies."""

    role = "teachers"

    def __init__(self, port: Port, config: RunConfig, arm: str, run: Path) -> None:  # noqa: ARG002  every actor is given one
        self.config = config
        self.arm = arm
        self._notes: list[str] = []
        self.context = _open_context(config, run, Terminal(Console(quiet=True), on_event=self._heard))

    async def collect(self, traces: Sequence[Group], trainer: Handle) -> list[str]:
        """Store the run's pairs where the trainer finds them, and return notes about them.

        Answers that were paid for are in the run's ledger, so that a repeated call does not pay again.

        Raises:
            ActorDiedError: the trainer died, or did not answer for `rollout.stall_s`.
            ComposerError: as `trainer.replay.collect_pairs`.
        """
        stall_s = self.config.rollout.stall_s
        told = trainer.call("tokenizer")
        tokenizer, window = await in_time(told, stall_s, f"{trainer.name} did not answer", actor=trainer.name)
        loop = asyncio.get_running_loop()
        recorded = _Recorded(self.arm, ChatRenderer(tokenizer), window, list(traces))
        scorer = _LearnerScorer(trainer, loop, stall_s)
        self._notes.clear()
        await asyncio.to_thread(lambda: asyncio.run(collect_pairs(self.context, self.config, recorded, scorer)))
        return list(self._notes)

    def _heard(self, kind: str, message: str, /, **fields: Any) -> None:  # noqa: ARG002  an `EventSink`
        if kind == "note":
            self._notes.append(message)


@dataclass(frozen=True)
class _Recorded:
    """Traces that were recorded before."""

    arm: str
    renderer: ChatRenderer
    context_window: int
    groups: list[Group]

    async def record_traces(self) -> list[Group]:
        return self.groups


_T = TypeVar("_T")


@dataclass(frozen=True)
class _LearnerScorer:
    """A scorer that asks the trainer's policy, from a thread other than that of the event loop."""

    trainer: Handle
    loop: asyncio.AbstractEventLoop
    stall_s: float

    def with_reference_logprobs(self, pairs: list[Pair]) -> list[Pair]:
        work: Coroutine[Any, Any, list[Pair]] = self.trainer.call("with_reference_logprobs", pairs)
        return self._answer(work, "score the pairs")

    def action_entropies(self, trajectories: Sequence[Trajectory]) -> dict[str, list[float | None]]:
        work: Coroutine[Any, Any, dict[str, list[float | None]]] = self.trainer.call("action_entropies", trajectories)
        return self._answer(work, "read the traces")

    def _answer(self, work: Coroutine[Any, Any, _T], what: str) -> _T:
        asked = in_time(work, self.stall_s, f"{self.trainer.name} did not {what}", actor=self.trainer.name)
        return asyncio.run_coroutine_threadsafe(asked, self.loop).result()


def _open_context(config: RunConfig, run: Path, terminal: Terminal) -> RunContext:
    return RunContext.open(config, RunDir(run), terminal, proven=True)
