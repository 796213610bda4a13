"""Our channels in PRIME-RL's orchestrator: `ComposerAlgorithm`, in the place of its GRPO.

The orchestrator hands over groups of finished rollouts; each gets per-token streams that the trainer executes without knowing
what they mean:

- rlvr: advantages of the group's rewards, for the trainer's rl component;
- hint: log-probs of the self-teacher and weights of the trainer's ref_kl component at error turns only;
- replay: rollouts of the source `composer_replay`, which are pairs: signed advantages as weights of the trainer's ce component
  (its loss is -weight * log-prob), 0 in the rl component, whose denominator they do not touch.

The class is made when it is first asked for, so that this module can be imported without PRIME-RL.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer_replication.config import RunConfig
from composer_replication.policy_gradient import group_advantages, has_signal
from composer_replication.recipes.prime_rl.scoring import Pairs, Score, hint_maker, select_hints, shared_pairs
from composer_replication.recipes.prime_rl.settings import FROZEN_URL, needs_frozen, read_run_file
from composer_replication.recipes.prime_rl.traces import trajectory_of
from composer_replication.trainer.signals import SignalMaker
from composer_replication.types import HintedTurn, Trajectory
from composer_replication.types.errors import BackendError, ConfigError, MissingExtraError

if TYPE_CHECKING:
    ComposerAlgorithm: Any

PAIR = "composer_pair"
"""Key of a trace's `info`: the number of its pair in the file."""
DROPPED = "composer_dropped_hints"
"""Key of a trace's `info`: error turns that got no hint, by reason."""


def __getattr__(name: str) -> Any:
    if name == "ComposerAlgorithm":
        return algorithm_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register() -> None:
    """Put `ComposerAlgorithm` in the place of `type = "grpo"`. Raises as `algorithm_class`."""
    chosen = algorithm_class()
    from prime_rl.orchestrator import algo

    algo.ALGORITHM_CLASSES["grpo"] = chosen


@cache
def algorithm_class() -> type:
    """Return `ComposerAlgorithm`, a subclass of PRIME-RL's `GRPOAlgorithm`.

    Raises:
        MissingExtraError: PRIME-RL cannot be imported.
        ConfigError: its orchestrator has other hooks than those of 0.8.
    """
    try:
        from prime_rl.orchestrator.algo.grpo import GRPOAlgorithm
        from prime_rl.orchestrator.trajectories import iter_trainable_branches
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"PRIME-RL's orchestrator cannot be imported: {error}",
            fix="run this in the environment of a PRIME-RL checkout (docs/prime_rl.md)",
        ) from error
    if not hasattr(GRPOAlgorithm, "finalize_rollout"):
        raise ConfigError("this PRIME-RL hands its algorithms no rollouts (finalize_rollout)", fix="use its release v0.8.0")

    class ComposerAlgorithm(_Channels, GRPOAlgorithm):
        """GRPO with hints at error turns and preference pairs; its options come from the run file in the environment."""

        trainable_branches = staticmethod(iter_trainable_branches)

        def __init__(self, config: Any, policy_pool: Any) -> None:
            GRPOAlgorithm.__init__(self, config, policy_pool)
            self.run_config, self.folder = read_run_file()

        async def setup(self) -> None:
            await GRPOAlgorithm.setup(self)
            await self.open_channels()

        async def stock_credit(self, group: list[Any]) -> None:
            await GRPOAlgorithm.score_group(self, group)

    return ComposerAlgorithm


