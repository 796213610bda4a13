"""The memory that a run will need, and what to change where that is more than there is."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil
import torch
from rich import box
from rich.table import Table
from transformers import PreTrainedConfig

from composer_replication.config import RunConfig
from composer_replication.loss.forward.models import resolve_device
from composer_replication.trainer.engines.own_server import shared_memory
from composer_replication.trainer.learning.followers import launched_processes
from composer_replication.trainer.learning.memory import give_memory_back
from composer_replication.trainer.planning.update_memory import PassSize, UpdateMemory, largest_pass, plan_update
from composer_replication.types.errors import ConfigError

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The memory that one process of a run needs, in bytes."""

    device: torch.device
    largest: PassSize
    update: UpdateMemory
    process: int
    """Bytes that Python and its libraries take of the same memory: of a CPU's, not of a GPU's."""
    caches: float
    """Bytes of keys and values of a step's rollouts, when all of them are as long as they may become; 0 with a server."""
    server: float
    """Bytes that a server takes which shares the device; it sleeps during updates. 0 without one."""
    capacity: int
    """Bytes that the device has for this process."""
    processes: int = 1
    """How many share each update."""

    @property
    def sampling(self) -> float:
        """Bytes during rollouts. Gradients are gone by then."""
        return self.process + self.update.weights + self.update.optimizer + self.update.copies + self.caches + self.server

    @property
    def peak(self) -> float:
        return max(self.process + self.update.peak, self.sampling)


def say_plan(plan: Plan, arm: str) -> Table:
    """Return a table of the memory that an arm of a run needs."""
    update = plan.update
    each = f", for each of {plan.processes} processes" if plan.processes > 1 else ""
    table = Table(f"memory of arm {arm} on {plan.device}{each}", "GiB", box=box.SIMPLE_HEAD)
    table.columns[1].justify = "right"
    parts = {
        "Python and libraries": plan.process,
        "weights": update.weights,
        "gradients": update.gradients,
        "optimizer state": update.optimizer,
        "frozen copies": update.copies,
        f"activations of {plan.largest.rows} x {plan.largest.tokens:,} tokens": update.activations,
        "at most during an update": plan.process + update.peak,
        "keys and values of a step's rollouts": plan.caches,
        "the server, which shares the device and sleeps during updates": plan.server,
        "at most during rollouts": plan.sampling,
        "available": plan.capacity,
    }
    for part, size in parts.items():
        if size:
            table.add_row(part, f"{size / _GIB:,.2f}")
    if update.host:
        table.add_row("optimizer state in CPU memory", f"{update.host / _GIB:,.2f}")
    return table


def make_plan(config: RunConfig, architecture: PreTrainedConfig, window: int) -> Plan:
    """Plan a run of a policy that is not loaded now. A few blocks of its architecture take updates on its device, which takes
    seconds to minutes. Processes that a launcher has started have to call it at the same time.

    Args:
        window: tokens that the model reads at most.

    Raises:
        ModelError: even a few blocks do not fit on the device.
    """
    device = resolve_device(config.model.device)
    largest = largest_pass(config, window)
    if device.type == "cpu":
        process = psutil.Process().memory_info().rss
        capacity = process + psutil.virtual_memory().available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    else:
        process, capacity = 0, torch.cuda.get_device_properties(device).total_memory
    update = plan_update(config, architecture, largest)
    give_memory_back()
    return Plan(
        device=device,
        largest=largest,
        update=update,
        process=process,
        caches=_cache_tokens(config, window) * update.cache if config.rollout.engine == "transformers" else 0.0,
        server=shared_memory(config) * capacity,
        capacity=capacity,
        processes=launched_processes(),
    )


def check_fit(plan: Plan, config: RunConfig) -> None:
    """Raise ConfigError where a run cannot fit, naming the field to change."""
    if plan.peak <= plan.capacity:
        return
    need = f"{plan.peak / _GIB:.1f} GiB are needed on {plan.device}, which has {plan.capacity / _GIB:.1f} GiB"
    if plan.sampling > plan.process + plan.update.peak:
        served = "lower --gpu-memory-utilization in rollout.server_options, or name another GPU in rollout.server_gpus"
        fix = served if plan.server else "lower rollout.context_tokens or rollout.group_size"
        raise ConfigError(f"the rollouts do not fit: {need}", fix=fix)
    raise ConfigError(f"the update does not fit: {need}", fix=_smaller_update(config, plan))


def _smaller_update(config: RunConfig, plan: Plan) -> str:
    """Return which field to change first for an update of less memory."""
    activations = plan.update.activations > plan.update.peak / 2
    if activations and not config.optimizer.gradient_checkpointing:
        return "set optimizer.gradient_checkpointing = true"
    if activations and plan.largest.rows > 1:
        return f"lower optimizer.micro_batch_tokens, to {plan.largest.tokens} or so"
    if activations:
        return "lower rollout.context_tokens"
    if config.model.lora.rank == 0:
        return "set model.lora.rank = 16, or model.precision = bfloat16 and optimizer.moments = 8bit"
    return "take a smaller model"


def _cache_tokens(config: RunConfig, window: int) -> float:
    """Return the tokens whose keys and values are held at once: of all rollouts of a step, and once more of those that sample
    together, which are merged into one batch."""
    rollouts = config.rollout.groups * config.rollout.group_size
    return rollouts * min(config.rollout.context_tokens, window) * (1.0 + 1.0 / config.rollout.cohorts)
