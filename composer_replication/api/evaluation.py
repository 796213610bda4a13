"""Evaluate the policies of a run from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.api.training import resolved_config
from composer_replication.config import RunConfig
from composer_replication.observe import Terminal
from composer_replication.trainer.stages.evaluation import PolicyScore, evaluate_policies, open_evaluation, policies_of
from composer_replication.trainer.waiting import wait_for


def evaluate_run(
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    *,
    policies: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    terminal: Terminal | None = None,
) -> list[PolicyScore]:
    """Evaluate policies on the held-out tasks of a run, `eval.samples` rollouts each, and return how each did.

    Args:
        config: as for `train`.
        policies: folders, Hugging Face ids or, as `teacher:NAME`, the run's own teachers, by name; by default the run's start,
            the fine-tuned policy and each arm's newest checkpoint, as far as they are there.
        overrides: as for `train`.

    Raises:
        ConfigError: the run has no held-out tasks, or something is wrong with it.
        ComposerError: whatever a part of the recipe has to say.
    """
    resolved = resolved_config(config, overrides)
    with open_evaluation(resolved) as run_dir:
        shown = Terminal() if terminal is None else terminal
        shown.on_event = run_dir.log_event
        return wait_for(evaluate_policies(resolved, run_dir, shown, policies or policies_of(resolved)))