class _Channels:
    """The part of `ComposerAlgorithm` that needs no import of PRIME-RL."""

    policy_pool: Any
    run_config: RunConfig
    folder: Path
    connect: Callable[..., Any]
    trainable_branches: Callable[[Any], Any]
    stock_credit: Callable[[list[Any]], Awaitable[None]]
    """Reward minus the group's mean, less PRIME-RL's penalty on length where it is asked for one."""
    length_penalty: Any
    hints: SignalMaker | None = None
    pairs: Pairs | None = None
    frozen: Any = None
    """The starting policy, where a separate server serves it."""
    read, unread = 0, 0
    """Counts of the present window: rollouts that were searched for error turns, and those without a readable branch."""

    async def open_channels(self) -> None:
        """Prepare hints, pairs and the frozen policy. PRIME-RL calls this before any weight has changed.

        The policy is then still the one that the run starts from.

        Raises:
            ConfigError: the frozen policy is needed and nothing serves it; a penalty is asked for that nothing reads; or as
                `scoring.hint_maker` and `scoring.shared_pairs`.
        """
        loss, url = self.run_config.loss, os.environ.get(FROZEN_URL)
        if self.length_penalty is not None and loss.rlvr.advantage != "dr_grpo":
            raise ConfigError(
                f"PRIME-RL's length_penalty is not read with loss.rlvr.advantage = {loss.rlvr.advantage}", fix="choose dr_grpo"
            )
        if url:
            from prime_rl.configs.algorithm import FrozenModelConfig

            self.frozen = await self.connect(FrozenModelConfig(name=self.run_config.model.path, base_url=[url]))
        elif needs_frozen(self.run_config):
            raise ConfigError(
                f"the frozen policy is read, and {FROZEN_URL} is not set", fix="serve it and name its address there"
            )
        self.hints = await asyncio.to_thread(hint_maker, self.run_config)
        if loss.replay.weight > 0:
            self.pairs = await asyncio.to_thread(shared_pairs, self.run_config, self.folder)
        if self.pairs is not None:
            await self.pairs.read_references((self.frozen or self.policy_pool).score)

    async def score_group(self, group: list[Any]) -> None:
        """Assign advantages to a group of siblings and hints to their error turns; or weights to pairs."""
        if any(PAIR in rollout.info for rollout in group):
            await asyncio.gather(*(self._weigh_pair(rollout) for rollout in group))
            return
        hinted = await self._hint(group) if self.hints is not None else [0] * len(group)
        if self.run_config.loss.rlvr.kl_beta > 0:
            await asyncio.gather(*(_read(sample, self._reference) for rollout in group for sample in rollout.samples))
        await self._credit(group, hinted)

    async def _credit(self, group: list[Any], hinted: list[int]) -> None:
        """Assign advantages. A group without signal takes no part where `rollout.refills` asks for others.

        PRIME-RL's filter drops a rollout whose advantages are all 0. One with hints gets no advantages instead, and so stays for
        the sake of its hints.
        """
        rewards = [float(rollout.reward) for rollout in group]
        kind = self.run_config.loss.rlvr.advantage
        if kind == "dr_grpo":
            await self.stock_credit(group)
        else:
            for rollout, advantage in zip(group, group_advantages(rewards, kind), strict=True):
                rollout.assign_advantages(advantage)
        if self.run_config.rollout.refills > 0 and not has_signal(rewards):
            for rollout, turns in zip(group, hinted, strict=True):
                if turns:
                    rollout.advantages = None
                    for sample in rollout.samples:
                        sample.rl_weights = [0.0] * len(sample.token_ids)

    async def _hint(self, group: list[Any]) -> list[int]:
        """Return the number of turns of each rollout that a self-teacher reads. Raises BackendError as `_check_read`."""
        assert self.hints is not None
        placed: dict[str, tuple[int, Any]] = {}
        trajectories: list[Trajectory] = []
        unread = [0] * len(group)
        for owner, rollout in enumerate(group):
            branches = [branch for branch, _ in self.trainable_branches(rollout)]
            for number, (sample, branch) in enumerate(zip(rollout.samples, branches, strict=True)):
                found = trajectory_of(rollout, branch.nodes, number=number)
                if found is None:
                    unread[owner] += 1
                    continue
                placed[found.trajectory_id] = owner, sample
                trajectories.append(found)
        readable = {owner for owner, _ in placed.values()}
        self._check_read(len(readable), sum(missed > 0 and owner not in readable for owner, missed in enumerate(unread)))
        selected = await asyncio.to_thread(select_hints, self.hints, trajectories)
        dropped = dict(Counter(str(hint.dropped) for hint in selected.dropped))
        # a turn that several branches share is trained on in the first of them only
        turns = [turn for turn in selected.hinted if placed[turn.trajectory_id][1].mask[turn.student_start]]
        await asyncio.gather(*(self._teach(placed[turn.trajectory_id][1], turn) for turn in turns))
        counts = [0] * len(group)
        sent = [{"hint/turns": 0.0, "hint/held": 0.0, "hint/tokens": 0.0, "hint/unread": float(missed)} for missed in unread]
        for turn in turns:
            owner = placed[turn.trajectory_id][0]
            counts[owner] += 1
            sent[owner]["hint/held" if turn.held else "hint/turns"] += 1.0
            sent[owner]["hint/tokens"] += float(len(turn.action_ids))
        for rollout, metrics in zip(group, sent, strict=True):
            rollout.record_metrics(metrics)
            rollout.info[DROPPED] = dropped
        return counts

    def _check_read(self, read: int, unread: int) -> None:
        """Raise BackendError when none of a step's worth of rollouts could be read; a few unreadable ones are only counted.

        Otherwise the channel would be off without a word.
        """
        self.read, self.unread = self.read + read, self.unread + unread
        if self.read + self.unread < self.run_config.rollout.groups * self.run_config.rollout.group_size:
            return
        if not self.read:
            raise BackendError(
                f"none of {self.unread} rollouts can be read for its error turns: log-probs are missing, or its tokens are not "
                "those of its messages",
                fix="sample with log-probs from PRIME-RL's own inference server, or set loss.hint.weight = 0",
            )
        self.read, self.unread = 0, 0

    async def _teach(self, sample: Any, turn: HintedTurn) -> None:
        """Read one turn with the self-teacher, and set its log-probs and the channel's weight on the turn's tokens."""
        frozen = self.run_config.loss.hint.self_teacher == "frozen"
        scored = await (self.frozen if frozen else self.policy_pool).score(list(turn.teacher_ids))
        size = len(turn.action_ids)
        sample.ref_logprobs = _filled(
            sample, sample.ref_logprobs, turn.student_start, scored[turn.teacher_start : turn.teacher_start + size]
        )
        weight = self.run_config.loss.hint.weight
        sample.ref_kl_weights = _filled(sample, sample.ref_kl_weights, turn.student_start, [weight] * size)

    async def _reference(self, ids: list[int]) -> list[float]:
        found: list[float] = await self.frozen.score(ids)
        return found

    async def _weigh_pair(self, rollout: Any) -> None:
        assert self.pairs is not None
        number = rollout.info[PAIR]
        pair, samples = self.pairs.pairs[number], rollout.samples
        expected = [[*pair.prompt_ids, *pair.chosen_ids], [*pair.prompt_ids, *pair.rejected_ids]]
        if [list(sample.token_ids) for sample in samples] != expected:
            raise ConfigError(
                f"pair {pair.pair_id!r} is not what the orchestrator reads in its file", fix="give all processes one pairs file"
            )
        scored = await asyncio.gather(*(self.policy_pool.score(list(sample.token_ids)) for sample in samples))
        start = len(pair.prompt_ids)
        signed = self.pairs.weigh(number, scored[0][start:], scored[1][start:])
        scale = self.run_config.loss.replay.weight * self.pairs.tokens_per_token
        for sample, logprobs, weight in zip(samples, scored, (signed.chosen, signed.rejected), strict=True):
            size = len(sample.token_ids)
            sample.logprobs = [0.0] * start + list(logprobs[start:])
            sample.ce_weights = [0.0] * start + [scale * weight] * (size - start)
            sample.rl_weights = [0.0] * size
        rollout.assign_advantages([weight for sample in samples for weight in sample.ce_weights])
        metrics = {"replay/loss": signed.loss, "replay/pairs": 1.0}
        if signed.margin is not None:
            metrics |= {"replay/margin": signed.margin, "replay/accuracy": float(signed.margin > 0)}
        rollout.record_metrics(metrics)


async def _read(sample: Any, score: Score) -> None:
    sample.ref_logprobs = await score(list(sample.token_ids))


def _filled(sample: Any, stream: Sequence[float] | None, start: int, values: Sequence[float]) -> list[float]:
    """Return a stream of a sample, 0 where nothing was written, with `values` from `start` on."""
    filled = list(stream) if stream is not None else [0.0] * len(sample.token_ids)
    filled[start : start + len(values)] = values
    return filled
