"""Composer Replication Framework: RL post-training of any Hugging Face model into an agentic coder.

Three channels in one loss (`compose_loss`): policy gradient on passing tests, self-distillation from a hint at the turn that
went wrong, and preference pairs from teachers who re-answer frozen traces. Importing the package is cheap: every export is
loaded on first use, and torch is not imported until something needs it.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.api.evaluation import evaluate_run
    from composer_replication.api.rollouts import Evaluation, evaluate, rollout
    from composer_replication.api.runs import Run, load_run
    from composer_replication.api.tasks import build_tasks, grade, load_tasks
    from composer_replication.api.training import pretrain, sft, train
    from composer_replication.diloco.outer_loop import make_diloco_outer_loop as make_diloco_outer_loop
    from composer_replication.loss import LossComponents, compose_loss
    from composer_replication.loss.batch import build_batch, collate
    from composer_replication.recipes.trl.composer_trainer import ComposerReplicationTrainer as ComposerReplicationTrainer
    from composer_replication.teacher_replay import (
        DEFAULT_TEACHERS,
        DPOPair,
        TraceState,
        extract_dpo_pairs,
        replay_trace,
    )

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_TEACHERS",
    "DPOPair",
    "Evaluation",
    "LossComponents",
    "Run",
    "TraceState",
    "__version__",
    "build_batch",
    "build_tasks",
    "collate",
    "compose_loss",
    "evaluate",
    "evaluate_run",
    "extract_dpo_pairs",
    "grade",
    "load_run",
    "load_tasks",
    "pretrain",
    "replay_trace",
    "rollout",
    "sft",
    "train",
]

_HOME = {
    **dict.fromkeys(("Evaluation", "evaluate", "rollout"), "api.rollouts"),
    "evaluate_run": "api.evaluation",
    **dict.fromkeys(("Run", "load_run"), "api.runs"),
    **dict.fromkeys(("build_tasks", "grade", "load_tasks"), "api.tasks"),
    **dict.fromkeys(("pretrain", "sft", "train"), "api.training"),
    "ComposerReplicationTrainer": "recipes.trl.composer_trainer",  # needs an extra, and so is not part of `import *`
    "DEFAULT_TEACHERS": "teacher_replay",
    "DPOPair": "teacher_replay",
    "LossComponents": "loss",
    "TraceState": "teacher_replay",
    "build_batch": "loss",
    "collate": "loss",
    "compose_loss": "loss",
    "make_diloco_outer_loop": "diloco.outer_loop",  # likewise
    "extract_dpo_pairs": "teacher_replay",
    "replay_trace": "teacher_replay",
}


def __getattr__(name: str) -> Any:
    """Load an export from the module it lives in (PEP 562)."""
    if name == "_DILOCO_AVAILABLE":
        return find_spec("torchft") is not None
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
