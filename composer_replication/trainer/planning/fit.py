"""Refuses a run that needs more memory than there is, and names the fields to change."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

from pydantic import ValidationError

from composer_replication.config import RunConfig
from composer_replication.loss.forward.models import resolve_checkpointing, resolve_precision
from composer_replication.trainer.planning.plan import Plan
from composer_replication.types.errors import ConfigError

_GIB = 2**30


def check_fit(plan: Plan, config: RunConfig) -> None:
    """Raise ConfigError where a run cannot fit, naming the field to change."""
    if plan.peak <= plan.capacity:
        return
    need = f"{plan.peak / _GIB:.1f} GiB are needed on {plan.device}, which has {plan.capacity / _GIB:.1f} GiB"
    if plan.peak == plan.updating:
        raise ConfigError(f"the update does not fit: {need}", fix=_smaller_update(config, plan))
    if plan.peak == plan.loading:
        raise ConfigError(f"the policy does not fit before it is sharded: {need}", fix=_smaller_states(config))
    raise ConfigError(f"the rollouts do not fit: {need}", fix=_fewer_rollouts(config, plan))


def _fewer_rollouts(config: RunConfig, plan: Plan) -> str:
    """Return which field to change first for rollouts in less memory."""
    if plan.server:
        return "lower --gpu-memory-utilization in rollout.server_options, or name another GPU in rollout.server_gpus"
    room = plan.capacity - (plan.sampling - plan.caches)
    if plan.rollouts and room > 0:
        fit = int(room / (plan.caches / plan.rollouts))
        if fit >= max(config.rollout.group_size, config.eval.samples):  # a group is never cut
            return f"set rollout.max_rollouts = {fit}"
    return "lower rollout.context_tokens, or rollout.group_size and set rollout.max_rollouts to it"


def _smaller_update(config: RunConfig, plan: Plan) -> str:
    """Return which field to change first for an update in less memory."""
    if plan.update.activations <= plan.update.peak / 2:
        return _smaller_states(config)
    if not resolve_checkpointing(config):
        return "set optimizer.gradient_checkpointing = true"
    if plan.largest.rows > 1:
        return f"lower optimizer.micro_batch_tokens, to {plan.largest.tokens} or so"
    return "lower rollout.context_tokens"


_WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("model.lora.rank = 16", {"model.lora.rank": 16, "model.frozen_copies": "device"}),
    ("model.frozen_copies = cpu", {"model.frozen_copies": "cpu"}),
    (
        "model.precision = bfloat16 and optimizer.moments = 8bit",
        {"model.precision": "bfloat16", "optimizer.moments": "8bit"},
    ),
    ("optimizer.offload = true", {"optimizer.offload": True}),
)
"""Ways to keep less than weights, gradients, moments and copies in full, in the order in which they are named."""


def _smaller_states(config: RunConfig) -> str:
    """Return the first two ways that change something and that the rest of the run file allows; with adapters, whose moments are
    small, what makes the frozen weights smaller."""
    if config.model.lora.rank:
        in_full = resolve_precision(config.model) == "float32"
        return "set model.precision = mixed" if in_full else "take a smaller model"
    now = config.model_dump()
    found = [name for name, changes in _WAYS if _differs(now, changes) and _allowed(config, changes)]
    return f"set {', or '.join(found[:2])}" if found else "take a smaller model"


def _differs(now: dict[str, Any], changes: dict[str, Any]) -> bool:
    return any(reduce(operator.getitem, key.split("."), now) != value for key, value in changes.items())


def _allowed(config: RunConfig, changes: dict[str, Any]) -> bool:
    data = config.model_dump(mode="json", exclude_none=True)
    for key, value in changes.items():
        *sections, field = key.split(".")
        reduce(operator.getitem, sections, data)[field] = value
    try:
        RunConfig.model_validate(data)
    except ValidationError:
        return False
    return True
