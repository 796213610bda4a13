"""The memory that a run will need."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil
import torch
from rich import box
from rich.table import Table
from transformers import PreTrainedConfig

from composer_replication.config import RunConfig
from composer_replication.loss.forward.models import blocks_of, resolve_device
from composer_replication.loss.forward.tree_proof import caches_attention_only
from composer_replication.rollouts.collect import groups_at_once
from composer_replication.rollouts.transformers_engine import PREFILL_TOKENS
from composer_replication.trainer.engines.own_server import shared_memory
from composer_replication.trainer.learning.followers import launched_processes
from composer_replication.trainer.learning.memory import give_memory_back
from composer_replication.trainer.planning.update_memory import PassSize, UpdateMemory, largest_passes, plan_update

_GIB = 2**30
_FRAGMENTATION = 0.1
"""Share of an update's activations that torch's allocator loses on a GPU to gaps. An estimate: no GPU was at hand to measure it
on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The memory that one process of a run needs, in bytes."""

    device: torch.device
    largest: PassSize
    update: UpdateMemory
    process: int
    """Bytes that no tensor of the policy takes: Python and its libraries, or CUDA and other programs on a GPU."""
    rollouts: int
    """How many are open at once."""
    caches: float
    """Bytes of keys and values of the rollouts that are open at once, when all of them are as long as they may become; 0 with a
    server."""
    reading: float
    """Bytes that rollouts take while they read what is new to them; 0 with a server."""
    server: float
    """Bytes that a server takes which shares the device; it sleeps during updates. 0 without one."""
    capacity: int
    """Bytes that the device has for this process."""
    processes: int = 1
    """How many share each update."""

    @property
    def sampling(self) -> float:
        """Bytes during rollouts. Gradients are gone by then."""
        kept = self.update.weights + self.update.optimizer + self.update.copies
        return self.process + kept + self.caches + self.reading + self.server

    @property
    def updating(self) -> float:
        """Bytes at most during an update."""
        return self.process + self.update.peak + self.fragmentation

    @property
    def fragmentation(self) -> float:
        """Bytes that torch's allocator holds on a GPU between tensors."""
        return _FRAGMENTATION * self.update.activations if self.device.type == "cuda" else 0.0

    @property
    def loading(self) -> float:
        """Bytes while the policy and its copies are made: weights are whole before they are sharded."""
        return self.process + self.update.loading

    @property
    def peak(self) -> float:
        return max(self.updating, self.sampling, self.loading)


def say_plan(plan: Plan, arm: str) -> Table:
    """Return a table of the memory that an arm of a run needs."""
    update = plan.update
    each = f", for each of {plan.processes} processes" if plan.processes > 1 else ""
    table = Table(f"memory of arm {arm} on {plan.device}{each}", "GiB", box=box.SIMPLE_HEAD)
    table.columns[1].justify = "right"
    parts = {
        "Python and libraries" if plan.device.type == "cpu" else "CUDA and other programs": plan.process,
        "weights": update.weights,
        "gradients": update.gradients,
        "optimizer state": update.optimizer,
        "frozen copies": update.copies,
        f"activations of {plan.largest.rows} x {plan.largest.tokens:,} tokens": update.activations,
        "fragmentation, an estimate": plan.fragmentation,
        "at most during an update": plan.updating,
        f"keys and values of {plan.rollouts} rollouts": plan.caches,
        "reading in rollouts": plan.reading,
        "the server, which shares the device and sleeps during updates": plan.server,
        "at most during rollouts": plan.sampling,
        "while the policy is loaded, before it is sharded": plan.loading if plan.loading > plan.updating else 0.0,
        "available": plan.capacity,
    }
    for part, size in parts.items():
        if size:
            table.add_row(part, f"{size / _GIB:,.2f}")
    if update.host:
        table.add_row("optimizer state in CPU memory", f"{update.host / _GIB:,.2f}")
    return table


def make_plan(config: RunConfig, architecture: PreTrainedConfig, window: int, rollouts: int) -> Plan:
    """Plan a run of a policy that is not loaded now. A few blocks of its architecture take updates on its device, which takes
    seconds to minutes. Processes that a launcher has started have to call it at the same time.

    Args:
        window: tokens that the model reads at most.
        rollouts: how many are open at once (`rollouts_at_once`).

    Raises:
        ModelError: even a few blocks do not fit on the device.
    """
    device = resolve_device(config.model.device)
    if device.type == "cpu":
        process = psutil.Process().memory_info().rss
        capacity = process + psutil.virtual_memory().available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    else:
        torch.zeros(1, device=device)  # CUDA itself takes memory from now on
        free, capacity = torch.cuda.mem_get_info(device)
        process = capacity - free - torch.cuda.memory_reserved(device)
    planned = [(size, plan_update(config, architecture, size)) for size in largest_passes(config, window)]
    largest, update = max(planned, key=lambda one: one[1].peak)
    give_memory_back()
    caches = reading = 0.0
    if config.rollout.engine == "transformers":
        caches = cache_tokens(config, window, rollouts, blocks_of(architecture)) * update.cache
        together = rollouts_together(config, rollouts) * longest_context(config, window)
        read = min(PREFILL_TOKENS, together) if caches_attention_only(architecture) else together
        reading = update.casts + read * update.reading
    return Plan(
        device=device,
        largest=largest,
        update=update,
        process=process,
        rollouts=rollouts,
        caches=caches,
        reading=reading,
        server=shared_memory(config) * capacity,
        capacity=capacity,
        processes=launched_processes(),
    )


def rollouts_at_once(config: RunConfig, *, tasks: int, held_out: int) -> int:
    """Return the most rollouts that are open at once, of a step, of an evaluation and of the traces for teachers.

    Args:
        tasks: how many are trained on.
        held_out: how many are evaluated on.
    """
    rollout, replay = config.rollout, config.loss.replay
    asks = replay.weight > 0 and bool(config.teachers)
    kinds = [
        (rollout.groups, rollout.group_size),
        (held_out, config.eval.samples),
        (tasks if asks else 0, replay.traces_per_task),
    ]
    return max(size * groups_at_once(size, rollout.open_at_most, groups) for groups, size in kinds if groups)


def longest_context(config: RunConfig, window: int) -> int:
    """Return the tokens of the longest trajectory; `window` is what the model reads at most."""
    return min(config.rollout.context_tokens, window)


def rollouts_together(config: RunConfig, rollouts: int) -> int:
    """Return how many of the open rollouts sample in one batch."""
    return -(-rollouts // config.rollout.cohorts)


def cache_tokens(config: RunConfig, window: int, rollouts: int, layers: int) -> float:
    """Return the tokens whose keys and values are held at once when all rollouts are as long as they may become.

    Those that sample together are a batch, whose rows have room for the most that is read and sampled by any of them. Each layer
    goes from one form to the other by itself: a row, a padded batch, and a larger one.
    """
    longest, together = longest_context(config, window), rollouts_together(config, rollouts)
    room = together * min(config.rollout.turn_tokens, longest) + min(PREFILL_TOKENS, together * longest)
    return rollouts * longest + room + 2 * together * longest / layers
