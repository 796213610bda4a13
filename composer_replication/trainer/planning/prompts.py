"""The lengths of the tasks' prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from composer_replication.config import RunConfig
from composer_replication.envs.coding import opening
from composer_replication.envs.source import AnyTask
from composer_replication.envs.tools import TOOLSETS
from composer_replication.tasks.store import Task
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.coding_tasks import toolset_of
from composer_replication.types.errors import ConfigError


def prompt_lengths(tasks: Iterable[AnyTask], config: RunConfig, renderer: ChatRenderer) -> dict[str, int]:
    """Return the tokens of the prompt of each of our tasks, by task id. Prompts of other environments are not known."""
    tools = TOOLSETS[toolset_of(config)]
    ours = (task for task in tasks if isinstance(task, Task))
    return {task.spec.task_id: len(renderer.prompt_ids(opening(task), tools)) for task in ours}


def check_prompts(lengths: Mapping[str, int], config: RunConfig, window: int) -> None:
    """Check that every prompt leaves room for a turn.

    Args:
        window: tokens that the model reads at most.

    Raises:
        ConfigError: one does not; names the task and the field to change.
    """
    room = min(config.rollout.context_tokens, window)
    too_long = sum(length >= room for length in lengths.values())
    if not too_long:
        return
    longest = max(lengths, key=lambda task_id: lengths[task_id])
    raise ConfigError(
        f"the prompts of {too_long} of {len(lengths)} tasks leave no room for a turn in {room} tokens: {longest} has "
        f"{lengths[longest]}",
        fix="raise rollout.context_tokens" if room < window else f"take a model that reads more than {window} tokens",
    )
