"""The peak of memory of an update, measured on the model's own blocks and extrapolated.

A model of the run's architecture and width, with random weights and few blocks, takes two updates of short rows by the run's own
learner. A peak is a polynomial: linear in the number of blocks, and in the length of the rows of second degree (attention masks
and scores). Measured at two depths and three lengths, it is known at all of them. Loss and optimizer are those of the run, so
precision, adapters, checkpointing, channels and shares of the weights need no formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedConfig
from transformers.cache_utils import DynamicCache

from composer_replication.config import HintConfig, RunConfig
from composer_replication.kernels.one_pass import chunk_rows
from composer_replication.loss.batch import hint_inputs
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward import evaluating, forward, unwrapped
from composer_replication.loss.forward.models import blocks_of, make_policy, resolve_device, with_blocks
from composer_replication.trainer.learning.followers import launched_processes
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.learning.sharding import local_part
from composer_replication.trainer.planning.live_bytes import LiveBytes
from composer_replication.types import HintedTurn

_LEAST = 192
"""Tokens of the shortest row that is measured: below it fixed costs hide the others."""
_OWN_SHARE, _LEAST_OWN = 32, 8
"""One in so many tokens of a row is behind what it shares with others, at least; and so many tokens of the rows measured."""


@dataclass(frozen=True, slots=True)
class PassSize:
    """The largest forward and backward pass of an update."""

    rows: int
    tokens: int
    """Of each row, padding included."""
    shared: int = 0
    """Tokens that all rows begin with, and that are read once."""

    @property
    def read(self) -> int:
        """Return the tokens that are read."""
        return self.shared + self.rows * (self.tokens - self.shared)


def largest_passes(config: RunConfig, window: int) -> tuple[PassSize, ...]:
    """Return the passes that may need the most memory: as many of the longest trajectories as `optimizer.micro_batch_tokens`
    holds; where tokens are left over, one row more, all so short that the pass is full; and a group of the longest trajectories
    that share so much of their beginning that the pass holds all of them.

    Args:
        window: tokens that the model reads at most.
    """
    tokens, group = config.optimizer.micro_batch_tokens, config.rollout.group_size
    most, longest = config.rollout.groups * group, min(config.rollout.context_tokens, window)
    found = [PassSize(min(max(1, tokens // longest), most), longest)]
    shorter = PassSize(found[0].rows + 1, tokens // (found[0].rows + 1))
    if shorter.rows <= most and shorter.read > found[0].read:
        found.append(shorter)
    siblings = min(group, 1 + max(0, tokens - longest) // max(1, longest // _OWN_SHARE))
    own = (tokens - longest) // (siblings - 1) if siblings > 1 else longest
    if own < longest:
        found.append(PassSize(siblings, longest, shared=longest - own))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class UpdateMemory:
    """Bytes of tensors on the policy's device, and what else an update takes."""

    weights: float
    gradients: float
    optimizer: float
    copies: float
    """Of frozen copies of the policy, and of whatever else outlives an update."""
    passes: float
    """Of all tensors at once, at the peak of the forward and backward passes."""
    step: float
    """Of all tensors at once, at the peak of the optimizer's step."""
    host: float
    """Bytes of the optimizer's state in CPU memory, where the policy is on another device."""
    cache: float
    """Bytes that a token's keys and values take during rollouts."""
    reading: float
    """Bytes that a token takes while rollouts read it with others, besides its keys and values."""
    casts: float
    """Bytes of the weights' copies in the type that the policy samples in, where that is not their own."""
    loading: float
    """Of all tensors at once, at most, while the policy, its copies and the optimizer are made."""

    @property
    def peak(self) -> float:
        """Return the most bytes of all tensors at once, during an update."""
        return max(self.passes, self.step)

    @property
    def activations(self) -> float:
        """Return the bytes at the peak that are of no other part."""
        return max(0.0, self.peak - self.weights - self.gradients - self.optimizer - self.copies)


