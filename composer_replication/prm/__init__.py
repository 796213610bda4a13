"""A process reward model of one's own: labels of steps, token classification, scores and what they are good for."""

from __future__ import annotations

from composer_replication.prm.data import IGNORED, Example, Step, encode, fit, held_out_tasks, read_transcripts
from composer_replication.prm.evaluate import Judged, judge, metrics_of
from composer_replication.prm.labels import StepLabels, outcome_labels, read_labels, vote_labels
from composer_replication.prm.model import load_prm, make_prm, score, start_prm
from composer_replication.prm.ranking import best_of, trajectory_score
from composer_replication.prm.train import PrmOptions, train_prm

__all__ = [
    "IGNORED",
    "Example",
    "Judged",
    "PrmOptions",
    "Step",
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
