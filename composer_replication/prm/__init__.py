"""A process reward model of one's own: labels of steps, token classification, scores and what they are good for.

Every export is loaded on first use, so that traces and labels can be read, and refused, without importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.prm.data import IGNORED, Example, JudgedTurn, encode, fit, held_out_tasks, read_transcripts
    from composer_replication.prm.evaluate import Judged, judge, metrics_of
    from composer_replication.prm.labels import StepLabels, outcome_labels, read_labels, vote_labels
    from composer_replication.prm.model import load_prm, make_prm, score, start_prm
    from composer_replication.prm.options import PrmOptions
    from composer_replication.prm.ranking import best_of, trajectory_score
    from composer_replication.prm.train import train_prm

__all__ = [
    "IGNORED",
    "Example",
    "Judged",
    "JudgedTurn",
    "PrmOptions",
    "StepLabels",
    "best_of",
    "encode",
    "fit",
    "held_out_tasks",
    "judge",
    "load_prm",
    "make_prm",
    "metrics_of",
    "outcome_labels",
    "read_labels",
    "read_transcripts",
    "score",
    "start_prm",
    "train_prm",
    "trajectory_score",
    "vote_labels",
]

_NAMES = {
    "data": ("IGNORED", "Example", "JudgedTurn", "encode", "fit", "held_out_tasks", "read_transcripts"),
    "evaluate": ("Judged", "judge", "metrics_of"),
    "labels": ("StepLabels", "outcome_labels", "read_labels", "vote_labels"),
    "model": ("load_prm", "make_prm", "score", "start_prm"),
    "options": ("PrmOptions",),
    "ranking": ("best_of", "trajectory_score"),
    "train": ("train_prm",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load an export from the module it lives in (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