def plan_update(config: RunConfig, model_config: PreTrainedConfig, largest: PassSize) -> UpdateMemory:
    """Return what an update needs whose passes are as large as `largest`.

    Raises what loading a policy of that configuration raises, and ModelError when even few blocks do not fit on the device.
    """
    period, depth = period_of(model_config), blocks_of(model_config)
    first = 2 if config.substrate.shard else 1  # FSDP2 gathers a block while it computes the one before it
    depths = [first * period, (first + 1) * period] if depth > (first + 1) * period else [depth]
    lengths = _lengths(model_config, largest)
    sizes = [PassSize(largest.rows, n, largest.shared * n // largest.tokens) for n in lengths]
    found = [[measure_update(config, model_config, blocks, size) for size in sizes] for blocks in depths]

    def at(name: str) -> float:
        at_length = [extrapolated(lengths, [getattr(one, name) for one in some], largest.tokens) for some in found]
        return extrapolated(depths, at_length, depth)

    return UpdateMemory(**{field.name: at(field.name) for field in fields(UpdateMemory)})


def extrapolated(places: Sequence[int], values: Sequence[float], place: int) -> float:
    """Return the value at `place` of the polynomial of the least degree through all points (Lagrange)."""
    total = 0.0
    for i, (x, y) in enumerate(zip(places, values, strict=True)):
        share = 1.0
        for j, other in enumerate(places):
            share *= 1.0 if i == j else (place - other) / (x - other)
        total += share * y
    return total


def period_of(model_config: PreTrainedConfig) -> int:
    """Return after how many blocks their kinds, such as sliding and full attention, begin anew."""
    kinds = getattr(model_config.get_text_config(), "layer_types", None)
    if not kinds:
        return 1
    return next(n for n in range(1, len(kinds) + 1) if all(kind == kinds[at % n] for at, kind in enumerate(kinds)))


def _lengths(model_config: PreTrainedConfig, largest: PassSize) -> list[int]:
    """Return three lengths of rows, the shortest long enough to fill the buffer of logits where the run fills it; or the run's
    own, where that is not longer."""
    chunk = chunk_rows(model_config.get_text_config().vocab_size, torch.float32)
    filling = -(-chunk * largest.tokens // largest.read)  # of such rows as many tokens are read as there is room for
    with_own = -(-_LEAST_OWN * largest.tokens // (largest.tokens - largest.shared))
    first = max(_LEAST, with_own, filling if chunk < largest.read else 0)
    return [largest.tokens] if largest.tokens <= 3 * first else [first, 2 * first, 3 * first]


def measure_update(config: RunConfig, model_config: PreTrainedConfig, blocks: int, largest: PassSize) -> UpdateMemory:
    """Let a policy with random weights and so many blocks take two updates of two passes, and measure the second.

    Processes that a launcher has started do so at the same time, and each measures its own. Raises as `plan_update`.
    """
    device = resolve_device(config.model.device)
    sharded, processes = config.substrate.shard, launched_processes()
    one_step = {"micro_batch_tokens": largest.read, "mini_batches": 1, "epochs": 1, "channel_gradients_every": 0}
    optimizer = config.optimizer.model_copy(update=one_step)
    config = config.model_copy(update={"optimizer": optimizer})
    batch = made_batch(config, largest, model_config.get_text_config().vocab_size, processes)
    with LiveBytes(device, resized=sharded) as live:
        live.forget_peak()
        learner = Learner(make_policy(config.model, with_blocks(model_config, blocks)), config, sharded=sharded)
        loading = live.peak
        learner.update(batch)  # makes the optimizer's state
        passes, step, gradients = _peaks(learner, batch, live)
        weights, outlives = _bytes(learner.policy.parameters(), device), live.now
        cache, reading, casts = _rollout_bytes(learner.policy, batch["input_ids"][:1, :_LEAST].to(device), live)
        states = [optimizer.state_dict() for optimizer in _optimizers(learner)]
        state = [value for value in tree_leaves(states) if isinstance(value, Tensor)]
        return UpdateMemory(
            weights=weights,
            gradients=gradients,
            optimizer=_bytes(state, device),
            copies=outlives - weights - _bytes(state, device),
            passes=passes,
            step=step,
            host=0 if device.type == "cpu" else _bytes(state, torch.device("cpu")),
            cache=cache,
            reading=reading,
            casts=casts,
            loading=loading,
        )


def _peaks(learner: Learner, batch: Batch, live: LiveBytes) -> tuple[int, int, int]:
    """Return the peaks of an update's passes and of its optimizer steps, each of which grows by its own law, and the bytes of its
    gradients."""
    found: list[int] = []
    gradients = 0

    def forget(*_: object) -> None:
        nonlocal gradients
        found.append(live.peak)
        live.forget_peak()
        gradients = _bytes([p.grad for p in learner.policy.parameters() if p.grad is not None], live.device)

    hooks = []
    for optimizer in _optimizers(learner):
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        hooks += [inner.register_step_pre_hook(forget), inner.register_step_post_hook(forget)]
    live.forget_peak()
    learner.update(batch)
    for hook in hooks:
        hook.remove()
    return max(found[0::2]), max(found[1::2]), gradients


def _optimizers(learner: Learner) -> list[Any]:
    return [scheduled.optimizer for scheduled in (learner.scheduled, learner.of_pairs) if scheduled is not None]


def _rollout_bytes(policy: nn.Module, ids: Tensor, live: LiveBytes) -> tuple[float, float, float]:
    """Return what a policy that reads the tokens `ids` [1, T] to sample caches for each, what else it takes for each meanwhile,
    and the bytes of its casts."""
    cache, before = DynamicCache(config=unwrapped(policy).config), live.now
    live.forget_peak()
    with evaluating(policy):
        forward(policy, ids, None, cache=cache)
        held, most = live.now - before, live.peak - before
    cached = _bytes([value for layer in cache.layers for value in vars(layer).values() if isinstance(value, Tensor)], ids.device)
    return cached / ids.numel(), (most - held) / ids.numel(), held - cached


def _bytes(tensors: Iterable[Tensor], device: torch.device) -> int:
    storages = [local_part(tensor).untyped_storage() for tensor in tensors if tensor.device.type == device.type]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def made_batch(config: RunConfig, largest: PassSize, vocabulary: int, processes: int = 1) -> Batch:
    """Return a batch of two largest passes for each process, half of whose tokens are sampled, with hints in each row where the
    run gives hints, and with as many pairs where they take more than rows: two sides, or an optimizer of their own. The first
    pass, that of the first process, needs a mask: its rows are of different lengths."""
    drawn = torch.Generator().manual_seed(0)
    rows, tokens = 2 * largest.rows * processes, largest.tokens
    ids = torch.randint(vocabulary, (rows, tokens), generator=drawn)
    ids[:, 0] = torch.arange(rows) % vocabulary  # nothing is shared, and the first rows are read together
    for first in range(0, rows, largest.rows):
        ids[first : first + largest.rows, : largest.shared] = ids[first, : largest.shared]
    attention = torch.ones_like(ids)
    attention[1:, -2:] = 0  # rows of one length would need no mask
    start = max(largest.shared, tokens // 2)
    sampled = attention * (torch.arange(tokens) >= start)
    weights = sampled.float()
    batch: Batch = {
        "input_ids": ids,
        "attention_mask": attention,
        "response_mask": sampled,
        "advantages": weights * torch.randn((rows, 1), generator=drawn),
        "old_logprobs": -weights,
        "rlvr_weights": weights,
        "rlvr_denominator": weights.sum(),
    }
    hint, replay = config.loss.hint, config.loss.replay
    if replay.weight > 0 and (replay.compares or replay.learning_rate is not None):
        batch |= _pairs(ids, vocabulary)
    return batch | (_hints(ids, hint, start) if hint.weight > 0 else {})


def _pairs(ids: Tensor, vocabulary: int) -> Batch:
    """Return a pair for each row of `ids` [B, T]: the row, and another answer in the place of its last quarter."""
    rows, tokens = ids.shape
    answer = (torch.arange(tokens) >= tokens - tokens // 4).long().expand(rows, -1)
    batch: Batch = {"dpo_weights": torch.ones(rows), "replay_denominator": answer.sum().float()}
    for side, shift in (("chosen", 0), ("rejected", 1)):
        batch |= {
            f"dpo_{side}_input_ids": (ids + shift * answer) % vocabulary,
            f"dpo_{side}_attention_mask": torch.ones_like(ids),
            f"dpo_{side}_response_mask": answer,
            f"dpo_{side}_ref_logprobs": torch.full((rows,), -float(tokens)),
        }
    return batch


def _hints(ids: Tensor, hint: HintConfig, start: int) -> Batch:
    """Return as many hints as a run may give for each row of `ids` [B, T], whose sampled tokens begin at `start`, of 32 tokens
    each, and the held turns that they bring along in the same places; or all hints at once, before all sampled tokens, in two
    turns."""
    sampled = ids.shape[1] - 2 - start  # the last two tokens of a row may be padding
    if hint.span == "trajectory":
        added = 32 * hint.per_trajectory
        parts = [(start, start, sampled // 2, added), (start, start + sampled // 2, sampled - sampled // 2, added)]
    else:
        width = max(1, sampled // 2 // hint.per_trajectory)
        starts = [start + number * width % (sampled - width + 1) for number in range(hint.per_trajectory)]
        held = 0 if hint.self_teacher == "live" else hint.held_turns
        parts = [(place, place, width, added) for added in (32, *[0] * held) for place in starts]
    made = [_hinted(str(row), read, *part) for row, read in enumerate(ids.tolist()) for part in parts]
    return hint_inputs(made, {str(row): row for row in range(len(ids))}, pad_id=0, reduction=hint.reduction)


def _hinted(row: str, ids: Sequence[int], at: int, start: int, width: int, added: int) -> HintedTurn:
    """Return the turn of so many tokens that begins at `start`, with a hint of `added` tokens at the place `at` before it."""
    return HintedTurn(
        trajectory_id=row,
        turn=0,
        student_start=start,
        teacher_ids=(*ids[:at], *[ids[0]] * added, *ids[at : start + width]),
        teacher_start=start + added,
        action_ids=tuple(ids[start : start + width]),
    )
