"""Refuses a run that needs more memory than there is, and names the fields to change."""

from __future__ import annotations

from composer_replication.config import RunConfig
from composer_replication.loss.forward.models import resolve_checkpointing
from composer_replication.trainer.learning.memory import smaller_states
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
        raise ConfigError(f"the policy does not fit before it is sharded: {need}", fix=smaller_states(config))
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
        return smaller_states(config)
    if not resolve_checkpointing(config):
        return "set optimizer.gradient_checkpointing = true"
    if plan.largest.rows > 1:
        return f"lower optimizer.micro_batch_tokens, to {plan.largest.tokens} or so"
    return "lower rollout.context_tokens"
