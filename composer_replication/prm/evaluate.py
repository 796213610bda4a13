"""A process reward model on traces whose steps have labels: probabilities, measures, a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from composer_replication.observe.chart import Line, Panel, Points, svg
from composer_replication.prm.data import Example
from composer_replication.prm.metrics import (
    accuracy,
    auroc,
    bootstrap_interval,
    calibration,
    expected_calibration_error,
    log_loss,
    roc,
)
from composer_replication.prm.model import score


@dataclass(frozen=True, slots=True)
class Judged:
    """One labelled step and its probability."""

    trajectory_id: str
    task_id: str
    turn: int
    label: float
    probability: float


def judge(model: PreTrainedModel, examples: Sequence[Example], *, pad_id: int, tokens: int = 16_384) -> list[Judged]:
    """Judge every labelled step of the examples, in order. `pad_id` and `tokens` as in `score`."""
    scores = score(model, examples, pad_id=pad_id, tokens=tokens)
    return [
        Judged(example.trajectory_id, example.task_id, step.turn, step.label, probability)
        for example, row in zip(examples, scores, strict=True)
        for step, probability in zip(example.steps, row, strict=True)
        if step.label is not None
    ]


def metrics_of(judged: Sequence[Judged], *, interval: bool = False) -> dict[str, float]:
    """Return `prm/held_out/...`: loss in nats, AUROC, accuracy, ECE; with `interval` the AUROC's 95 % interval over tasks. NaN
    where a measure does not exist."""
    labels, scores = [j.label for j in judged], [j.probability for j in judged]
    found = {
        "loss": log_loss(labels, scores),
        "auroc": auroc(labels, scores),
        "accuracy": accuracy(labels, scores),
        "ece": expected_calibration_error(labels, scores),
    }
    if interval:
        found["auroc_low"], found["auroc_high"] = bootstrap_interval(labels, scores, [j.task_id for j in judged])
    return {f"prm/held_out/{name}": value for name, value in found.items()}


def panels(steps: int, curves: Mapping[str, Points], bins: Points) -> list[Panel]:
    """Draw ROC curves by name, and the calibration of one model, measured on `steps` steps."""
    shares = [(value / 5, f"{value / 5:g}") for value in range(6)]
    diagonal = [(0.0, 0.0), (1.0, 1.0)]
    return [
        Panel(
            title=f"Good steps told from bad ones: {steps:,} held out",
            x_label="share of bad steps accepted",
            y_label="share of good steps accepted",
            x_ticks=shares,
            y_ticks=shares,
            lines=[*(Line(name, points) for name, points in curves.items()), Line("chance", diagonal)],
        ),
        Panel(
            title="Calibration of the PRM",
            x_label="probability of a good step",
            y_label="share of good steps",
            x_ticks=shares,
            y_ticks=shares,
            lines=[Line("PRM", bins), Line("perfect", diagonal)],
        ),
    ]


def thinned(points: Sequence[tuple[float, float]], most: int = 100) -> list[tuple[float, float]]:
    """Return at most about `most` of a curve's points, both ends among them."""
    every = max(1, math.ceil(len(points) / most))
    return [point for i, point in enumerate(points) if i % every == 0 or i == len(points) - 1]


def picture(judged: Sequence[Judged]) -> str:
    """Draw `panels` of a model's own curves, as SVG."""
    labels, scores = [j.label for j in judged], [j.probability for j in judged]
    bins = [(b.probability, b.label) for b in calibration(labels, scores)]
    return svg(panels(len(judged), {"PRM": thinned(roc(labels, scores))}, bins))
